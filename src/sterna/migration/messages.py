"""Messages between two nodes about a session, and between all nodes about who owns which.

    the new owner                the old owner
    PULL            ------->                    it has the client, and is to have the session
                    <-------     MIGTO          what the session wants to hear
    MIGTOACK        ------->                    from where on it will hear it
                    <-------     MIGSYNC ...    what it has not heard, and the rest of it, in pages
    MIGSYNCACK      ------->                    that is safe: of the last page, that the session is the new owner's
                    <-------     MIGACK         the old owner has forgotten it

A planned move begins with MIGTO.  If its client is connected, and not through a gateway, MIGTOACK says first that the
new owner is prepared; the client is sent there, and MIGTOACK is said again when it has come.  In other moves
MIGSYNC follows MIGTO at once, if it can.  MIGABORT takes an offer back, MIGREFUSE turns one down; ABSENT says
that there is no such session, or that somebody else owns it.  Every message may be lost and said again.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sterna.broker.session.outbox import packet_ends
from sterna.journal.session_state import BeginningState, PacketIds, SessionState, check_state
from sterna.mqtt.topics import SHARE, is_topic_filter, split_share
from sterna.mqtt.wire import check_text
from sterna.vocabulary.bounds import (
    NUMBER_MAX,
    SECONDS_MAX,
    TEXT_BYTES_MAX,
    TOPIC_LEVELS_MAX,
    Client,
    Epoch,
    Instant,
    Marks,
    Node,
    NodeOrNobody,
    Nodes,
    OwnerNumber,
    PacketId,
    Qos,
    Reason,
    Seconds,
    SubscriptionId,
    Text,
    Topic,
    Word,
)
from sterna.vocabulary.errors import LinkProtocolError, ProtocolError

#: Owners told of in one frame.
OWNERS_A_FRAME = 512
BUCKETS = 256
#: Frames in which the subscriptions of one session are told.
PARTS_MAX = 256


class Pull(msgspec.Struct, tag=1, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    """Under which the asker will own it."""
    user: Text | None
    ends: bool
    """The client wants to begin anew: end it."""


class Absent(msgspec.Struct, tag=2, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    owner: NodeOrNobody
    """Empty: nobody, as far as the sender knows."""
    owner_number: OwnerNumber
    owner_user: Text | None = None


class MigTo(msgspec.Struct, tag=3, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    version: Annotated[int, msgspec.Meta(ge=3, le=5)]
    user: Text | None
    subscriptions: list[tuple[Topic, Qos, bool, bool, SubscriptionId]]
    by_plan: bool
    part: Annotated[int, msgspec.Meta(ge=0, lt=PARTS_MAX)] = 0
    """Of its subscriptions, if they are many; the offer stands when all have come."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)] = 1
    windows: list[tuple[Topic, Instant]] = []
    """With the first part: the parts of its expressions, and for how many microseconds they have been wanted."""
    vector: Marks | None = None
    """The session has stopped here, and its pages follow without being asked for."""
    on_arrival: bool = False
    """Its client is served here until it has come: the session follows it, and not before."""
    epoch: Epoch | None = None
    """Of the start of the receiver that this is said to: no other one takes it."""
    asks: bool = False
    """The receiver is to ask all nodes from where on it hears them: ways have changed meanwhile."""
    is_greeted: bool = False
    """Its client may have its CONNACK, with Session Present, before the session is there."""
    is_called: bool = False
    """Its client has been sent already: no answer is waited for before it has come."""


