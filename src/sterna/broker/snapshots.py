"""Sessions, shares and retained messages whole, as a checkpoint keeps them.

Not among the compiled modules: msgspec reads the annotations of `Snapshot`, and mypyc does not keep them as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sterna.broker.durability import subscription_fields, will_fields
from sterna.broker.queue import OffsetQueue
from sterna.broker.session import Session
from sterna.broker.shares import Share
from sterna.broker.subscriptions import Grant
from sterna.mqtt.message import Message


class Snapshot(msgspec.Struct, array_like=True):
    """A session, whole.  Grants are listed once and referred to by number."""

    version: int
    expiry_s: int
    user: str | None
    disconnected_at: float
    will: list[Any] | None
    subscriptions: list[tuple[bytes, int, bool, bool, int]]
    next_packet_id: int
    #: (packet identifier, journal offset, grant number); offset and grant are -1 after PUBREC.
    inflight: list[tuple[int, int, int]]
    received: list[int]
    #: (first offset, how many follow each other, grant number): what waits tends to come in a row.
    queue: list[tuple[int, int, int]]
    grants: list[list[Any]]
    dropped_by_retention: int


def snapshot(session: Session) -> bytes:
    grants: dict[Grant, int] = {}

    def number(grant: Grant) -> int:
        return grants.setdefault(grant, len(grants))

    inflight = [
        (packet_id, -1, -1) if entry is None else (packet_id, entry[0].offset, number(entry[1]))
        for packet_id, entry in session.inflight.items()
    ]
    waiting = [(first, count, number(grant)) for first, count, grant in session.queue.runs()]
    will = will_fields(session.will)
    return msgspec.msgpack.encode(
        Snapshot(
            session.version,
            session.expiry_s,
            session.user,
            session.disconnected_at,
            None if will is None else list(will),
            [subscription_fields(s) for s in session.subscriptions.values()],
            session.next_packet_id,
            inflight,
            sorted(session.received),
            waiting,
            [list(grant) for grant in grants],
            session.dropped_by_retention,
        )
    )


def share_snapshot(share: Share) -> bytes:
    return msgspec.msgpack.encode([(first, count) for first, count, _ in share.queue.runs()])


def restore_share(queue: OffsetQueue[None], blob: bytes) -> None:
    for first, count in msgspec.msgpack.decode(blob, type=list[tuple[int, int]]):
        queue.push_run(first, count, None)


def retained_snapshot(message: Message) -> bytes:
    m = message
    fields = (m.payload, m.qos, m.properties, m.expires_at, m.publisher, m.received_at, m.offset)
    return msgspec.msgpack.encode(fields)


def restore_retained(topic: bytes, blob: bytes) -> Message:
    payload, qos, properties, expires_at, publisher, received_at, offset = msgspec.msgpack.decode(blob)
    return Message(topic, payload, qos, True, properties, expires_at, publisher, received_at, offset)
