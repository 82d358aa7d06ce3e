"""What two nodes say to each other about a session, and what all nodes say about who owns which.

    the new owner                the old owner
    PULL            ------->                    it has the client, and is to have the session
                    <-------     MIGTO          what the session wants to hear
    MIGTOACK        ------->                    from where on it will hear it
                    <-------     MIGSYNC ...    what it has not heard, and the rest of it, in pages
    MIGSYNCACK      ------->                    that is safe: of the last page, that the session is the new owner's
                    <-------     MIGACK         the old owner has forgotten it

A planned move begins with MIGTO.  Where the two nodes have nobody else to ask, MIGSYNC follows MIGTO at once.  MIGABORT
takes an offer back, MIGREFUSE turns one down; ABSENT says that there is no such session, or that somebody else owns it.
Every message may be lost and said again.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sterna.vocabulary.errors import LinkProtocolError

#: Owners told of in one frame.
OWNERS_A_FRAME = 512
BUCKETS = 256
#: Frames in which the subscriptions of one session are told.
PARTS_MAX = 256


class Pull(msgspec.Struct, tag=1, array_like=True, frozen=True):
    client: bytes
    number: int
    """Under which the asker will own it."""
    user: str | None
    ends: bool
    """The client wants to begin anew: end it."""


class Absent(msgspec.Struct, tag=2, array_like=True, frozen=True):
    client: bytes
    number: int
    owner: str
    """Empty: nobody, as far as the sender knows."""
    owner_number: int


class MigTo(msgspec.Struct, tag=3, array_like=True, frozen=True):
    client: bytes
    number: int
    version: int
    user: str | None
    subscriptions: list[tuple[bytes, int, bool, bool, int]]
    by_plan: bool
    part: int = 0
    """Of its subscriptions, if they are many; the offer stands when all have come."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)] = 1
    windows: list[tuple[bytes, int]] = []
    """With the first part: names of windows that begin with a subscription, and since when they are wanted."""
    vector: list[tuple[str, int, int]] | None = None
    """The session has stopped here, and its pages follow without being asked for."""


class MigToAck(msgspec.Struct, tag=4, array_like=True, frozen=True):
    client: bytes
    number: int
    vector: list[tuple[str, int, int]]
    """What comes after it the new owner will have."""
    heard: list[str]
    """Nodes that said so just now: whatever they sent before that has passed everybody between."""


class Item(msgspec.Struct, array_like=True, frozen=True):
    """A message that waits, or is on its way to the client under a packet identifier."""

    packet_id: int
    """0: it waits."""
    grant: list[Any]
    """Empty after PUBREC, when only the identifier matters."""
    message: bytes
    """With its identity, as links carry it."""


class Rest(msgspec.Struct, array_like=True, frozen=True):
    """Everything about a session but its messages."""

    expiry_s: int
    gone_s: float
    """For how long it has had no connection."""
    will: list[Any] | None
    next_packet_id: int
    received: list[int]
    sequence: tuple[int, int]
    dropped_by_retention: int
    dropped_by_full_queue: int
    vector: list[tuple[str, int, int]]
    """What the session has been served up to."""
    inheritance: list[Any] | None = None
    """What it knows of other sessions of its client."""


class MigSync(msgspec.Struct, tag=5, array_like=True, frozen=True):
    client: bytes
    number: int
    page: int
    items: list[Item]
    rest: Rest | None
    """With the last page."""
    states: list[tuple[bytes, bytes]] = []
    """What its expressions remember; of one that is long, the next piece."""


class MigSyncAck(msgspec.Struct, tag=6, array_like=True, frozen=True):
    client: bytes
    number: int
    page: int
    """WHOLE: the session is the sender's."""


class MigAck(msgspec.Struct, tag=7, array_like=True, frozen=True):
    client: bytes
    number: int
    is_gone: bool = False
    """The client hung up while its session was on its way: it has not been told where to go."""
    politely: bool = False
    """It said goodbye, and its will is not to be published."""
    acknowledged: list[int] = []
    """Of what was in flight, what the client has acknowledged to the old owner meanwhile,"""
    received: list[int] = []
    """and of what it has said PUBREC, which was not answered."""