class MigToAck(msgspec.Struct, tag=4, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    vector: Marks
    """The new owner will have everything that comes after it."""
    heard: Nodes
    """Nodes that said so just now: whatever they sent before that has passed everybody between."""
    is_first: bool = False
    """Its client is not here yet, and may be sent."""
    is_asked: bool = True
    """They have been asked; else nothing of them is missing here, and this word tells all on the way what is wanted."""


class Item(msgspec.Struct, array_like=True, frozen=True):
    """A message that waits, or is on its way to the client under a packet identifier."""

    packet_id: PacketId
    """0: it waits."""
    grant: list[Any]
    """Empty after PUBREC, when only the identifier matters."""
    message: bytes
    """With its identity, as links carry it."""


class MigSync(msgspec.Struct, tag=5, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    page: Annotated[int, msgspec.Meta(ge=-2, le=NUMBER_MAX)]
    items: list[Item]
    states: list[tuple[bytes, bytes]] = []
    """States of its expressions; of one that is long, the next piece."""
    session: SessionState | None = None
    """With the last page: everything but its subscriptions and messages;"""
    gone_s: Annotated[float, msgspec.Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)] = 0.0
    """for how long it has had no connection (negative: for how long its client is to be waited for);"""
    vector: Marks = []
    """what it has been served up to;"""
    unsaid: bytes | None = None
    """packets at QoS 0 that came for its client after that was sent on; None: it has not been;"""
    loose: Marks = []
    """up to which body of each node it has been given messages at QoS 0."""


class MigSyncAck(msgspec.Struct, tag=6, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    page: Annotated[int, msgspec.Meta(ge=-2, le=NUMBER_MAX)]
    """WHOLE: the session is the sender's."""


class MigAck(msgspec.Struct, tag=7, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    is_gone: bool = False
    """The client hung up while its session was on its way: it has not been told where to go."""
    politely: bool = False
    """It said goodbye, and its will is not to be published."""
    acknowledged: PacketIds = []
    """Of what was in flight, what the client has acknowledged to the old owner meanwhile,"""
    received: PacketIds = []
    """and of what it has said PUBREC, which was not answered."""


class MigAbort(msgspec.Struct, tag=8, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    reason: Reason


class MigRefuse(msgspec.Struct, tag=9, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    reason: Reason
    is_ahead: bool = False
    """It cannot be taken as it stands, but if it goes on meanwhile."""


class Migrate(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """Somebody who may has asked for this session to be moved; said to the node that owns it."""

    client: Client
    number: OwnerNumber
    target: Node


class Evacuate(msgspec.Struct, tag=17, array_like=True, frozen=True):
    """Somebody who may has asked for the receiver to be emptied."""

    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None
    """Clients a second; None: as its configuration says."""
    stops: bool
    """It is to take clients again."""


class HandOver(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The sender has a fenced session of this client, whose session the receiver owns: it offers what waits there."""

    client: Client
    number: OwnerNumber
    """Under which the sender had owned it."""
    user: Text | None
    opened_s: Seconds | None
    """How long ago its client connected last; None if it never did at the sender."""


class HandOverWanted(msgspec.Struct, tag=12, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    vector: Marks
    """The new session's begin vector: the fenced one first reads on as far."""


class HandOverPage(msgspec.Struct, tag=13, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    page: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
    items: list[Item]
    vector: Marks | None = None
    """With the last page: how far the fenced session has read."""
    beginning: BeginningState | None = None
    """With the last page: how it began, if it had taken another session's place."""


class HandOverAck(msgspec.Struct, tag=14, array_like=True, frozen=True):
    client: Client
    number: OwnerNumber
    page: Annotated[int, msgspec.Meta(ge=-2, le=NUMBER_MAX)]
    """WHOLE: all of it is safe.  UNWANTED: there is no use for it."""


WHOLE = -1
UNWANTED = -2

OfHandOver = HandOver | HandOverWanted | HandOverPage | HandOverAck
Message = OfHandOver | Migrate | Pull | Absent | MigTo | MigToAck | MigSync | MigSyncAck | MigAck | MigAbort | MigRefuse

#: client, node ("": nobody), number, user, the number under which that user came to have it, whether it stands
OwnerEntry = tuple[Client, NodeOrNobody, OwnerNumber, Text | None, OwnerNumber, bool]


class Owners(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """News of who owns what; passed on by whoever did not know it."""

    entries: Annotated[list[OwnerEntry], msgspec.Meta(max_length=OWNERS_A_FRAME)]
    after: Marks = []
    """(node, epoch, sequence): how far the messages of those they had before had come."""
    is_fresh: bool = False
    """It has just come about: a client that begins its session is kept waiting until everybody has heard."""


class Digests(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Digests of the sender's directory: a number for each part of the table."""

    numbers: Annotated[list[Word], msgspec.Meta(max_length=BUCKETS)]


#: client, when it came, as which user, whether it was there before one of another user's
ClaimEntry = tuple[Client, Seconds, Text | None, bool]


class Claims(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Clients have connected whose sessions nobody keeps: other connections of the same names are to end."""

    node: Node
    entries: Annotated[list[ClaimEntry], msgspec.Meta(max_length=OWNERS_A_FRAME)]


News = Owners | Digests | Claims

encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message | Evacuate)
_news = msgspec.msgpack.Decoder(News)


def decode(body: bytes) -> Message | Evacuate:
    try:
        found: Message | Evacuate = _message.decode(body)
        if not isinstance(found, Evacuate):
            check_text(found.client)
        if isinstance(found, MigTo):
            for fields in found.subscriptions:
                _check_filter(fields[0])
        elif isinstance(found, MigSync) and found.session is not None:
            check_state(found.session)
            _check_loose(found.unsaid or b"")
    except (msgspec.MsgspecError, ValueError, RecursionError, ProtocolError) as error:
        raise LinkProtocolError(f"not a message about a session: {error}") from error
    return found


def _check_filter(topic_filter: bytes) -> None:
    check_text(topic_filter)
    shared = split_share(topic_filter) if topic_filter.startswith(SHARE) else (b"", topic_filter)
    if shared is None or not is_topic_filter(shared[1], TOPIC_LEVELS_MAX, TEXT_BYTES_MAX):
        raise ValueError("a subscription to something that is not a topic filter")


def _check_loose(data: bytes) -> None:
    start = 0
    for end in packet_ends(data):
        if data[start] & 0xF6 != 0x30:
            raise ValueError("packets for a client that are no messages at QoS 0")
        start = end
    if start != len(data):
        raise ValueError("packets for a client that are not whole")


def decode_news(body: bytes) -> News:
    try:
        found: News = _news.decode(body)
        if not isinstance(found, Digests):
            for entry in found.entries:
                check_text(entry[0])
    except (msgspec.MsgspecError, ValueError, RecursionError, ProtocolError) as error:
        raise LinkProtocolError(f"not news about sessions: {error}") from error
    return found
