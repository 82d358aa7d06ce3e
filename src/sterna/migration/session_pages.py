"""A session's messages on their way to another node: read from our journal a page at a time, written down in theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from sterna.broker.delivery.share_targets import FOR_NOBODY
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant, grant_from
from sterna.broker.transfer.broker_parts import BrokerParts
from sterna.broker.transfer.expression_transfer import STATES_BYTES_MAX, results_of, states_of
from sterna.broker.transfer.session_transfer import Staged
from sterna.migration.messages import Item
from sterna.mqtt.message import Message
from sterna.routing.frame_checks import check_message, check_topic
from sterna.routing.message_frames import encode_record, opening, read_message, read_opening, read_records
from sterna.vocabulary.bounds import Qos, SubscriptionId, Topic
from sterna.vocabulary.errors import LinkProtocolError

#: An expression, and what it remembers or a piece of that.
State = tuple[bytes, bytes]

#: A page ends when it holds this much, or one message that is bigger.
PAGE_BYTES = 128 * 1024
PAGE_ITEMS = 1000

GrantFields = tuple[Qos, bool, list[SubscriptionId], bool, Topic]


class Pages:
    """Messages owed to a session that has stopped, in order: those in flight, then those that wait.  At last the states
    of its expressions, as of now."""

    def __init__(self, broker: BrokerParts, node: str, session: Session) -> None:
        self._broker = broker
        self._node = node
        self._session = session
        self._inflight = list(session.inflight.items())
        self._queue = [*session.queue, *results_of(broker, session)]
        self._next = 0
        self._states = deque(_pieces(states_of(broker, session)))

    def next(self) -> tuple[list[Item], list[State], bool]:
        """The next page, and whether it is the last.  May raise JournalError; then it can be asked for again."""
        items: list[Item] = []
        size = 0
        place = self._next
        total = len(self._inflight) + len(self._queue)
        while place < total and size < PAGE_BYTES and len(items) < PAGE_ITEMS:
            item = self._item(place)
            if item is not None:
                if items and size + len(item.message) > PAGE_BYTES:
                    break
                size += len(item.message) + 32
                items.append(item)
            place += 1
        self._next = place
        states: list[State] = []
        while place >= total and self._states and size + len(self._states[0][1]) <= PAGE_BYTES:
            states.append(self._states.popleft())
            size += len(states[-1][0]) + len(states[-1][1])
        return items, states, place >= total and not self._states

    def _item(self, place: int) -> Item | None:
        if place < len(self._inflight):
            packet_id, entry = self._inflight[place]
            if entry is None:
                return Item(packet_id, [], b"")
            return Item(packet_id, list(entry[1]), self._encoded(entry[0]))
        offset, grant = self._queue[place - len(self._inflight)]
        message = self._broker.journal.read(offset) or self._broker.retained.at_offset(offset)
        if message is None:
            self._session.dropped_by_retention += 1
            self._broker.delivery.retention_took(self._session, 1)
            return None
        return Item(0, list(grant), self._encoded(message))

    def _encoded(self, message: Message) -> bytes:
        known = message.identity or (self._node, self._broker.journal.epoch_of(message.offset), message.offset)
        return opening(known[0], known[1]) + encode_record(message, known[2])


def _pieces(states: list[State]) -> Iterator[State]:
    """As long as a page at most."""
    for text, state in states:
        for start in range(0, len(state), PAGE_BYTES):
            yield text, state[start : start + PAGE_BYTES]


def check_size(pieces: list[State]) -> None:
    """The other node has a bound of its own, so this is nonsense."""
    if sum(len(text) + len(piece) for text, piece in pieces) > 2 * STATES_BYTES_MAX:
        raise LinkProtocolError("expressions that remember more than a session may take along")


def put_together(pieces: list[State]) -> dict[bytes, bytes]:
    states: dict[bytes, list[bytes]] = {}
    for text, piece in pieces:
        states.setdefault(text, []).append(piece)
    return {text: b"".join(some) for text, some in states.items()}


def write_down(broker: BrokerParts, node: str, items: list[Item]) -> list[Staged]:
    """Put a page into our journal, for nobody: what points to it comes later."""
    staged: list[Staged] = []
    for item in items:
        grant = _grant(item)
        if grant is None:
            staged.append(Staged(item.packet_id, -1, None))
            continue
        origin, epoch, position = read_opening(item.message)
        if len(read_records(item.message, position)) != 1:
            raise LinkProtocolError("an item of a session that is not one message")
        message = read_message(item.message, position, origin, epoch)
        check_topic(message.topic)  # it may be a result, which only nodes publish
        check_message(message)
        staged.append(Staged(item.packet_id, _offset(broker, node, message), grant))
    return staged


def _grant(item: Item) -> Grant | None:
    if not item.grant:
        return None
    try:
        return grant_from(msgspec.convert(item.grant, GrantFields))
    except (TypeError, ValueError) as error:
        raise LinkProtocolError(f"not a grant: {error}") from error


def _offset(broker: BrokerParts, node: str, message: Message) -> int:
    identity = message.identity
    assert identity is not None
    if identity.origin == node:
        own = broker.journal.read(identity.sequence)
        if own is not None and own.identity is None and broker.journal.epoch_of(identity.sequence) == identity.epoch:
            return identity.sequence
    message.shares = FOR_NOBODY
    return broker.journal.append(message)
