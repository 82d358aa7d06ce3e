"""A session as its node stores it: in a checkpoint, and in the journal's event IMPORTED.

The record holds the state that would go along in a move, and beside it the fields that only this node can read: journal
offsets, times of its running clock, its place among the owners.

Not among the compiled modules: msgspec reads the annotations of `StoredSession`, and mypyc does not keep them as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sterna.broker.beginning import VectorFields, vector_fields, vector_from
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant, SubscriptionFields, grant_from, subscription_fields
from sterna.journal.session_state import SessionState

#: (first offset, how many follow each other, grant number): messages that wait tend to come in a row.  Those that do
#: not: (offsets as 8 bytes each, a byte per message, grant numbers the bytes are places in).
QueuePart = tuple[int | bytes, int | bytes, int | list[int]]

#: (journal offset, grant) of a message in flight; None after PUBREC.  For a foreign broker the message is kept after
#: PUBREC, too: its offset is negative then, see `in_doubt`.
Unresolved = tuple[int, Grant] | None


class StoredSession(msgspec.Struct, array_like=True, frozen=True):
    """A session, whole.  Grants are listed once and referred to by number."""

    state: SessionState
    version: int
    user: str | None
    subscriptions: list[SubscriptionFields]
    disconnected_at: float
    life: int
    number: int
    leaving: tuple[str, int] | None
    barrier: VectorFields
    told: VectorFields
    came: tuple[int, str, int, int] | None
    #: (packet identifier, journal offset, grant number); offset and grant are -1 after PUBREC.
    inflight: list[tuple[int, int, int]]
    queue: list[QueuePart]
    grants: list[list[Any]]
    opened_wall: float = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(StoredSession)


def encode(session: Session) -> bytes:
    grants: dict[Grant, int] = {}

    def number(grant: Grant) -> int:
        return grants.setdefault(grant, len(grants))

    inflight = [(packet_id, *_place(session, packet_id, number)) for packet_id in session.inflight]
    queue: list[QueuePart] = []
    for part in session.queue.parts():
        if isinstance(part[0], int):
            queue.append((part[0], part[1], number(part[2])))
        else:
            queue.append((part[0], part[1], [number(grant) for grant in part[2]]))
    return _encode(
        StoredSession(
            state=session.state(),
            version=session.version,
            user=session.user,
            subscriptions=[subscription_fields(one) for one in session.subscriptions.values()],
            disconnected_at=session.disconnected_at,
            life=session.life,
            number=session.number,
            leaving=session.leaving,
            barrier=vector_fields(session.barrier),
            told=vector_fields(session.told),
            came=session.came,
            inflight=inflight,
            queue=queue,
            grants=[list(grant) for grant in grants],
            opened_wall=session.opened_wall,
        )
    )


def _place(session: Session, packet_id: int, number: Callable[[Grant], int]) -> tuple[int, int]:
    """Where a message in flight is, and the number of its grant."""
    entry = session.inflight[packet_id]
    if entry is not None:
        return entry[0].offset, number(entry[1])
    kept = (session.in_doubt or {}).get(packet_id)
    return (-1, -1) if kept is None else (in_doubt(kept[0].offset), number(kept[1]))


def in_doubt(offset: int) -> int:
    """Stands for a message at this offset that a foreign broker has received and not completed; and the other way
    round."""
    return -2 - offset


def decode(blob: bytes) -> StoredSession:
    """Raises ValueError if it is something else."""
    return _decoder.decode(blob)


def restore(session: Session, stored: StoredSession) -> dict[int, Unresolved]:
    """Puts everything back but the subscriptions; what was in flight is returned, for it has to be read first.

    Raises ValueError or IndexError if the record contradicts itself.
    """
    grants = [grant_from(fields) for fields in stored.grants]
    session.queue = _queue_from(stored.queue, grants)
    session.restore(stored.state)
    session.version = stored.version
    session.disconnected_at = stored.disconnected_at
    session.opened_wall = stored.opened_wall
    session.life = stored.life
    session.number = stored.number
    session.leaving = stored.leaving
    session.barrier = vector_from(stored.barrier)
    session.told = vector_from(stored.told)
    session.came = stored.came
    return {packet_id: None if grant < 0 else (offset, grants[grant]) for packet_id, offset, grant in stored.inflight}


def _queue_from(parts: list[QueuePart], grants: list[Grant]) -> OffsetQueue[Grant]:
    queue: OffsetQueue[Grant] = OffsetQueue()
    for first, count, grant in parts:
        if isinstance(first, int) and isinstance(count, int) and isinstance(grant, int):
            queue.push_run(first, count, grants[grant])
        elif isinstance(first, bytes) and isinstance(count, bytes) and isinstance(grant, list):
            queue.push_block(first, count, [grants[number] for number in grant])
        else:
            raise ValueError("a queue of runs and blocks holds something else")
    return queue
