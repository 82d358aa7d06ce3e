"""Phoenix (Algorithms 2.2, 2.3): subscribers may change their broker; brokers stay where they are.

Settled where the thesis slips: an event is stored for the subscriber it goes to (line 22 names another variable); a
subscriber that comes back to the broker it left is served there, not sent away (the printed else branch takes it out of
the local clients).  Left as they are: stored events are never pruned, and a replay may come after newer events.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.simulation.papers.messages import Mig, Name, PaperEvent, PaperMessage, Pub, Rep, Sub, Uns, refuse
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.subscriber_table import SubscriberTable


class Phoenix:
    def __init__(self, name: Name, send: Send, clock: Callable[[], int]) -> None:
        self.name = name
        self.neighbours: dict[Name, None] = {}
        self.table = SubscriberTable()
        self.local: dict[Name, None] = {}
        self.stored: dict[Name, list[tuple[PaperEvent, int]]] = {}
        """Every event for a local subscriber, with this broker's time."""
        self._send = send
        self._clock = clock

    def receive(self, message: PaperMessage, sender: Name) -> None:
        match message:
            case Sub(filter=one, subscriber=subscriber):
                self._subscribed(message, one, subscriber, sender)
            case Uns(filter=one, subscriber=subscriber):
                self._unsubscribed(message, one, subscriber, sender)
            case Pub(event=event):
                for to, subscribers in self.table.matching(event, sender).items():
                    self._store(event, [one for one in subscribers if one in self.local])
                    self._send(message, to)
            case Mig(subscriber=subscriber):
                self._migrated(message, subscriber, sender)
            case Rep(events=events, subscriber=subscriber):
                self._replayed(message, events, subscriber)
            case _:
                refuse(message, self.name)

    def _subscribed(self, message: PaperMessage, one: str, subscriber: Name, sender: Name) -> None:
        if self.table.add(one, sender, subscriber):
            if sender not in self.neighbours:
                self.local[subscriber] = None
            self._flood(message, sender)

    def _unsubscribed(self, message: PaperMessage, one: str, subscriber: Name, sender: Name) -> None:
        if self.table.remove(one, subscriber):
            if sender not in self.neighbours and subscriber not in self.table.routes:
                self.local.pop(subscriber, None)
            self._flood(message, sender)

    def _migrated(self, message: Mig, subscriber: Name, sender: Name) -> None:
        old = self.table.via(subscriber)
        was_local = subscriber in self.local
        self.table.turn(subscriber, sender)
        if sender == subscriber:
            self.local[subscriber] = None
        if was_local:
            if sender != subscriber:
                del self.local[subscriber]
            self._replay(subscriber, sender, message.time)
        elif old is not None and old != sender:
            self._send(message, old)

    def _replay(self, subscriber: Name, to: Name, after: int) -> None:
        stored = self.stored.pop(subscriber, [])
        newer = [event.replayed() for event, at in stored if at > after]
        for event in newer:
            if to == subscriber:
                self._store(event, [subscriber])
            self._send(Rep((event,), subscriber), to)

    def _replayed(self, message: PaperMessage, events: tuple[PaperEvent, ...], subscriber: Name) -> None:
        via = self.table.via(subscriber)
        if via is None:
            return
        if subscriber in self.local:
            for event in events:
                self._store(event, [subscriber])
        self._send(message, via)

    def _store(self, event: PaperEvent, subscribers: list[Name]) -> None:
        for subscriber in subscribers:
            self.stored.setdefault(subscriber, []).append((event, self._clock()))

    def _flood(self, message: PaperMessage, sender: Name) -> None:
        for neighbour in self.neighbours:
            if neighbour != sender:
                self._send(message, neighbour)
