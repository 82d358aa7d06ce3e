"""Snapshots of everything but sessions for a checkpoint: shares, retained messages, what other nodes have told.

Not among the compiled modules: msgspec reads the annotations of `OwnerRow`, and mypyc does not keep them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.shares import SharedSubscription
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity, VersionVector


def share_snapshot(share: SharedSubscription, lent: list[int]) -> bytes:
    """Messages that wait for a share; before them those `lent` to members whose sessions a crash ends."""
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


class VectorRow(msgspec.Struct, array_like=True):
    """How far other nodes' messages have been read, what members of shared subscriptions those nodes have, and to whom
    messages were given whose groups were unknown here when they entered."""

    vector: list[tuple[str, int, int]]
    shared: list[tuple[str, list[tuple[bytes, int]]]]
    late: list[tuple[bytes, int, int, str]] = []


def vector_snapshot(
    vector: VersionVector, shared: dict[str, list[tuple[bytes, int]]], late: list[tuple[bytes, int, int, str]]
) -> bytes:
    entries = [(origin, *stamp) for origin, stamp in sorted(vector.items())]
    return msgspec.msgpack.encode(VectorRow(entries, sorted(shared.items()), late))


def restore_vector(blob: bytes) -> VectorRow:
    return msgspec.msgpack.decode(blob, type=VectorRow)


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
