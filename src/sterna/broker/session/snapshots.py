"""Snapshots of sessions, shares and retained messages for a checkpoint.

Not among the compiled modules: msgspec reads the annotations of `Snapshot`, and mypyc does not keep them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.publisher_sequence import NO_NUMBER
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import subscription_fields, will_fields
from sterna.broker.session.shares import SharedSubscription
from sterna.broker.session.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity, Stamp, VersionVector


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
    #: (first offset, how many follow each other, grant number): what waits tends to come in a row.  What does not:
    #: (offsets as 8 bytes each, a byte per message, grant numbers the bytes are places in).
    queue: list[tuple[int | bytes, int | bytes, int | list[int]]]
    grants: list[list[Any]]
    dropped_by_retention: int
    dropped_by_full_queue: int = 0
    sequence: tuple[int, int] = NO_NUMBER
    life: int = 0
    number: int = 0
    leaving: tuple[str, int] | None = None
    barrier: list[tuple[str, int, int]] = []
    beginning: list[Any] | None = None
    told: list[tuple[str, int, int]] = []
    came: tuple[int, str, int, int] | None = None


def snapshot(session: Session) -> bytes:
    grants: dict[Grant, int] = {}

    def number(grant: Grant) -> int:
        return grants.setdefault(grant, len(grants))

    inflight = [
        (packet_id, -1, -1) if entry is None else (packet_id, entry[0].offset, number(entry[1]))
        for packet_id, entry in session.inflight.items()
    ]

    waiting: list[tuple[int | bytes, int | bytes, int | list[int]]] = []
    for part in session.queue.parts():
        if isinstance(part[0], int):
            waiting.append((part[0], part[1], number(part[2])))
        else:
            waiting.append((part[0], part[1], [number(grant) for grant in part[2]]))
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
            session.dropped_by_full_queue,
            session.sequence,
            session.life,
            session.number,
            session.leaving,
            [(origin, *stamp) for origin, stamp in sorted(session.barrier.items())],
            None if session.beginning is None else session.beginning.fields(),
            [(origin, *stamp) for origin, stamp in sorted(session.told.items())],
            session.came,
        )
    )


def restore_queue(
    queue: OffsetQueue[Grant], parts: list[tuple[int | bytes, int | bytes, int | list[int]]], grants: list[Grant]
) -> None:
    for first, count, grant in parts:
        if isinstance(first, int) and isinstance(count, int) and isinstance(grant, int):
            queue.push_run(first, count, grants[grant])
        elif isinstance(first, bytes) and isinstance(count, bytes) and isinstance(grant, list):
            queue.push_block(first, count, [grants[number] for number in grant])
        else:
            raise ValueError("a queue of runs and blocks holds something else")


def share_snapshot(share: SharedSubscription, lent: list[int]) -> bytes:
    """What waits for a share; before it what has been `lent` to members whose sessions a crash ends."""
    waiting = [(first, count) for first, count, _ in share.queue.parts()]
    return msgspec.msgpack.encode([*((offset, 1) for offset in lent), *waiting])


def restore_share(queue: OffsetQueue[None], blob: bytes) -> None:
    for first, count in msgspec.msgpack.decode(blob, type=list[tuple[int | bytes, int | bytes]]):
        if isinstance(first, int) and isinstance(count, int):
            queue.push_run(first, count, None)
        elif isinstance(first, bytes) and isinstance(count, bytes):
            queue.push_block(first, count, [None])
        else:
            raise ValueError("a queue of runs and blocks holds something else")


def retained_snapshot(message: Message) -> bytes:
    m = message
    fields = (m.payload, m.qos, m.properties, m.expires_at, m.publisher, m.received_at, m.offset, m.identity)
    return msgspec.msgpack.encode(fields)


def restore_retained(topic: bytes, blob: bytes) -> Message:
    payload, qos, properties, expires_at, publisher, received_at, offset, identity = msgspec.msgpack.decode(blob)
    message = Message(topic, payload, qos, True, properties, expires_at, publisher, received_at, offset)
    message.identity = None if identity is None else Identity(*identity)
    return message


def vector_snapshot(vector: VersionVector, shared: dict[str, list[tuple[bytes, int]]]) -> bytes:
    """How far other nodes' messages have been read, and what members of shared subscriptions those nodes have."""
    entries = [(origin, *stamp) for origin, stamp in sorted(vector.items())]
    return msgspec.msgpack.encode((entries, sorted(shared.items())))


def restore_vector(blob: bytes) -> tuple[VersionVector, dict[str, list[tuple[bytes, int]]]]:
    kind = tuple[list[tuple[str, int, int]], list[tuple[str, list[tuple[bytes, int]]]]]
    entries, shared = msgspec.msgpack.decode(blob, type=kind)
    return {origin: Stamp(epoch, sequence) for origin, epoch, sequence in entries}, dict(shared)


class OwnerRow(msgspec.Struct, array_like=True):
    """An older release did not say as which user."""

    client_id: bytes
    node: str
    number: int
    user: str | None = None
    since: int = 0
    stands: bool = False


def owners_snapshot(owners: Sequence[tuple[bytes, str, int, str | None, int, bool]]) -> bytes:
    """Part of the table of who owns which session."""
    return msgspec.msgpack.encode(owners)


def restore_owners(blob: bytes) -> list[OwnerRow]:
    return msgspec.msgpack.decode(blob, type=list[OwnerRow])
