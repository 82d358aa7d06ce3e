"""The product's overlay `mobile` on the radio, in the place of the thesis' leader election.

The overlay is the same code that runs in a node, with its hellos sealed and parsed; only links are missing: where the
overlay would dial, the link stands at once, since hops are acknowledged one by one here.  Hellos go out as often as the
thesis' heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from sterna.overlay.datagrams import Seal
from sterna.overlay.hellos import Hello, open_hello
from sterna.overlay.mobile import MobileOverlay
from sterna.overlay.mobile_settings import MobileSettings
from sterna.simulation.papers.leader_tree import PERIOD_S, Heartbeat
from sterna.simulation.papers.messages import Name
from sterna.simulation.radio.port import RadioPort

NETWORK = "radio"
KEY = b"the key of a simulated network.."
UDP_BYTES = 10


class HelloDatagram(msgspec.Struct, frozen=True):
    """As the overlay sealed it."""

    data: bytes

    @property
    def size(self) -> int:
        return UDP_BYTES + len(self.data)


class HelloReader:
    """Hellos as clients hear them, who take no part in the overlay."""

    def __init__(self) -> None:
        self._seal = Seal(NETWORK, KEY)

    def heartbeat(self, message: HelloDatagram) -> Heartbeat | None:
        """The way to the leader that a hello tells of; a client prefers the leader that it would follow as a node."""
        hello = self.opened(message)
        if hello is None:
            return None
        leader = hello.path.leader
        return Heartbeat(f"{99 - leader.age:02}{leader.name}", hello.path.round, hello.path.hops, hello.path.parent)

    def opened(self, message: HelloDatagram) -> Hello | None:
        return open_hello(self._seal, message.data)


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
        settings = MobileSettings(network=NETWORK, node=port.name, key=KEY, hello_s=PERIOD_S)
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
        hello = self._reader.opened(message)
        if hello is not None:
            if hello.path.parent == self._port.name:
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
