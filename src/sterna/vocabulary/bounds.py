"""How big the numbers and names may be that nodes tell each other: types for the records of links.

Everything decoded with them can be counted on, written down and encoded again.

Not among the compiled modules: msgspec reads these annotations.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: No counter of an honest node comes near it, and a few more still fit into eight bytes.
NUMBER_MAX = 2**62
EPOCH_MAX = 2**32 - 1
#: Microseconds: beyond the year 4000, and exact enough as a float.
INSTANT_MAX_US = 2**56
SECONDS_MAX = 1e11
#: Nodes a network may have, those included that are gone.
NODES_MAX = 4096
#: Publishers of whom a node remembers when they came to it; one of long ago everybody has heard of.
PUBLISHERS_MAX = 10_000
#: Levels of a topic that any node may be configured to take.
TOPIC_LEVELS_MAX = 512
#: Bytes of any text of MQTT.
TEXT_BYTES_MAX = 65_535

#: Numbers under which sessions are owned begin as milliseconds of a clock, and then count on.  This is the year 10889.
OWNER_CLOCK_MAX = 2**48
#: Past every clock a number is believed if it follows on what is known by no more than this.
OWNER_STEPS_MAX = 1000
OWNER_NUMBER_MAX = 2**53
#: A new session's number is higher than the old one's by so much: it counts, however often the old one moves.
NEW_SESSION_STEPS = 2**20

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: Eight bytes: MessagePack has no larger ones.
Word = Annotated[int, Meta(ge=0)]
Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
#: -1: before the first.
Sequence = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
Instant = Annotated[int, Meta(ge=0, le=INSTANT_MAX_US)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
OwnerNumber = Annotated[int, Meta(ge=0, le=OWNER_NUMBER_MAX)]
PacketId = Annotated[int, Meta(ge=0, le=65_535)]
Qos = Annotated[int, Meta(ge=0, le=2)]
SubscriptionId = Annotated[int, Meta(ge=0, le=268_435_455)]

#: As a handshake has it.
Node = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
NodeOrNobody = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_BYTES_MAX)]
Reason = Annotated[str, Meta(max_length=1000)]
Address = Annotated[str, Meta(max_length=300)]
Topic = Annotated[bytes, Meta(max_length=TEXT_BYTES_MAX)]
Client = Annotated[bytes, Meta(min_length=1, max_length=TEXT_BYTES_MAX)]

#: (node, epoch, sequence): how far that node's messages had come.
Mark = tuple[NodeOrNobody, Epoch, Sequence]
Marks = Annotated[list[Mark], Meta(max_length=3 * NODES_MAX)]
Nodes = Annotated[list[NodeOrNobody], Meta(max_length=2 * NODES_MAX)]


def can_own(number: int, known: int) -> bool:
    """Can a session be owned under this number, if it was last owned under the known one?  A clock that is wrong by
    years makes such numbers, too, and is believed: the next owner counts on from there."""
    return number <= OWNER_CLOCK_MAX or number <= min(known + OWNER_STEPS_MAX, OWNER_NUMBER_MAX)
