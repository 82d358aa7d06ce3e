"""The product's overlay `mobile` on the radio, in the place of the thesis' leader election.

The overlay is the same code that runs in a node, with its hellos sealed and parsed; only links are missing: where the
overlay would dial, the link stands at once, since hops are acknowledged one by one here.  Hellos go out as often as the
thesis' heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import msgspec

from sterna.overlay.datagrams import Seal
from sterna.overlay.hellos import Hello, open_hello, path_said
from sterna.overlay.leadership import LeaderPath
from sterna.overlay.mobile import MobileOverlay
from sterna.overlay.mobile_settings import MobileSettings
from sterna.simulation.papers.leader_tree import PERIOD_S, LeaderHeartbeat
from sterna.simulation.papers.messages import Name
from sterna.simulation.radio.port import RadioPort

NETWORK = "radio"
KEY = b"the key of a simulated network.."
UDP_BYTES = 10
RADIO: dict[str, Any] = {
    "hello_s": PERIOD_S, "calm_hello_s": 4.0, "hello_air_bytes_s": 1500, "hello_bytes": 100, "steady_s": 10.0,
}  # fmt: skip


def radio_settings(name: Name) -> MobileSettings:
    """For a radio that sends 250 kbit/s in frames of 127 bytes."""
    return MobileSettings(network=NETWORK, node=name, key=KEY, **RADIO)


class HelloDatagram(msgspec.Struct, frozen=True):
    """As the overlay sealed it."""

    data: bytes

    @property
    def size(self) -> int:
        return UDP_BYTES + len(self.data)


class HelloReader:
    """Hellos as one station hears them that takes no part in the overlay."""

    def __init__(self) -> None:
        self._seal = Seal(NETWORK, KEY)
        self._paths: dict[bytes, LeaderPath] = {}

    def heartbeat(self, message: HelloDatagram) -> LeaderHeartbeat | None:
        """The way to the leader that a hello tells of; a client prefers the leader that it would follow as a node."""
        path = self.path(message)
        if path is None:
            return None
        return LeaderHeartbeat(f"{99 - path.leader.age:02}{path.leader.name}", path.round, path.hops, path.parent)

    def path(self, message: HelloDatagram) -> LeaderPath | None:
        """A short hello says it only if its names have been heard."""
        hello = open_hello(self._seal, message.data)
        if hello is None:
            return None
        if isinstance(hello, Hello):
            self._paths[hello.identity] = hello.path
            return hello.path
        known = self._paths.get(hello.identity)
        return None if known is None else path_said(known, hello)


class OverlayTree:
    """A broker's place in the tree that the overlay keeps."""

    def __init__(self, port: RadioPort, migrate: Callable[[Name | None, Name], object]) -> None:
        self._port = port
        self._migrate = migrate
        self._links: dict[Name, None] = {}
        self._children: dict[Name, float] = {}
        self._parent: Name | None = None
        self._last_parent: Name | None = None
        self._reader = HelloReader()
        settings = radio_settings(port.name)
        self._overlay = MobileOverlay(
            settings, self, now=self._now, schedule=self._schedule, rng=Random(int(port.random() * 2**53))
        )
        self.changes = 0
        self.hops = 0

    def start(self) -> None:
        self._port.after(self._port.random() * PERIOD_S, self._overlay.start)

    def neighbours(self) -> dict[Name, None]:
        found = dict.fromkeys(self._children)
        if self._parent is not None:
            found[self._parent] = None
        return found

    @property
    def parent(self) -> Name | None:
        return self._parent

    def joined(self, child: Name) -> None:
        self._children[child] = self._port.now

    def heard(self, message: HelloDatagram, sender: Name) -> None:
        path = self._reader.path(message)
        if path is not None:
            if path.parent == self._port.name:
                self._children[sender] = self._port.now
            else:
                self._children.pop(sender, None)
        self._overlay.datagram(sender, message.data)

    # The overlay's world.

    def send_datagram(self, address: str, data: bytes) -> None:
        """Nobody is spoken to alone."""

    def send_discovery(self, data: bytes) -> None:
        self._port.broadcast(HelloDatagram(data))

    def hold_links(self, dial: dict[str, str]) -> None:
        for peer in [one for one in self._links if one not in dial]:
            self.drop_link(peer, "")
        for peer in dial:
            if peer not in self._links:
                self._links[peer] = None
                self._overlay.link_started(peer)

    def drop_link(self, peer: str, reason: str) -> None:
        self._children.pop(peer, None)
        if self._links.pop(peer, 0) is None:
            self._overlay.link_ended(peer)

    def silent_s(self, peer: str) -> float:
        return inf

    def report(self, event: str, **fields: object) -> None:
        """The parent is another one: that is the thesis' migration."""
        if event != "parent-changed":
            return
        parent, hops = fields["parent"], fields["hops"]
        assert isinstance(hops, int)
        self.hops = hops if parent else 0
        self._parent = str(parent) if parent else None
        if self._parent is not None and self._parent != self._last_parent:
            last, self._last_parent = self._last_parent, self._parent
            self.changes += last is not None
            self._migrate(last, self._parent)

    def _now(self) -> float:
        return self._port.now

    def _schedule(self, at: float, action: Callable[[], object]) -> None:
        self._port.after(at - self._port.now, action)
