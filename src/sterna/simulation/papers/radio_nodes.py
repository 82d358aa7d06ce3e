"""The papers' nodes on the radio, one role each: brokers, subscribers and publishers, and nodes of AODV.

A publisher without a broker loses what it publishes; the thesis says nothing else.  Messages between brokers that no
neighbour acknowledged are lost, events among them wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sterna.simulation.papers.aodv import AodvNode
from sterna.simulation.papers.leader_tree import BrokerChoice, LeaderHeartbeat, LeaderTree
from sterna.simulation.papers.ledger import EventLedger
from sterna.simulation.papers.messages import Bmig, Name, PaperEvent, PaperMessage, ProxyMig, Pub, Rep
from sterna.simulation.papers.mobile_broker import MobileBroker, Routed
from sterna.simulation.papers.overlay_tree import HelloDatagram, HelloReader, OverlayTree
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.subscriber import PaperSubscriber
from sterna.simulation.radio.port import RadioPort

RadioBroker = Callable[[Name, Send, Routed], MobileBroker]


def one_hop_on(message: PaperMessage) -> PaperMessage:
    match message:
        case Pub(event=event):
            return Pub(event.one_hop_on())
        case Rep(events=events, subscriber=subscriber):
            return Rep(tuple(event.one_hop_on() for event in events), subscriber)
    return message


class BrokerTree(Protocol):
    """The tree that a broker is in, as the broker uses it."""

    @property
    def parent(self) -> Name | None: ...
    @property
    def hops(self) -> int: ...
    @property
    def changes(self) -> int: ...

    def start(self) -> object: ...
    def neighbours(self) -> dict[Name, None]: ...
    def joined(self, child: Name) -> object: ...
    def heard(self, message: Any, sender: Name) -> object: ...


@dataclass(frozen=True, slots=True)
class TreeKind:
    """A way to get a tree: a broker's part in it, and what clients learn from its beacons."""

    tree: Callable[[RadioPort, Callable[[Name | None, Name], object]], BrokerTree]
    beacon: type
    reader: Callable[[], Callable[[Any], LeaderHeartbeat | None]]
    """For one client."""


LEADER = TreeKind(LeaderTree, LeaderHeartbeat, lambda: lambda message: message)
"""The thesis' own."""
STEADY = TreeKind(OverlayTree, HelloDatagram, lambda: HelloReader().heartbeat)
"""The product's overlay."""


class BrokerStation:
    def __init__(self, port: RadioPort, kind: TreeKind, broker: RadioBroker, ledger: EventLedger) -> None:
        self._beacon = kind.beacon
        self.tree = kind.tree(port, self._migrate)
        self.core = broker(port.name, port.send, ledger.route)

    def start(self) -> None:
        self.tree.start()

    def heard(self, message: PaperMessage, sender: Name) -> None:
        if isinstance(message, self._beacon):
            self.tree.heard(message, sender)
            return
        if isinstance(message, Bmig | ProxyMig) and sender != self.tree.parent:
            self.tree.joined(sender)
        self.core.neighbours = self.tree.neighbours()
        self.core.receive(one_hop_on(message), sender)

    def undelivered(self, message: PaperMessage, to: Name) -> None:
        self.core.undelivered(message, to)

    @property
    def changes(self) -> int:
        return self.tree.changes

    @property
    def depth(self) -> int:
        return self.tree.hops

    def _migrate(self, old: Name | None, new: Name) -> None:
        self.core.neighbours = self.tree.neighbours()
        self.core.migrate(old, new)


class SubscriberStation:
    def __init__(self, port: RadioPort, kind: TreeKind, filters: Iterable[str], ledger: EventLedger) -> None:
        self.core = PaperSubscriber(port.name, port.send, self._take)
        self.core.filters = dict.fromkeys(filters)
        self.choice = BrokerChoice(port, self.core.connect, self.core.disconnect)
        self._beacon, self._heartbeat = kind.beacon, kind.reader()
        self._port = port
        self._ledger = ledger

    def start(self) -> None:
        self.choice.start()

    def heard(self, message: PaperMessage, sender: Name) -> None:
        if isinstance(message, self._beacon):
            self.choice.heard(self._heartbeat(message), sender)
        else:
            self.core.receive(one_hop_on(message))

    def undelivered(self, message: PaperMessage, to: Name) -> None:
        self.choice.lost(to)

    @property
    def changes(self) -> int:
        return self.choice.changes

    def _take(self, event: PaperEvent) -> None:
        self._ledger.deliver(event, self._port.name, self._port.now)


class PublisherStation:
    def __init__(self, port: RadioPort, kind: TreeKind) -> None:
        self.choice = BrokerChoice(port, lambda broker: None, lambda: None)
        self._beacon, self._heartbeat = kind.beacon, kind.reader()
        self.unsent = 0
        """Published while there was no broker."""
        self._port = port

    def start(self) -> None:
        self.choice.start()

    def publish(self, event: PaperEvent) -> None:
        if self.choice.broker is None:
            self.unsent += 1
        else:
            self._port.send(Pub(event), self.choice.broker)

    def heard(self, message: PaperMessage, sender: Name) -> None:
        if isinstance(message, self._beacon):
            self.choice.heard(self._heartbeat(message), sender)

    def undelivered(self, message: Any, to: Name) -> None:
        self.choice.lost(to)

    @property
    def changes(self) -> int:
        return self.choice.changes


class AodvStation(AodvNode):
    """Of any role: everybody relays, and only publishers send."""

    def __init__(self, port: RadioPort, ledger: EventLedger) -> None:
        super().__init__(port, lambda event: ledger.deliver(event, port.name, port.now))
        self._ledger = ledger

    def publish(self, event: PaperEvent) -> None:
        wanted = self._ledger.wanted[event.topic]
        self._ledger.route(event, wanted)
        for name in wanted:
            self.send(event, name)
