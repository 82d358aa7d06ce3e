"""The fate of each event: when it was made, for whom it was meant, who has it, when and over how many hops."""

from __future__ import annotations

from collections.abc import Iterable

from sterna.simulation.papers.messages import Name, PaperEvent

EventKey = tuple[Name, int]


class EventLedger:
    """`wanted` says for whom an event is, by its topic."""

    def __init__(self, wanted: dict[str, list[Name]]) -> None:
        self.wanted = wanted
        self.made: dict[EventKey, tuple[float, str]] = {}
        self.routed: set[tuple[Name, int, Name]] = set()
        """(event, subscriber) that the first broker knew of, as the thesis counts what was sent to a subscriber."""
        self.delivered: dict[tuple[Name, int, Name], tuple[float, int]] = {}
        """Delay and hops of the first copy."""
        self.duplicates = 0

    def publish(self, event: PaperEvent, now: float) -> None:
        self.made[event.publisher, event.number] = (now, event.topic)

    def route(self, event: PaperEvent, subscribers: Iterable[Name]) -> None:
        for name in subscribers:
            self.routed.add((event.publisher, event.number, name))

    def deliver(self, event: PaperEvent, subscriber: Name, now: float) -> None:
        key = (event.publisher, event.number, subscriber)
        if key in self.delivered:
            self.duplicates += 1
            return
        self.delivered[key] = (now - self.made[event.publisher, event.number][0], event.hops)

    @property
    def meant(self) -> int:
        """(event, subscriber) that there should be."""
        return sum(len(self.wanted[topic]) for _, topic in self.made.values())

    @property
    def sent_to_subscribers(self) -> int:
        """(event, subscriber) that were routed; one that arrived has been."""
        return len(self.routed | self.delivered.keys())
