"""The state of a session that survives a crash and goes along in a move.

A checkpoint and the journal hold it within `broker/session/stored_session.py`, and the last page of a move carries it.
`Session.state` and `Session.restore` convert: a new field stands here and there.  Every field has its bounds, because
the state comes over links, too.

Not among the compiled modules: msgspec reads these annotations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from sterna.mqtt.packets import Will
from sterna.mqtt.topics import is_topic_name
from sterna.mqtt.wire import check_text
from sterna.vocabulary.bounds import (
    TEXT_BYTES_MAX,
    TOPIC_LEVELS_MAX,
    Mark,
    Marks,
    NodeOrNobody,
    Number,
    OwnerNumber,
    PacketId,
    Qos,
    Seconds,
    Sequence,
    Topic,
)

#: Of MQTT: four bytes; the greatest one means for ever.
MqttSeconds = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
PacketIds = Annotated[list[PacketId], msgspec.Meta(max_length=65_535)]

#: Topic, payload, QoS, whether it is retained, delay, expiry, properties, whether the payload is text.
WillFields = tuple[Topic, bytes, Qos, bool, MqttSeconds, MqttSeconds | None, bytes, bool]

#: A node, and the number under which it owned a session.
OwnedSession = tuple[NodeOrNobody, OwnerNumber]


class BeginningState(msgspec.Struct, array_like=True, frozen=True):
    """How a session began that took another one's place; `broker/beginning.py` says what the fields mean."""

    number: OwnerNumber
    after: OwnerNumber
    is_clean: bool
    is_told: bool
    since: list[tuple[Topic, Marks]]
    early: list[Mark]
    left_to_old: Marks
    resumed: Marks
    taken_over: list[OwnedSession]
    before: list[BeginningState]
    went_back: list[OwnedSession]
    began_at: Seconds


class SessionState(msgspec.Struct, array_like=True, frozen=True):
    """Everything about a session that means the same at every node, but its subscriptions and its messages: a move
    sends those in parts of their own."""

    expiry_s: MqttSeconds
    will: WillFields | None
    next_packet_id: PacketId
    received: PacketIds
    sequence: tuple[Sequence, Sequence]
    dropped_by_retention: Number
    dropped_by_full_queue: Number
    beginning: BeginningState | None


def check_state(state: SessionState) -> None:
    """Raises ValueError or ProtocolError for a will that no client could have left."""
    if state.will is not None:
        topic = state.will[0]
        check_text(topic)
        if not is_topic_name(topic, TOPIC_LEVELS_MAX, TEXT_BYTES_MAX):
            raise ValueError("a will for something that is not a topic")


def will_fields(will: Will | None) -> WillFields | None:
    if will is None:
        return None
    w = will
    return w.topic, w.payload, w.qos, w.retain, w.delay_s, w.expiry_s, w.forwarded, w.utf8_payload


def will_from(fields: Iterable[Any] | None) -> Will | None:
    return None if fields is None else Will(*fields)
