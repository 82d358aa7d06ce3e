"""The networks that are compared: five brokers in a tree, ours with each strategy and Mosquitto with bridges.

Every broker has one port for clients and one for other brokers, so that what passes between brokers can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sterna.measure.harness import meter
from sterna.measure.harness.brokers import (
    describe_sterna,
    mosquitto_command,
    mosquitto_settings,
    mosquitto_version,
    sterna_command,
)
from sterna.measure.harness.node_tables import network, toml
from sterna.measure.harness.nodes import place_tables
from sterna.measure.harness.processes import Process, wait_until
from sterna.measure.harness.sites import NodePlace
from sterna.measure.harness.trees import NodeView, edges, is_whole, look
from sterna.measure.papers.traffic.placement import BROKERS, TREE, Links
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.capture import Watched
from sterna.measure.wire.conversations import LinkReader, MqttReader, WireReader

START_S = 120.0
"""Many processes may start at once on few cores."""
LOOK_EVERY_S = 0.2
MOSQUITTO = "mosquitto-bridges"
STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
Overlay = Literal["static", "spanning-tree"]
MULTICAST = "239.255.83.84:7884"
KEY = "of no use outside of this experiment"


@dataclass(frozen=True, slots=True)
class TrafficSystem:
    name: str
    reader: Callable[[], WireReader]
    settings: Callable[[list[NodePlace], int, list[str], Path], str]
    """The configuration of one broker: all places, its number, addresses to connect to, a directory."""
    command: Callable[[Path], list[str]]
    is_linked: Callable[[ByteAccount], bool]
    """Whether what has passed so far means that every link stands."""
    finds_tree: bool = False
    """Its brokers find their tree themselves, and say on their admin ports which it is."""


class RunningNetwork:
    """One network of one system."""

    def __init__(self, system: TrafficSystem, places: list[NodePlace], directory: Path) -> None:
        self.system = system
        self.places = places
        self.links: Links = TREE
        self._directory = directory
        self._processes: list[Process] = []

    def watched(self) -> Watched:
        return Watched(frozenset(place.links for place in self.places), self.system.reader)

    def start(self, reach: Callable[[int], int]) -> None:
        """All brokers; `reach` says where to connect to get to another broker's port."""
        self._directory.mkdir(parents=True)
        for number, place in enumerate(self.places):
            others = [self.places[target] for source, target in TREE if source == number]
            targets = [f"{other.host}:{reach(other.links)}" for other in others]
            file = self._directory / f"broker-{number}.conf"
            file.write_text(self.system.settings(self.places, number, targets, self._directory))
            command = [*place.prefix, *self.system.command(file)]
            process = Process(f"{self.system.name}-{number}", command, self._directory)
            process.start()
            self._processes.append(process)

    def wait_until_linked(self, ledger: ByteAccount) -> None:
        linked = self._has_tree if self.system.finds_tree else lambda: self._has_links(ledger)
        wait_until(linked, f"the brokers of {self.system.name} are linked", START_S, LOOK_EVERY_S)

    def _has_links(self, ledger: ByteAccount) -> bool:
        self.check()
        return self.system.is_linked(ledger) and all(answers(place) for place in self.places)

    def _has_tree(self) -> bool:
        self.check()
        views = {f"node-{number}": look(place) for number, place in enumerate(self.places)}
        found: dict[str, NodeView] = {name: view for name, view in views.items() if view is not None}
        if len(found) < BROKERS or not is_whole(found):
            return False
        self.links = tuple(_numbers(edge) for edge in edges(found))
        return True

    def cpu_ns(self) -> list[int]:
        """Used so far by each broker."""
        return [meter.cpu_ns(process.pid) for process in self._processes]

    def resident_kib(self) -> list[int]:
        return [meter.resident_kib(process.pid) for process in self._processes]

    def check(self) -> None:
        for process in self._processes:
            process.check()

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


def answers(place: NodePlace) -> bool:
    """Whether it lets clients connect."""
    with place.socket() as made:
        made.settimeout(1.0)
        return made.connect_ex((place.host, place.clients)) == 0


def _numbers(edge: frozenset[str]) -> tuple[int, int]:
    one, other = sorted(int(name.removeprefix("node-")) for name in edge)
    return one, other


def sterna(strategy: str, overlay: Overlay = "static", name: str = "") -> TrafficSystem:
    tree = overlay == "spanning-tree"

    def settings(places: list[NodePlace], number: int, targets: list[str], directory: Path) -> str:
        place = places[number]
        # Elsewhere the group would be shared with every other experiment on this machine.
        group = MULTICAST if tree and place.namespace else ""
        if tree:
            targets = [] if group else [other.links_address for other in places if other is not place]
        links = network(directory.name, place.links_address, targets, strategy=strategy, overlay=overlay, key=KEY)
        return toml(
            {
                **place_tables(f"node-{number}", place, directory),
                "journal": {"durability": "memory"},
                "admin": {"bind": f"{place.host}:{place.admin}" if tree else "", "anonymous": tree},
                "network": links,
                "network.tree": {"multicast": group},
            }
        )

    return TrafficSystem(
        name or strategy,
        LinkReader,
        settings,
        command=lambda file: sterna_command("node", "--config", str(file)),
        # HELLO, CHALLENGE, PROOF and WELCOME on every link.
        is_linked=lambda ledger: ledger.counts.get("handshake", 0) >= 4 * len(TREE),
        finds_tree=tree,
    )


def mosquitto() -> TrafficSystem:
    """The paper's configuration: everything both ways at QoS 2, keep-alive of 10 s, no limit in flight."""

    def settings(places: list[NodePlace], number: int, targets: list[str], directory: Path) -> str:
        place = places[number]
        lines = [f"listener {place.links} {place.host}", "persistence false"]
        for number_of_bridge, address in enumerate(targets):
            lines += [
                f"connection bridge-{number}-{number_of_bridge}",
                f"address {address}",
                "topic # both 2",
                "keepalive_interval 10",
                "restart_timeout 1",
            ]
        return mosquitto_settings(place.clients, *lines, host=place.host)

    return TrafficSystem(
        MOSQUITTO,
        MqttReader,
        settings,
        command=mosquitto_command,
        is_linked=lambda ledger: ledger.counts.get("SUBACK", 0) >= len(TREE),
    )


def versions() -> dict[str, str]:
    return {"sterna": describe_sterna(), MOSQUITTO: mosquitto_version()}
