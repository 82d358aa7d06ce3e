"""Two sessions of one client are made one: nothing that either was owed is left out, and nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sterna.broker.inheritance import EARLY_MAX, Coverage, grant_now, sure_filters
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.broker.transfer.session_transfer import Staged
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import BEFORE_ALL, Identity

if TYPE_CHECKING:
    from sterna.node.moving import Moving


class Claim(NamedTuple):
    """What another session was in charge of, and what of that it has not delivered."""

    coverage: Coverage
    owed: dict[Identity, None]

    def has_served(self, topic: bytes, identity: Identity) -> bool:
        return identity not in self.owed and self.coverage.covers(topic, identity)


def claim(moving: Moving, coverage: Coverage, staged: list[Staged]) -> Claim:
    """May raise JournalError."""
    return Claim(coverage, {_identity(moving, message): None for _, message in _messages(moving, staged)})


def merge(moving: Moving, session: Session, ours: Claim, staged: list[Staged], others: list[Claim]) -> None:
    """What that session was owed first, as far as it was not heard here, nor served by one of the others that are to be
    added; then what waits here and was not served there.  May raise JournalError; then nothing has changed."""
    inheritance = session.inheritance
    assert inheritance is not None
    front: list[tuple[int, Grant]] = []
    unwanted = 0
    streams = moving.router.streams
    early: list[Identity] = []
    filters = sure_filters(session)
    for offset, message in _messages(moving, staged):
        identity = _identity(moving, message)
        read = streams.vector.get(identity.origin, BEFORE_ALL)
        is_to_come = identity.origin != moving.node and identity.stamp > read
        if inheritance.has_been_added(message.topic, identity):
            continue
        if not is_to_come and inheritance.has_heard(filters, message.topic, identity):
            continue
        if any(other.has_served(message.topic, identity) for other in others):
            continue
        grant = grant_now(session.subscriptions.values(), message, session.client_id)
        if grant is None:
            unwanted += 1
        else:
            front.append((offset, grant))
            if is_to_come and not ours.coverage.covers(message.topic, identity):
                early.append(identity)
    queue = _not_served(moving, session.queue, ours)
    aside = {origin: _not_served(moving, one, ours) for origin, one in inheritance.set_aside.items()}
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
    inheritance.early.update(dict.fromkeys(early[: EARLY_MAX - len(inheritance.early)]))
    moving.counters.remains_added += len(front)
    moving.counters.remains_unwanted += unwanted


def _messages(moving: Moving, staged: list[Staged]) -> Iterator[tuple[int, Message]]:
    for one in staged:
        message = moving.broker.journal.read(one.offset) if one.grant is not None else None
        if message is not None:
            yield one.offset, message


def _not_served(moving: Moving, waiting: OffsetQueue[Grant], other: Claim) -> list[tuple[int, Grant]]:
    """Without what the other session has delivered."""
    left: list[tuple[int, Grant]] = []
    for offset, grant in waiting:
        message = moving.broker.journal.read(offset)
        if message is None or grant.retained or not other.has_served(message.topic, _identity(moving, message)):
            left.append((offset, grant))
    return left


def _identity(moving: Moving, message: Message) -> Identity:
    return message.identity or Identity(moving.node, moving.broker.journal.epoch_of(message.offset), message.offset)