class MigAbort(msgspec.Struct, tag=8, array_like=True, frozen=True):
    client: bytes
    number: int
    reason: str


class MigRefuse(msgspec.Struct, tag=9, array_like=True, frozen=True):
    client: bytes
    number: int
    reason: str
    is_ahead: bool = False
    """It cannot be taken as it stands, but if it goes on meanwhile."""


class Migrate(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """Somebody who may has asked for this session to be moved; said to the node that owns it."""

    client: bytes
    number: int
    target: str


class Evacuate(msgspec.Struct, tag=17, array_like=True, frozen=True):
    """Somebody who may has asked for the receiver to be emptied."""

    rate: float | None
    """Clients a second; None: as its configuration says."""
    stops: bool
    """It is to take clients again."""


class Remains(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The sender had a session of this client that the receiver has come to own, and this is left of it."""

    client: bytes
    number: int
    """Under which the sender had owned it."""
    user: str | None


class RemainsWanted(msgspec.Struct, tag=12, array_like=True, frozen=True):
    client: bytes
    number: int
    vector: list[tuple[str, int, int]]
    """What comes after it the new session has heard by itself."""


class RemainsPage(msgspec.Struct, tag=13, array_like=True, frozen=True):
    client: bytes
    number: int
    page: int
    filters: list[tuple[bytes, list[tuple[str, int, int]]]]
    """What the session had subscribed to, and what it had not heard of it."""
    items: list[Item]
    upto: list[tuple[str, int, int]] | None
    """With the last page: what it was not sent of what came up to here are the items, and no more."""
    early: list[tuple[str, int, int]] = []
    """What it had heard of it all the same."""
    added: list[tuple[str, int]] = []
    """With the last page: nodes and numbers of sessions whose remains had been added to it."""


class RemainsAck(msgspec.Struct, tag=14, array_like=True, frozen=True):
    client: bytes
    number: int
    page: int
    """WHOLE: all of it is safe.  UNWANTED: there is no use for it."""


class Rivals(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """The sender owns this client's session: does the receiver have anything of it?"""

    client: bytes
    number: int


class NoRemains(msgspec.Struct, tag=16, array_like=True, frozen=True):
    client: bytes
    number: int


WHOLE = -1
UNWANTED = -2

OfRemains = Remains | RemainsWanted | RemainsPage | RemainsAck | Rivals | NoRemains
Message = OfRemains | Migrate | Pull | Absent | MigTo | MigToAck | MigSync | MigSyncAck | MigAck | MigAbort | MigRefuse

#: client, node ("": nobody), number
OwnerEntry = tuple[bytes, str, int]


class Owners(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """News of who owns what; passed on by whoever did not know it."""

    entries: list[OwnerEntry]
    after: list[tuple[str, int, int]] = []
    """(node, epoch, sequence): how far the messages of those they had before had come."""


class Digests(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """What the sender knows, in short: a number for each part of the table."""

    numbers: list[int]


#: client, when it came, as which user
ClaimEntry = tuple[bytes, float, str | None]


class Claims(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Clients have connected whose sessions nobody keeps: other connections of the same names are to end."""

    node: str
    entries: list[ClaimEntry]


News = Owners | Digests | Claims

encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message | Evacuate)
_news = msgspec.msgpack.Decoder(News)


def decode(body: bytes) -> Message | Evacuate:
    try:
        found: Message | Evacuate = _message.decode(body)
    except msgspec.MsgspecError as error:
        raise LinkProtocolError(f"not a message about a session: {error}") from error
    return found


def decode_news(body: bytes) -> News:
    try:
        found: News = _news.decode(body)
    except msgspec.MsgspecError as error:
        raise LinkProtocolError(f"not news about sessions: {error}") from error
    return found
