"""Messages of the papers' publish/subscribe protocols, with the bytes that their fields take.

The names are the thesis' own.  It gives no sizes: an identifier or a filter takes two bytes here, a timestamp two, a
hop count one, an event its topic, its identity and 16 bytes of payload.  Above the radio's own headers each message has
those of Castalia's routing layer (10 bytes) and application layer (8).
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

Name = str
"""Of a broker, a subscriber or a publisher."""

HEADER_BYTES = 18
NAME_BYTES = 2
TIME_BYTES = 2
HOPS_BYTES = 1
EVENT_BYTES = NAME_BYTES + 4 + 16
ENTRY_BYTES = NAME_BYTES + TIME_BYTES + HOPS_BYTES


class PaperEvent(msgspec.Struct, frozen=True):
    """A publication; a filter matches it if it is its topic."""

    topic: str
    publisher: Name
    number: int
    hops: int = 0
    """Over the radio so far, counted anew after a replay."""

    def one_hop_on(self) -> PaperEvent:
        return PaperEvent(self.topic, self.publisher, self.number, self.hops + 1)

    def replayed(self) -> PaperEvent:
        return PaperEvent(self.topic, self.publisher, self.number)


class PaperMessage(msgspec.Struct, frozen=True):
    """Of any kind; a subclass per kind."""

    @property
    def field_bytes(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.field_bytes


def refuse(message: PaperMessage, name: Name) -> NoReturn:
    """A protocol has no such message: the harness has mixed two of them up."""
    raise TypeError(f"{type(message).__name__} is no message for {name}")


class Sub(PaperMessage, frozen=True):
    filter: str
    subscriber: Name = ""
    """Simple Routing does not say whose it is."""
    time: int = 0
    hops: int = 0

    @property
    def field_bytes(self) -> int:
        return 2 * NAME_BYTES + TIME_BYTES + HOPS_BYTES


class Uns(PaperMessage, frozen=True):
    filter: str
    subscriber: Name = ""
    time: int = 0
    hops: int = 0

    @property
    def field_bytes(self) -> int:
        return 2 * NAME_BYTES + TIME_BYTES + HOPS_BYTES


class Pub(PaperMessage, frozen=True):
    event: PaperEvent

    @property
    def field_bytes(self) -> int:
        return EVENT_BYTES


class Mig(PaperMessage, frozen=True):
    """A subscriber is at another broker."""

    subscriber: Name
    broker: Name
    time: int = 0
    """MFT-PubSub: the subscriber's counter.  Phoenix: the time of the last event it has."""
    hops: int = 0

    @property
    def field_bytes(self) -> int:
        return 2 * NAME_BYTES + TIME_BYTES + HOPS_BYTES


class Rep(PaperMessage, frozen=True):
    """Events that waited for a subscriber, several in one message as the thesis suggests."""

    events: tuple[PaperEvent, ...]
    subscriber: Name

    @property
    def field_bytes(self) -> int:
        return NAME_BYTES + EVENT_BYTES * len(self.events)


class Filters(PaperMessage, frozen=True):
    """All that a broker knows of a subscriber, told to itself."""

    filters: tuple[str, ...]

    @property
    def field_bytes(self) -> int:
        return NAME_BYTES * len(self.filters)


class ProxyMig(PaperMessage, frozen=True):
    """BMIG of the first approach: a broker speaks for the subscribers that are connected to it."""

    subscribers: tuple[Name, ...]
    broker: Name

    @property
    def field_bytes(self) -> int:
        return NAME_BYTES * (1 + len(self.subscribers))


class Btab(PaperMessage, frozen=True):
    """A whole routing table: filters by subscriber."""

    table: tuple[tuple[Name, tuple[str, ...]], ...]

    @property
    def field_bytes(self) -> int:
        return sum(2 * NAME_BYTES * len(filters) for _, filters in self.table)


class Fmig(PaperMessage, frozen=True):
    """Migrate, too."""


class BmigLine(msgspec.Struct, frozen=True, order=True):
    """A line of BMIG: how new a broker's knowledge of a subscriber is, and how near it believes it to be."""

    subscriber: Name
    time: int
    hops: int


class Bmig(PaperMessage, frozen=True):
    """BMIG of MFT-PubSub."""

    children: tuple[BmigLine, ...]
    others: tuple[BmigLine, ...]
    hops: int

    @property
    def field_bytes(self) -> int:
        return HOPS_BYTES + ENTRY_BYTES * (len(self.children) + len(self.others))


class Bquery(PaperMessage, frozen=True):
    subscriber: Name
    time: int
    hops: int

    @property
    def field_bytes(self) -> int:
        return ENTRY_BYTES


class Bsub(PaperMessage, frozen=True):
    """All filters of a subscriber, as the broker that issued this knows them."""

    subscriber: Name
    filters: tuple[str, ...]
    time: int
    hops: int
    """Of the broker that issued it, not changed on the way."""
    travelled: int

    @property
    def field_bytes(self) -> int:
        return ENTRY_BYTES + HOPS_BYTES + NAME_BYTES * len(self.filters)
