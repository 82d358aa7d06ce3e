"""The routing table that Phoenix and its successors share: filters and one next hop per subscriber, and what waits.

In the thesis it is a set of (filter, interface, subscriber); all entries of a subscriber have the same interface, so it
is kept once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sterna.simulation.papers.messages import Name, PaperEvent, Rep

EVENTS_IN_REP_MAX = 8
"""Of those that waited, in one message."""


class SubscriberRoute:
    """One subscriber as a broker knows it."""

    __slots__ = ("filters", "via")

    def __init__(self, via: Name) -> None:
        self.via = via
        self.filters: dict[str, None] = {}


class SubscriberTable:
    def __init__(self) -> None:
        self.routes: dict[Name, SubscriberRoute] = {}
        self.waiting: dict[Name, deque[PaperEvent]] = {}

    def via(self, subscriber: Name) -> Name | None:
        route = self.routes.get(subscriber)
        return None if route is None else route.via

    def filters(self, subscriber: Name) -> tuple[str, ...]:
        route = self.routes.get(subscriber)
        return () if route is None else tuple(route.filters)

    def add(self, one: str, via: Name, subscriber: Name) -> bool:
        """Whether it is new."""
        route = self.routes.get(subscriber)
        if route is None:
            route = self.routes[subscriber] = SubscriberRoute(via)
        if one in route.filters:
            return False
        route.filters[one] = None
        return True

    def remove(self, one: str, subscriber: Name) -> bool:
        """Whether it was there; with the last filter the subscriber goes."""
        route = self.routes.get(subscriber)
        if route is None or one not in route.filters:
            return False
        del route.filters[one]
        if not route.filters:
            del self.routes[subscriber]
        return True

    def replace(self, subscriber: Name, filters: tuple[str, ...], via: Name) -> None:
        self.routes.pop(subscriber, None)
        for one in filters:
            self.add(one, via, subscriber)

    def turn(self, subscriber: Name, via: Name) -> None:
        route = self.routes.get(subscriber)
        if route is not None:
            route.via = via

    def matching(self, event: PaperEvent, sender: Name) -> dict[Name, list[Name]]:
        """Subscribers whose filters match, by next hop; not back to the sender."""
        found: dict[Name, list[Name]] = {}
        topic = event.topic
        for subscriber, route in self.routes.items():
            if topic in route.filters and route.via != sender:
                found.setdefault(route.via, []).append(subscriber)
        return found

    def entries(self) -> set[tuple[str, Name, Name]]:
        """(filter, interface, subscriber), as the thesis prints it."""
        return {(one, route.via, name) for name, route in self.routes.items() for one in route.filters}

    def wait(self, subscriber: Name, event: PaperEvent) -> None:
        self.waiting.setdefault(subscriber, deque()).append(event)

    def take_waiting(self, subscriber: Name) -> Iterator[Rep]:
        """The events that wait for it, in messages of a few; none of them waits any longer."""
        waiting = self.waiting.pop(subscriber, None)
        while waiting:
            few = tuple(waiting.popleft().replayed() for _ in range(min(EVENTS_IN_REP_MAX, len(waiting))))
            yield Rep(few, subscriber)
