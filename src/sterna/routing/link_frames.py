"""The frames of a link other than messages, by kind, and the records in them.

Not among the compiled modules: msgspec reads the annotations of these records, and mypyc does not keep them as they
are.  Everything here is small and rare compared with messages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

from sterna.vocabulary.bounds import (
    NUMBER_MAX,
    Address,
    Epoch,
    Mark,
    Marks,
    Node,
    NodeOrNobody,
    Nodes,
    Number,
    Seconds,
    Sequence,
    Topic,
    Word,
)
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.versions import LINK_UNTOLD

#: Filters a FETCH lists at most.
FETCHED_FILTERS_MAX = 256
#: Groups it lists at most.
FETCHED_GROUPS_MAX = 256


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

    origin: Node
    epoch: Epoch
    number: Number
    #: Of the link sessions it came through: equal digests, equal paths, nothing lost between.
    digest: Word
    #: A node that hears this announces itself too.
    ask: bool
    #: Shared subscriptions with members at the origin, and how many.
    shares: list[tuple[Topic, Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]]]
    #: Where bulk readers find the origin's journal; empty: nowhere.
    feed: Address
    #: Where clients reach the origin; empty: nobody is told.
    clients: Address = ""
    #: It is being emptied: no client is to be sent there.
    closed: bool = False
    #: The newest version of links that it understands.
    speaks: Number = LINK_UNTOLD


class Lost(msgspec.Struct, array_like=True, frozen=True):
    """Origins that can no longer be reached through the sender, the one whose link was lost first."""

    origins: Nodes


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """A reader asks an origin for what it has missed."""

    origin: Node
    number: Number
    #: The stamp of the last message seen; None for a reader that has never read from this origin.
    after: tuple[Epoch, Sequence] | None
    #: How long the reader has belonged to the network.
    age_s: Seconds
    #: The filters of the reader; None: everything.
    filters: Annotated[list[Topic], msgspec.Meta(max_length=FETCHED_FILTERS_MAX)] | None
    #: For a reader that is new: of what is retained, the topics after this one are still unknown to it; None: none are.
    retained_after: Topic | None
    #: Is everything retained from other origins wanted too?
    retained_of_others: bool
    #: The nodes it came through, the reader first.
    hops: Nodes
    #: (origin, epoch, sequence): what the reader has read of others.
    have: Marks = []
    #: Shared subscriptions of the reader that the origin had not heard of when it took in what comes next.
    groups: Annotated[list[Topic], msgspec.Meta(max_length=FETCHED_GROUPS_MAX)] = []
    #: The node that is asked instead of the origin, which is away; empty: the origin.
    carrier: NodeOrNobody = ""


class Page(msgspec.Struct, array_like=True, frozen=True):
    """An origin's answer: some messages, and how far they reach."""

    origin: Node
    number: Number
    #: The nodes it has yet to pass, the reader first.
    hops: Nodes
    reached: tuple[Epoch, Sequence]
    #: From here on everything arrives by itself.
    synced: bool
    #: Messages between `after` and `reached` that the origin no longer has.
    lost: Number
    #: Bodies of SEQUENCED frames: the messages asked for; retained ones that are only to be remembered.
    messages: list[bytes]
    retained: list[bytes]
    #: The last topic of `retained`, if there is more.
    retained_after: Topic | None
    #: (origin, epoch, sequence): what comes next was published by somebody who had published that before, elsewhere.
    needs: Mark | None = None


class ProbeFrame(msgspec.Struct, array_like=True, frozen=True):
    """Answered once everybody behind the receiver has answered; PROBE on the way out, ECHO on the way back."""

    asker: Node
    number: Number
    #: The echo is to say how far everybody's own messages had come when they passed it.
    with_frontiers: bool = False


class EchoFrame(msgspec.Struct, array_like=True, frozen=True):
    asker: Node
    number: Number
    #: (node, epoch, sequence): what that node's clients publish after it finds the asker's wishes known.
    frontiers: Marks = []
    #: Those of them that had everything the asker had sent before the probe: their streams of it were synced.
    readers: Nodes = []


class About(IntEnum):
    """Subjects of letters: who is to read them."""

    PARTS = 1
    MOVES = 2
    MANAGEMENT = 3


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """From one node to another, by the paths; may get lost when these change."""

    to: Node
    sender: Node
    epoch: Epoch
    about: About
    body: bytes


Record = TypeVar("Record", Announce, Lost, Fetch, Page, ProbeFrame, EchoFrame, Letter)

encode = msgspec.msgpack.Encoder().encode


def decode(body: bytes, record: type[Record]) -> Record:
    try:
        return msgspec.msgpack.decode(body, type=record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise LinkProtocolError(f"not a record of type {record.__name__}: {error}") from error
