"""The part that both protocols for moving brokers share: events wait where their way ends (Algorithms 3.1, 3.2).

Settled where the thesis slips: routes are turned to where a subscriber came from whether or not the message goes on
(Algorithm 3.2, lines 7 to 12); the broker that MIG names is the one the subscriber left, where MIG ends.  The thesis
says nothing of rings, which form while tables are wrong: an event ends after `HOPS_MAX` hops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from sterna.simulation.papers.messages import Filters, Mig, Name, PaperEvent, PaperMessage, Pub, Rep
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.subscriber_table import SubscriberTable

HOPS_MAX = 32
Routed = Callable[[PaperEvent, Iterable[Name]], object]
"""Told of every event that a publisher brings, and for whom the broker believes it to be."""


def nobody_asks(event: PaperEvent, subscribers: Iterable[Name]) -> None:
    """The default of `Routed`."""


class MobileBroker(ABC):
    def __init__(self, name: Name, send: Send, routed: Routed = nobody_asks) -> None:
        self.name = name
        self.table = SubscriberTable()
        self.neighbours: dict[Name, None] = {}
        """Brokers it is linked with."""
        self.clients: dict[Name, None] = {}
        """Clients that are connected to it."""
        self.dropped_in_rings = 0
        self.dropped_without_route = 0
        self._send = send
        self._routed = routed

    @abstractmethod
    def migrate(self, old: Name | None, new: Name) -> None:
        """The next hop to the leader is another one."""

    @abstractmethod
    def receive(self, message: PaperMessage, sender: Name) -> None:
        """From a neighbour or a client."""

    def is_linked(self, name: Name | None) -> bool:
        return name in self.neighbours or name in self.clients

    def undelivered(self, message: PaperMessage, to: Name) -> None:
        """The next hop has not acknowledged it: events wait, anything else is lost."""
        match message:
            case Pub(event=event):
                for subscriber in self.table.matching(event, self.name).get(to, ()):
                    self.table.wait(subscriber, event)
            case Rep(events=events, subscriber=subscriber):
                for event in events:
                    self.table.wait(subscriber, event)

    def _publish(self, message: Pub, sender: Name) -> None:
        event = message.event
        if event.hops > HOPS_MAX:
            self.dropped_in_rings += 1
            return
        matching = self.table.matching(event, sender)
        if sender == event.publisher:
            self._routed(event, (one for subscribers in matching.values() for one in subscribers))
        for to, subscribers in matching.items():
            if self.is_linked(to):
                self._send(message, to)
            else:
                for subscriber in subscribers:
                    self.table.wait(subscriber, event)

    def _replay(self, message: Rep) -> None:
        via = self.table.via(message.subscriber)
        if message.events[0].hops > HOPS_MAX:
            self.dropped_in_rings += len(message.events)
        elif via is None:
            self.dropped_without_route += len(message.events)
        elif self.is_linked(via):
            self._send(message, via)
        else:
            for event in message.events:
                self.table.wait(message.subscriber, event)

    def _send_waiting(self, subscriber: Name, to: Name) -> None:
        """The thesis' sendQueuedMessages."""
        if self.is_linked(to):
            for message in self.table.take_waiting(subscriber):
                self._send(message, to)

    def _subscriber_migrated(self, message: Mig, sender: Name, onward: Mig) -> None:
        subscriber = message.subscriber
        if sender == subscriber:
            self.clients[subscriber] = None
            self._send(Filters(self.table.filters(subscriber)), subscriber)
        old = self.table.via(subscriber)
        if message.broker != self.name and old in self.neighbours and old != sender:
            assert old is not None
            self._send(onward, old)
        if sender != subscriber:
            self.clients.pop(subscriber, None)
        self.table.turn(subscriber, sender)
        self._send_waiting(subscriber, sender)

    def _flood(self, message: PaperMessage, sender: Name) -> None:
        for neighbour in self.neighbours:
            if neighbour != sender:
                self._send(message, neighbour)
