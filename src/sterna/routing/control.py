"""What nodes say to each other besides messages: the frames of a link, by kind, and the records in them.

Not among the compiled modules: msgspec reads the annotations of these records, and mypyc does not keep them as they
are.  Everything here is small and rare compared with messages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import msgspec

from sterna.vocabulary.errors import LinkProtocolError


class Frame(IntEnum):
    """The first byte of every frame of a link."""

    ROUTING = 1
    ANNOUNCE = 2
    LOST = 3
    FETCH = 4
    PAGE = 5
    PROBE = 6
    ECHO = 7
    SEQUENCED = 8
    LOOSE = 9
    LETTER = 10
    NEWS = 11


class Announce(msgspec.Struct, array_like=True, frozen=True):
    """An origin says that it is here; floods."""

    origin: str
    epoch: int
    number: int
    #: Of the link sessions it came through: equal digests, equal paths, nothing lost between.
    digest: int
    #: Whoever hears this is to announce itself too.
    ask: bool
    #: Shared subscriptions with members at the origin, and how many.
    shares: list[tuple[bytes, int]]
    #: Where bulk readers find the origin's journal; empty: nowhere.
    feed: str
    #: Where clients reach the origin; empty: nobody is told.
    clients: str = ""
    #: It is being emptied: no client is to be sent there.
    closed: bool = False


class Lost(msgspec.Struct, array_like=True, frozen=True):
    """Origins that can no longer be reached through the sender, the one whose link was lost first."""

    origins: list[str]


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """A reader asks an origin for what it has missed."""

    origin: str
    number: int
    #: The stamp of the last message seen; None for a reader that has never read from this origin.
    after: tuple[int, int] | None
    #: How long the reader has belonged to the network.
    age_s: float
    #: What the reader wants; None: everything.
    filters: list[bytes] | None
    #: For a reader that is new: of what is retained, the topics after this one are still unknown to it; None: none are.
    retained_after: bytes | None
    #: What was retained from other origins too?
    retained_of_others: bool
    #: The nodes it came through, the reader first.
    hops: list[str]
    #: (origin, epoch, sequence): what the reader has read of others.
    have: list[tuple[str, int, int]] = []


class Page(msgspec.Struct, array_like=True, frozen=True):
    """An origin's answer: some messages, and how far they reach."""

    origin: str
    number: int
    #: The nodes it has yet to pass, the reader first.
    hops: list[str]
    reached: tuple[int, int]
    #: From here on everything arrives by itself.
    synced: bool
    #: Messages between `after` and `reached` that the origin no longer has.
    lost: int
    #: Bodies of SEQUENCED frames: the messages asked for; retained ones that are only to be remembered.
    messages: list[bytes]
    retained: list[bytes]
    #: The last topic of `retained`, if there is more.
    retained_after: bytes | None
    #: (origin, epoch, sequence): what comes next was published by somebody who had published that before, elsewhere.
    needs: tuple[str, int, int] | None = None


class Probe(msgspec.Struct, array_like=True, frozen=True):
    """Answered once everybody behind the receiver has answered; PROBE on the way out, ECHO on the way back."""

    asker: str
    number: int
    #: The echo is to say how far everybody's own messages had come when they passed it.
    with_frontiers: bool = False


class Echo(msgspec.Struct, array_like=True, frozen=True):
    asker: str
    number: int
    #: (node, epoch, sequence): what that node's clients publish after it finds the asker's wishes known.
    frontiers: list[tuple[str, int, int]] = []


class About(IntEnum):
    """What a letter is about: who is to read it."""

    PARTS = 1
    MOVES = 2


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """From one node to another, by the paths; may get lost when these change."""

    to: str
    sender: str
    epoch: int
    about: About
    body: bytes


Record = TypeVar("Record", Announce, Lost, Fetch, Page, Probe, Echo, Letter)

encode = msgspec.msgpack.Encoder().encode


def decode(body: bytes, record: type[Record]) -> Record:
    try:
        return msgspec.msgpack.decode(body, type=record)
    except msgspec.MsgspecError as error:
        raise LinkProtocolError(f"not a record of type {record.__name__}: {error}") from error
