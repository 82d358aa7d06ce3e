"""Two sessions of one client are made one: nothing that either was owed is left out, and nothing comes twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.broker import moves
from sterna.broker.inheritance import Coverage, grant_now, sure_filters
from sterna.broker.moves import Staged
from sterna.broker.queue import OffsetQueue
from sterna.broker.session import Session
from sterna.broker.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.vocabulary.stamps import BEFORE_ALL, Identity

if TYPE_CHECKING:
    from sterna.node.moving import Moving


def merge(moving: Moving, session: Session, coverage: Coverage, staged: list[Staged]) -> None:
    """What the other was owed first, as far as it was not heard here; then what waits here and was not served
    there.  May raise JournalError; then nothing has changed."""
    inheritance = session.inheritance
    assert inheritance is not None
    owed: dict[Identity, None] = {}
    front: list[tuple[int, Grant]] = []
    unwanted = 0
    streams = moving.router.streams
    ahead: set[str] = set()
    filters = sure_filters(session)
    for one in staged:
        message = moving.broker.journal.read(one.offset) if one.grant is not None else None
        if message is None:
            continue
        identity = message.identity or _own_identity(moving, message)
        owed[identity] = None
        read = streams.vector.get(identity.origin, BEFORE_ALL)
        is_to_come = identity.origin != moving.node and identity.stamp > read
        if not is_to_come and inheritance.has_heard(filters, message.topic, identity):
            continue
        grant = grant_now(session.subscriptions.values(), message, session.client_id)
        if grant is None:
            unwanted += 1
        else:
            front.append((one.offset, grant))
    for origin, stamp in coverage.upto.items():
        if origin != moving.node and streams.vector.get(origin, BEFORE_ALL) < stamp:
            ahead.add(origin)
    queue = _not_served(moving, session.queue, coverage, owed)
    aside = {origin: _not_served(moving, one, coverage, owed) for origin, one in inheritance.set_aside.items()}
    # From here on nothing is read any more.
    whole: OffsetQueue[Grant] = OffsetQueue()
    room = moving.broker.limits.queued
    for offset, grant in (*front, *queue):
        if len(whole) < room:
            whole.push(offset, grant)
        else:
            session.turn_away(moving.broker.counters)
    session.queue = whole
    inheritance.set_aside = {}
    for origin, waiting in aside.items():
        for offset, grant in waiting:
            inheritance.set_one_aside(origin, offset, grant)
    for origin in ahead:
        session.barrier[origin] = max(coverage.upto[origin], session.barrier.get(origin, BEFORE_ALL))
    moves.raise_barrier(moving.broker, session)
    moving.counters.remains_added += len(front)
    moving.counters.remains_unwanted += unwanted


def _not_served(
    moving: Moving, waiting: OffsetQueue[Grant], coverage: Coverage, owed: dict[Identity, None]
) -> list[tuple[int, Grant]]:
    """Without what the other session has delivered."""
    left: list[tuple[int, Grant]] = []
    for offset, grant in waiting:
        message = moving.broker.journal.read(offset)
        if message is not None and not grant.retained:
            identity = message.identity or _own_identity(moving, message)
            if identity not in owed and coverage.covers(message.topic, identity):
                continue
        left.append((offset, grant))
    return left


def _own_identity(moving: Moving, message: Message) -> Identity:
    return Identity(moving.node, moving.broker.journal.epoch_of(message.offset), message.offset)
