"""Nodes attached to real brokers of other makes: networks of them, load across them, and ways that can be cut."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .conftest import Join
from .foreign_brokers import ForeignProcess
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

TABLE = """
[admin]
bind = "127.0.0.1:0"
[journal]
durability = "os"
[interworking]
{broker}fence_s = 0.5
pause_s = 0.2
pause_max_s = 2.0
{more}
"""


def attached(directory: Path, broker: str | ForeignProcess, more: str = "") -> LiveNode:
    table = f'broker = "{broker}"\n' if isinstance(broker, str) else broker.table
    return LiveNode(directory, TABLE.format(broker=table, more=more))


def view(node: LiveNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.ask("/interworking")[1])
    return found


def wait_until_attached(node: LiveNode) -> None:
    wait_until(lambda: view(node)["state"] == "attached", "the node is attached", 120)


def wait_for_fences(node: LiveNode, count: int = 3) -> None:
    """So many fences have passed the broker since."""
    before = view(node)["fences_sent"]
    wait_until(lambda: view(node)["fences_sent"] >= before + count, "fences pass", 120)


class InterworkingNetwork(LiveNetwork):
    """Nodes, each attached to a broker of its own: in a row, or linked as `pairs` say."""

    def __init__(
        self,
        directory: Path,
        brokers: Mapping[str, ForeignProcess | Detour],
        strategy: str,
        pairs: Iterable[str] | None = None,
        more: str = "",
    ) -> None:
        """`more`: lines of [interworking]."""
        self._brokers = brokers
        self._table = more
        row = [a + b for a, b in itertools.pairwise(sorted(brokers))]
        super().__init__(directory, row if pairs is None else pairs, strategy)

    def make(self, name: str, neighbours: list[str], strategy: str, more: str = "") -> LiveNode:
        times = "fence_s = 0.5\npause_s = 0.2\npause_max_s = 2.0\n"
        table = f"[interworking]\n{self._brokers[name].table}{times}{self._table}\n"
        return super().make(name, neighbours, strategy, more + table)


#: They move as long as a node is attached.
_RESTLESS = ("round_trip_ms", "fences_sent", "fences_back", "other_nodes")


def check_that_it_is_quiet(network: LiveNetwork, fences: int = 4) -> None:
    """No counter moves while so many fences pass; they are half a second apart."""

    def counts() -> dict[str, Any]:
        return {
            f"{name} {counter}": value
            for name, node in network.nodes.items()
            for counter, value in view(node).items()
            if counter not in _RESTLESS
        }

    before = _without_fences(counts())
    for node in network.nodes.values():
        wait_for_fences(node, fences)
    after = _without_fences(counts())
    moved = {counter: (before[counter], value) for counter, value in after.items() if value != before[counter]}
    assert not moved, moved


def _without_fences(counts: dict[str, Any]) -> dict[str, Any]:
    """Fences are held back, and their echoes with them."""
    for name, value in counts.items():
        if name.endswith(" held_back"):
            counts[name] = {reason: count for reason, count in value.items() if reason != "fence"}
    return counts


class Load:
    """A publisher that is told of each message, and a subscriber on the other side, both with lasting sessions."""

    def __init__(self, join: Join, source: int, target: int, qos: int, name: str) -> None:
        self.topic = f"load/{name}/{qos}"
        self._subscriber = join(target, version=4, client_id=f"s-{name}-{qos}", persistent=True)
        self._subscriber.subscribe(self.topic, qos)
        self._publisher = join(source, version=4, client_id=f"p-{name}-{qos}")
        self._stop = threading.Event()
        self.sent = 0
        self._qos = qos
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._publisher.publish(self.topic, f"{self.sent}", self._qos)
            self.sent += 1
            self._stop.wait(0.005)

    def check(self) -> None:
        self._stop.set()
        self._thread.join(60)
        wanted = {f"{number}".encode() for number in range(self.sent)}
        wait_until(
            lambda: {bytes(message.payload) for message in self._subscriber.messages} >= wanted,
            f"{len(wanted)} messages of {self.topic}",
            120,
        )
        found = Counter(bytes(message.payload) for message in self._subscriber.messages)
        twice = [word for word, count in found.items() if count > 1]
        assert self._qos == 1 or not twice, f"{self.topic}: {len(twice)} came twice"


class Detour:
    """A port that leads to another one, as an alias of a machine does."""

    def __init__(self, leads_to: int = 0) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.leads_to = leads_to
        self._ways: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            try:
                other = socket.create_connection(("127.0.0.1", self.leads_to))
            except OSError:
                one.close()
                continue
            self._ways += [one, other]
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with source, target, suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def table(self) -> str:
        return f'broker = "{self.address}"\n'

    def cut(self) -> None:
        """Every connection breaks; new ones can be made."""
        ways, self._ways = self._ways, []
        for way in ways:
            with suppress(OSError):
                way.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
