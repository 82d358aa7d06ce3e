"""The networks that are compared: five brokers in a tree, ours with each strategy and Mosquitto with bridges.

Every broker has one port for clients and one for other brokers, so that what passes between brokers can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sterna.measure.harness.brokers import (
    describe_sterna,
    mosquitto_command,
    mosquitto_settings,
    mosquitto_version,
    sterna_command,
)
from sterna.measure.harness.node_tables import network, toml
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import Process, answers, wait_until
from sterna.measure.papers.traffic.placement import BROKERS, TREE
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.capture import Watched
from sterna.measure.wire.conversations import LinkReader, MqttReader, WireReader

START_S = 60.0
"""Many processes may start at once on few cores."""
MOSQUITTO = "mosquitto-bridges"
STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
Overlay = Literal["static", "spanning-tree"]


@dataclass(frozen=True, slots=True)
class TrafficSystem:
    name: str
    reader: Callable[[], WireReader]
    settings: Callable[[Ports, int, list[int], Path], str]
    """The configuration of one broker: all ports, its number, ports to connect to, a directory."""
    command: Callable[[Path], list[str]]
    is_linked: Callable[[ByteAccount], bool]
    """Whether what has passed so far means that every link stands."""


@dataclass(frozen=True, slots=True)
class Ports:
    clients: list[int]
    brokers: list[int]


class RunningNetwork:
    """One network of one system."""

    def __init__(self, system: TrafficSystem, directory: Path) -> None:
        self.system = system
        self._directory = directory
        ports = free_ports(2 * BROKERS)
        self.ports = Ports(ports[:BROKERS], ports[BROKERS:])
        self._processes: list[Process] = []

    def watched(self) -> Watched:
        return Watched(frozenset(self.ports.brokers), self.system.reader)

    def start(self, reach: Callable[[int], int]) -> None:
        """All brokers; `reach` says where to connect to get to another broker's port."""
        self._directory.mkdir(parents=True)
        for number in range(BROKERS):
            targets = [reach(self.ports.brokers[target]) for source, target in TREE if source == number]
            file = self._directory / f"broker-{number}.conf"
            file.write_text(self.system.settings(self.ports, number, targets, self._directory))
            process = Process(f"{self.system.name}-{number}", self.system.command(file), self._directory)
            process.start()
            self._processes.append(process)

    def wait_until_linked(self, ledger: ByteAccount) -> None:
        def linked() -> bool:
            self.check()
            return self.system.is_linked(ledger) and all(answers("127.0.0.1", port) for port in self.ports.clients)

        wait_until(linked, f"the brokers of {self.system.name} are linked", START_S, 0.1)

    def check(self) -> None:
        for process in self._processes:
            process.check()

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


def sterna(strategy: str, overlay: Overlay = "static") -> TrafficSystem:
    def settings(ports: Ports, number: int, targets: list[int], directory: Path) -> str:
        if overlay == "spanning-tree":
            targets = [port for port in ports.brokers if port != ports.brokers[number]]
        links = network(
            directory.name,
            f"127.0.0.1:{ports.brokers[number]}",
            [f"127.0.0.1:{port}" for port in targets],
            strategy=strategy,
            overlay=overlay,
        )
        return toml(
            {
                "node": {"name": f"node-{number}", "data": f"{directory}/data-{number}"},
                "journal": {"durability": "memory"},
                "admin": {"bind": ""},
                "log": {"format": "json"},
                "listener": [{"bind": f"127.0.0.1:{ports.clients[number]}"}],
                "network": links,
                "network.tree": {"multicast": ""},
            }
        )

    return TrafficSystem(
        strategy,
        LinkReader,
        settings,
        command=lambda file: sterna_command("node", "--config", str(file)),
        # HELLO, CHALLENGE, PROOF and WELCOME on every link.
        is_linked=lambda ledger: ledger.counts.get("handshake", 0) >= 4 * len(TREE),
    )


def mosquitto() -> TrafficSystem:
    """The paper's configuration: everything both ways at QoS 2, keep-alive of 10 s, no limit in flight."""

    def settings(ports: Ports, number: int, targets: list[int], directory: Path) -> str:
        lines = [f"listener {ports.brokers[number]} 127.0.0.1", "persistence false"]
        for place, port in enumerate(targets):
            lines += [
                f"connection bridge-{number}-{place}",
                f"address 127.0.0.1:{port}",
                "topic # both 2",
                "keepalive_interval 10",
                "restart_timeout 1",
            ]
        return mosquitto_settings(ports.clients[number], *lines)

    return TrafficSystem(
        MOSQUITTO,
        MqttReader,
        settings,
        command=mosquitto_command,
        is_linked=lambda ledger: ledger.counts.get("SUBACK", 0) >= len(TREE),
    )


def versions() -> dict[str, str]:
    return {"sterna": describe_sterna(), MOSQUITTO: mosquitto_version()}
