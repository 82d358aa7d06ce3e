"""Nodes in front of brokers of other makes, networks of them, and publishers that reach a broker through its node."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .clients import Paho
from .conftest import Join
from .foreign_brokers import ForeignProcess
from .interworking_networks import view, wait_until_attached
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until
from .steadfast import Steadfast

LISTENERS = '[[listener]]\nbind = "127.0.0.1:0"\n[[listener]]\nbind = "127.0.0.1:0"\nserves = "node"\n'

TABLE = '[interworking]\n{broker}mode = "proxy"\nfence_s = 0.5\npause_s = 0.2\npause_max_s = 1.0\n{more}\n'


def before(directory: Path, broker: str | ForeignProcess, more: str = "", listeners: str = LISTENERS) -> LiveNode:
    """A node whose first port relays clients to the broker, and whose second serves them itself."""
    table = f'broker = "{broker}"\n' if isinstance(broker, str) else broker.table
    table = TABLE.format(broker=table, more=more)
    return LiveNode(directory, f'[admin]\nbind = "127.0.0.1:0"\n[journal]\ndurability = "os"\n{table}{listeners}')


def proxy(node: LiveNode) -> dict[str, Any]:
    found: dict[str, Any] = view(node)["proxy"]
    return found


class ProxyNetwork(LiveNetwork):
    """Nodes in a row, each in front of a broker of its own."""

    def __init__(self, directory: Path, brokers: dict[str, ForeignProcess], more: str = "") -> None:
        """`more`: lines of [interworking]."""
        self._brokers = brokers
        self._table = more
        names = sorted(brokers)
        super().__init__(directory, [a + b for a, b in itertools.pairwise(names)], "subscription-flooding")

    def make(self, name: str, neighbours: list[str], strategy: str, more: str = "") -> LiveNode:
        table = TABLE.format(broker=self._brokers[name].table, more=self._table)
        return super().make(name, neighbours, strategy, more + table + LISTENERS)


class ProxiedPair:
    """Two Mosquittos, each behind a node of the same network."""

    def __init__(self, stack: ExitStack, directory: Path, more: str = "") -> None:
        """`more`: lines of [interworking]."""
        self.brokers = {
            name: stack.enter_context(ForeignProcess("mosquitto", directory / f"broker-{name}")) for name in "ab"
        }
        self.network = stack.enter_context(ProxyNetwork(directory, self.brokers, more))
        for node in self.network.nodes.values():
            wait_until_attached(node)

    def port(self, name: str) -> int:
        """Where clients of this broker connect."""
        return self.network[name].ports[0]


class PublishingStream:
    """A publisher that is told of each message, in a thread of its own; it stays connected, or the test fails."""

    def __init__(self, join: Join, port: int, topic: str, qos: int, version: int = 4) -> None:
        self.topic, self.qos = topic, qos
        self.client = join(port, version=version, client_id=f"p-{topic.replace('/', '-')}", persistent=True)
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.client.publish(self.topic, f"{self.sent}", self.qos)
            self.sent += 1
            self._stop.wait(0.002)

    def wait_for(self, more: int) -> None:
        enough = self.sent + more
        wait_until(lambda: self.sent >= enough, f"{more} messages are published and acknowledged", 120)

    def end(self) -> int:
        """How many were acknowledged."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a publication is not answered"
        return self.sent


def check_stream(stream: PublishingStream | ResendingPublisher, heard: Paho, *, repeats: int = 0) -> None:
    """Everything that was acknowledged is there; at QoS 2 no more came twice than was in doubt."""
    wanted = {f"{number}".encode() for number in range(stream.end())}

    def found() -> Counter[bytes]:
        return Counter(bytes(message.payload) for message in heard.messages if message.topic == stream.topic)

    wait_until(lambda: set(found()) >= wanted, f"{len(wanted)} messages of {stream.topic}", 120)
    twice = [payload for payload, count in found().items() if count > 1]
    assert stream.qos == 1 or len(twice) <= repeats, f"{stream.topic}: {twice} came twice, {repeats} were in doubt"


class ResendingPublisher:
    """A publisher that comes back and sends again what was not answered, as the standard has it."""

    def __init__(self, node: LiveNode, topic: str, qos: int, *, may_be_forgotten: bool = False) -> None:
        self.topic, self.qos = topic, qos
        self._node = node
        self._client = Steadfast(f"p-{topic.replace('/', '-')}", may_be_forgotten=may_be_forgotten)
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set() or not self._client.is_idle:
            if self._client.fileno() is None:
                self._client.connect(self._node.address)
            if self._client.backlog < 5 and not self._stop.is_set():
                self._client.publish(self.topic, f"{self.sent}".encode(), self.qos)
                self.sent += 1
            self._client.pump()
            time.sleep(0.002)

    @property
    def acknowledged(self) -> int:
        return self._client.acknowledged

    def wait_for(self, more: int) -> None:
        enough = self.acknowledged + more
        wait_until(lambda: self.acknowledged >= enough, f"{more} messages are acknowledged", 120)

    def end(self) -> int:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a publication is not answered"
        self._client.leave()
        return self.sent
