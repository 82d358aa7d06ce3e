"""A subscriber of the papers' protocols: it knows its own filters and corrects a broker that knows others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sterna.simulation.papers.messages import Filters, Mig, Name, PaperEvent, PaperMessage, Pub, Rep, Sub, Uns, refuse
from sterna.simulation.papers.simple_routing import Send


class PaperSubscriber:
    def __init__(self, name: Name, send: Send, take: Callable[[PaperEvent], object]) -> None:
        self.name = name
        self.filters: dict[str, None] = {}
        self.broker: Name | None = None
        self.time = 0
        """Counts every message it sends."""
        self._last_broker: Name | None = None
        self._send = send
        self._take = take

    def subscribe(self, filters: Iterable[str]) -> None:
        for one in filters:
            self.filters[one] = None
            self._tell(Sub, one)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        for one in filters:
            self.filters.pop(one, None)
            self._tell(Uns, one)

    def connect(self, broker: Name) -> None:
        """To the first broker ever, or to another one."""
        last, self._last_broker, self.broker = self._last_broker, broker, broker
        if last is None:
            for one in self.filters:
                self._tell(Sub, one)
        else:
            self.time += 1
            self._send(Mig(self.name, last, self.time), broker)

    def disconnect(self) -> None:
        self.broker = None

    def receive(self, message: PaperMessage) -> None:
        match message:
            case Pub(event=event):
                self._take(event)
            case Rep(events=events):
                for event in events:
                    self._take(event)
            case Filters(filters=known):
                for one in self.filters:
                    if one not in known:
                        self._tell(Sub, one)
                for one in known:
                    if one not in self.filters:
                        self._tell(Uns, one)
            case _:
                refuse(message, self.name)

    def _tell(self, kind: type[Sub] | type[Uns], one: str) -> None:
        if self.broker is not None:
            self.time += 1
            self._send(kind(one, self.name, self.time), self.broker)
