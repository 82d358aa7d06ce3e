"""The networks that are compared: five brokers in a tree, ours with each strategy and Mosquitto with bridges.

Every broker has one port for clients and one for other brokers, so that what passes between brokers can be told apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sterna import __version__
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import Process, answers, program, wait_until
from sterna.measure.papers.traffic.placement import BROKERS, TREE
from sterna.measure.wire.byte_account import Ledger
from sterna.measure.wire.capture import Watched
from sterna.measure.wire.conversations import LinkReader, MqttReader, Reader

START_S = 60.0
"""Many processes may start at once on few cores."""
MOSQUITTO = "mosquitto-bridges"
STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
Overlay = Literal["static", "spanning-tree"]


@dataclass(frozen=True, slots=True)
class System:
    name: str
    reader: Callable[[], Reader]
    settings: Callable[[Ports, int, list[int], Path], str]
    """The configuration of one broker: all ports, its number, ports to connect to, a directory."""
    command: Callable[[Path], list[str]]
    is_linked: Callable[[Ledger], bool]
    """Whether what has passed so far means that every link stands."""


@dataclass(frozen=True, slots=True)
class Ports:
    clients: list[int]
    brokers: list[int]


class Running:
    """One network of one system."""

    def __init__(self, system: System, directory: Path) -> None:
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

    def wait_until_linked(self, ledger: Ledger) -> None:
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


def sterna(strategy: str, overlay: Overlay = "static") -> System:
    def settings(ports: Ports, number: int, targets: list[int], directory: Path) -> str:
        if overlay == "spanning-tree":
            targets = [port for port in ports.brokers if port != ports.brokers[number]]
        neighbours = ", ".join(f'"127.0.0.1:{port}"' for port in targets)
        return f"""\
[node]
name = "node-{number}"
data = "{directory}/data-{number}"
[journal]
durability = "memory"
[admin]
bind = ""
[log]
format = "json"
[[listener]]
bind = "127.0.0.1:{ports.clients[number]}"
[network]
name = "{directory.name}"
bind = "127.0.0.1:{ports.brokers[number]}"
neighbours = [{neighbours}]
strategy = "{strategy}"
overlay = "{overlay}"
[network.tree]
multicast = ""
"""

    return System(
        strategy,
        LinkReader,
        settings,
        command=lambda file: [sys.executable, "-m", "sterna", "node", "--config", str(file)],
        # HELLO, CHALLENGE, PROOF and WELCOME on every link.
        is_linked=lambda ledger: ledger.counts.get("handshake", 0) >= 4 * len(TREE),
    )


def mosquitto() -> System:
    """The paper's configuration: everything both ways at QoS 2, keep-alive of 10 s, no limit in flight."""

    def settings(ports: Ports, number: int, targets: list[int], directory: Path) -> str:
        lines = [
            f"listener {ports.clients[number]} 127.0.0.1",
            f"listener {ports.brokers[number]} 127.0.0.1",
            "allow_anonymous true",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            "persistence false",
            "log_type error",
            "log_dest stderr",
        ]
        if os.getuid() == 0:
            lines.append("user root")
        for place, port in enumerate(targets):
            lines += [
                f"connection bridge-{number}-{place}",
                f"address 127.0.0.1:{port}",
                "topic # both 2",
                "keepalive_interval 10",
                "restart_timeout 1",
            ]
        return "\n".join(lines) + "\n"

    return System(
        MOSQUITTO,
        MqttReader,
        settings,
        command=lambda file: [_mosquitto_program(), "-c", str(file)],
        is_linked=lambda ledger: ledger.counts.get("SUBACK", 0) >= len(TREE),
    )


def _mosquitto_program() -> str:
    return program("mosquitto", "on Debian: apt-get install mosquitto")


def versions() -> dict[str, str]:
    told = subprocess.run([_mosquitto_program(), "-h"], capture_output=True, text=True, check=False).stdout
    return {
        "sterna": f"sterna {__version__}, Python {sys.version.split()[0]}",
        MOSQUITTO: told.splitlines()[0] if told else "mosquitto",
    }
