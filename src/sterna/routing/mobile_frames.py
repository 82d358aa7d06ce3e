"""The frames of strategy `mobile`: one byte for the kind, then a record.

    1 CLAIM    the sender reaches these nodes; passed on along the way that each was reached by before (BMIG)
    2 NEWS     how these nodes are reached by the sender now: told when there is time, or ahead of their messages
    3 DIGEST   of all that the sender reaches not through the receiver
    4 WANT     the digest differs from what the receiver of it knows: claim all of it
    5 ASK      two links lead to this node: it is to say where it is
    6 RECORD   what a node wants, whole (BSUB)
    7 DELTA    the same, as the difference to the version before
    8 QUERY    send these records (BQUERY)

Not among the compiled modules: msgspec reads the annotations of these records.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

from sterna.vocabulary.bounds import NODES_MAX, Address, Epoch, Node, Number, Sequence, Topic, Word
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.versions import LINK_UNTOLD

#: Numbers end before this; an honest node never comes near it.
VERSION_MAX = 2**40
#: How many hops an ASK goes at most.
HOPS_MAX = 64

Version = tuple[Epoch, Annotated[int, msgspec.Meta(ge=0, lt=VERSION_MAX)]]
Names = Annotated[list[Node], msgspec.Meta(max_length=NODES_MAX)]
Hops = Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]


class MobileKind(IntEnum):
    CLAIM = 1
    NEWS = 2
    DIGEST = 3
    WANT = 4
    ASK = 5
    RECORD = 6
    DELTA = 7
    QUERY = 8


class ReachedNode(msgspec.Struct, array_like=True, frozen=True):
    """A node, as the sender reaches it."""

    node: Node
    #: Counts the times that the node has said itself where it is.
    attachment: Version
    #: Of its record.
    version: Version
    #: Of the link sessions on the way: equal digests, equal ways, nothing lost between.
    digest: Word
    #: The last of its messages that the sender has heard of.
    frontier: tuple[Epoch, Sequence]
    #: Somewhere on the way there has been no link for so many seconds, rounded up; 0: it is reached.
    away_s: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0

    @property
    def away(self) -> bool:
        return self.away_s > 0


Entries = Annotated[list[ReachedNode], msgspec.Meta(max_length=NODES_MAX)]


class Claim(msgspec.Struct, array_like=True, frozen=True):
    #: The node that claimed first, and the number of its claim: each is believed once.
    wave: tuple[Node, Version]
    entries: Entries
    #: To everybody, from the node itself.
    flood: bool = False
    #: These are all: others are not reached by the sender.
    full: bool = False


class News(msgspec.Struct, array_like=True, frozen=True):
    entries: Entries


class Digest(msgspec.Struct, array_like=True, frozen=True):
    digest: Word


class RecordWanted(msgspec.Struct, array_like=True, frozen=True):
    pass


class Ask(msgspec.Struct, array_like=True, frozen=True):
    node: Node
    hops: Hops


class NodeRecord(msgspec.Struct, array_like=True, frozen=True):
    """A node in its own words."""

    node: Node
    version: Version
    filters: list[Topic] = []
    shares: list[tuple[Topic, Annotated[int, msgspec.Meta(ge=1, le=2**40)]]] = []
    feed: Address = ""
    clients: Address = ""
    closed: bool = False
    #: Of origins that are away, what the node carries: (origin, after, up to, from the beginning).
    carries: Annotated[
        list[tuple[Node, tuple[Epoch, Sequence], tuple[Epoch, Sequence], bool]], msgspec.Meta(max_length=NODES_MAX)
    ] = []
    #: For these readers; empty: for all.
    carries_for: Names = []
    #: The newest version of links that the node understands.
    speaks: Number = LINK_UNTOLD


class Delta(msgspec.Struct, array_like=True, frozen=True):
    """The record of the version before, with these filters more and those less."""

    node: Node
    version: Version
    add: list[Topic]
    remove: list[Topic]


class Query(msgspec.Struct, array_like=True, frozen=True):
    nodes: Names


MobileFrame = Claim | News | Digest | RecordWanted | Ask | NodeRecord | Delta | Query
_RECORDS: dict[int, type[MobileFrame]] = {
    MobileKind.CLAIM: Claim,
    MobileKind.NEWS: News,
    MobileKind.DIGEST: Digest,
    MobileKind.WANT: RecordWanted,
    MobileKind.ASK: Ask,
    MobileKind.RECORD: NodeRecord,
    MobileKind.DELTA: Delta,
    MobileKind.QUERY: Query,
}
_KINDS = {record: kind for kind, record in _RECORDS.items()}
_encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(record) for kind, record in _RECORDS.items()}

Frame = TypeVar("Frame", bound=MobileFrame)


def encode(frame: MobileFrame) -> bytes:
    return bytes((_KINDS[type(frame)],)) + _encode(frame)


def decode(body: bytes) -> MobileFrame:
    decoder = _decoders.get(body[0]) if body else None
    if decoder is None:
        raise LinkProtocolError("a routing frame of unknown kind")
    try:
        frame: MobileFrame = decoder.decode(body[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LinkProtocolError(f"a routing frame that cannot be read: {error}") from error
    return frame
