"""Recovers a broker's state after a restart: loads the last checkpoint, then replays the journal since.

Replay does to sessions what the live broker did, from the same facts in the same order, without sending anything.  It
must run before the journal can be read, so messages in flight are remembered by offset and looked up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from sterna.broker.access.authorization import AccessList
from sterna.broker.beginning import FENCED, beginning_from, owner_of
from sterna.broker.broker_state import BrokerState, Came
from sterna.broker.delivery.share_targets import FOR_NOBODY, is_for_share, is_for_shares_only
from sterna.broker.expressions.result_identity import has_had
from sterna.broker.session import stored_session
from sterna.broker.session.publisher_sequence import number_of
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionEvent
from sterna.broker.session.snapshots import (
    restore_owners,
    restore_retained,
    restore_share,
    restore_vector,
)
from sterna.broker.session.stored_session import Unresolved
from sterna.broker.session.subscriptions import Grant, Subscription, grant_from
from sterna.journal.session_state import BeginningState, will_from
from sterna.mqtt.message import Message
from sterna.mqtt.topics import SHARE, is_reserved
from sterna.operators.errors import ExpressionError
from sterna.operators.grammar import is_expression
from sterna.operators.part_merging import AwayPart
from sterna.vocabulary.bounds import OWNER_NUMBER_MAX
from sterna.vocabulary.errors import JournalError, LinkProtocolError
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp

#: The key of the version vector among the sessions of a checkpoint.
VECTOR = "\0"
#: And a part of the table of who owns which session.
OWNERS = "\0owners/"
EVACUATION = "\0evacuation"
CLOCK = "\0clock"
RUNNING = "\0running"
CAME = "\0came"
ACCESS = "\0access"
KEPT = "\0kept"

#: Entries that cannot be are told of one by one up to here, then only counted.
IMPOSSIBLE_TOLD_MAX = 20
#: Errors that an impossible event raises.
_IMPOSSIBLE = (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, LinkProtocolError)


class Replay:
    def __init__(self, state: BrokerState, access: AccessList, node: str = "") -> None:
        self._node = node
        self._state = state
        self._access = access
        self._inflight: dict[bytes, dict[int, Unresolved]] = {}
        #: client id -> offsets that wait for it or are in flight, for sessions that QUEUED events speak of.
        self._known: dict[bytes, set[int]] = {}
        #: client id -> offsets it was served though they were written down before it subscribed.
        self._served_late: dict[bytes, dict[int, None]] = {}
        #: Entries that cannot be, and were passed over: what the first of them were, and how many.
        self.impossible: list[str] = []
        self.impossible_count = 0

    def load(self, sessions: Mapping[str, bytes], retained: Mapping[bytes, bytes]) -> None:
        """The checkpoint.  The queue of a share stands among the sessions, under NUL and the share's key; how far other
        nodes' messages have been read, under NUL alone."""
        for topic, blob in retained.items():
            try:
                message = restore_retained(topic, blob)
            except (msgspec.DecodeError, ValueError) as error:
                raise JournalError(
                    f"the checkpoint of retained topic {topic!r} cannot be read ({error}); "
                    "restore the data directory from a copy"
                ) from error
            self._state.retained.update(message, durable=False)
        queues: list[tuple[bytes, bytes]] = []
        # The memory of expressions comes first: it says where the windows of those in parts begin.
        states = {name for name in sessions if name.startswith("\0") and is_expression(name[1:].encode())}
        for name in sorted(states):
            self._state.routes.computations.recovery.load(name[1:].encode(), sessions[name])
        for name, blob in sessions.items():
            if name in states:
                continue
            if name == VECTOR:
                self._load_vector(blob)
            elif name.startswith(OWNERS):
                self._load_owners(blob)
            elif name == EVACUATION:
                self._state.evacuated_at = msgspec.msgpack.decode(blob, type=float)
            elif name == CLOCK:
                self._state.clock_ahead_s = msgspec.msgpack.decode(blob, type=float)
            elif name == CAME:
                for came in msgspec.msgpack.decode(blob, type=list[Came]):
                    self._state.publisher_came(came)
            elif name == ACCESS:
                self._load_access(blob)
            elif name == KEPT:
                self._load_kept(blob)
            elif name == RUNNING:
                self._state.ran_until = msgspec.msgpack.decode(blob, type=tuple[float, float])
            elif name.startswith("\0") and not name.startswith(FENCED.decode()):
                queues.append((name[1:].encode(), blob))
            else:
                self._load_session(name.encode(), blob)
        for key, blob in queues:
            share = self._state.routes.share(key)
            if share is not None:
                restore_share(share.queue, blob)

    def _load_vector(self, blob: bytes) -> None:
        row = restore_vector(blob)
        self._state.vector.update({origin: Stamp(epoch, sequence) for origin, epoch, sequence in row.vector})
        self._state.shared.update(row.shared)
        for given in row.late:
            self._state.late_shares.give(*given)

    def _load_access(self, blob: bytes) -> None:
        try:
            self._state.access_register.load(blob)
        except ValueError as error:
            raise JournalError(
                f"the checkpoint of bans, users and access rules cannot be read ({error}); "
                "run the version of Sterna that wrote it, or restore the data directory from a copy"
            ) from error

    def _load_kept(self, blob: bytes) -> None:
        try:
            self._state.kept_values.load(blob)
        except ValueError as error:
            raise JournalError(
                f"the checkpoint of values kept for relayed clients cannot be read ({error}); "
                "run the version of Sterna that wrote it, or restore the data directory from a copy"
            ) from error

    def _load_owners(self, blob: bytes) -> None:
        try:
            rows = restore_owners(blob)
        except ValueError as error:
            self._pass_over(f"part of the table of owners: {error}")
            return
        for row in rows:
            self._owned(row.client_id, row.node, row.number, row.user, row.since, row.stands)

    def _owned(
        self, client_id: bytes, node: str, number: int, user: str | None = None, since: int = 0, stands: bool = False
    ) -> None:
        if not 0 <= number <= OWNER_NUMBER_MAX:
            self._pass_over(f"owner of {client_id!r}: number {number}")
            return
        self._state.owners[client_id] = (node, number)
        self._state.whose.pop(client_id, None)
        if user is not None:
            self._state.whose[client_id] = (user, since, stands)

    def _number(self, client_id: bytes, number: int) -> int:
        """Under which a session is owned; 0, as if it never had been, if that cannot be."""
        if 0 <= number <= OWNER_NUMBER_MAX:
            return number
        self._pass_over(f"session of {client_id!r}: number {number}")
        return 0

    def _pass_over(self, what: str) -> None:
        self.impossible_count += 1
        self._state.counters.impossible_entries += 1
        if len(self.impossible) < IMPOSSIBLE_TOLD_MAX:
            self.impossible.append(what)

    def _load_session(self, client_id: bytes, blob: bytes) -> None:
        try:
            stored = stored_session.decode(blob)
            session = self._new_session(client_id, stored.user)
            self._inflight[client_id] = stored_session.restore(session, stored)
        except (ValueError, IndexError) as error:
            raise JournalError(
                f"the checkpoint of session {client_id.decode()!r} cannot be read ({error}); "
                "run the version of Sterna that wrote it, or restore the data directory from a copy"
            ) from error
        session.number = self._number(client_id, session.number)
        if session.came is not None:
            self._state.publisher_came(session.came)
        self._state.left_at = max(self._state.left_at, session.disconnected_at)
        beginning = session.beginning
        for fields in stored.subscriptions:
            self._state.routes.subscribe(session, Subscription(*fields))
            if beginning is not None and fields[0] not in beginning.since:
                _opens(session, fields[0])

    def _new_session(self, client_id: bytes, user: str | None) -> Session:
        permissions = self._access.for_identity(user, owner_of(client_id)[0].decode())
        self._inflight[client_id] = {}
        return self._state.new_session(client_id, user, permissions)

    def begin_group(self, base: int) -> None:
        """The events that follow were written together, in the group whose first message has this offset."""
        self._state.routes.computations.recovery.begin_group(base)

    def events(self, events: list[bytes]) -> None:
        for event in events:
            try:
                kind, key, *fields = msgspec.msgpack.decode(event)
                self._event(kind, key, fields)
            except _IMPOSSIBLE as error:
                # One that no node can have meant, such as another node may have talked this one into.
                self._pass_over(f"event {event[:100]!r}: {type(error).__name__}: {error}")

    def _event(self, kind: int, key: Any, fields: list[Any]) -> None:
        session = self._state.sessions.get(key)
        if kind == SessionEvent.OPENED:
            self._opened(session, key, *fields)
        elif kind == SessionEvent.OWNER:
            self._owned(key, *fields)
        elif kind == SessionEvent.EVACUATED:
            self._state.evacuated_at = fields[0]
        elif kind == SessionEvent.CLOCK:
            self._state.clock_ahead_s = fields[0]
        elif kind == SessionEvent.ACCESS:
            self._state.access_register.replay(fields[0])
        elif kind == SessionEvent.KEPT:
            self._state.kept_values.replay(*fields)
        elif kind == SessionEvent.RUNNING:
            self._state.ran_until = (fields[0], fields[1])
        elif kind == SessionEvent.IMPORTED:
            self._imported(session, key, *fields)
        elif kind == SessionEvent.TAKEN:
            self._taken(key, *fields)
        elif kind == SessionEvent.SEEN:
            # Not the greater one: after a failed group it may have been taken back.
            self._state.vector[key] = Stamp(*fields)
        elif kind == SessionEvent.SHARED:
            self._state.shared[key] = [(name, members) for name, members in fields[0]]
        elif kind == SessionEvent.GIVEN:
            self._state.late_shares.give(key, *fields)
        elif kind == SessionEvent.COMPUTED:
            self._computed(key, *fields)
        elif kind == SessionEvent.STATE:
            self._state.routes.computations.recovery.load(key, *fields)
        elif kind == SessionEvent.RESULT:
            self._state.routes.computations.recovery.said(key, *fields)
        elif kind == SessionEvent.WINDOWS:
            self._state.routes.computations.recovery.windows_ended(key, *fields)
        elif kind == SessionEvent.AWAY:
            self._state.routes.computations.recovery.nodes_away(key, msgspec.convert(fields[0], list[AwayPart]))
        elif kind == SessionEvent.PART:
            self._part(key, *fields)
        elif session is not None:
            _REPLAYS[kind](self, session, *fields)

    def _opened(
        self,
        session: Session | None,
        client_id: bytes,
        new: bool,
        version: int,
        expiry_s: int,
        user: str | None,
        will: list[Any] | None,
        life: int = 0,
        number: int = 0,
        wall: float = 0.0,
    ) -> None:
        if new and session is not None:
            self._ended(session)
            session = None
        session = session or self._new_session(client_id, user)
        if session.user != user:
            session.user = user
            session.permissions = self._access.for_identity(user, client_id.decode())
        session.version = version
        session.expiry_s = expiry_s
        session.life = life
        session.number = self._number(client_id, number)
        session.will = will_from(will)
        session.opened_wall = wall
        session.disconnected_at = 0.0

    def _closed(self, session: Session, at: float, expiry_s: int, will: list[Any] | None) -> None:
        session.disconnected_at = at
        self._state.left_at = max(self._state.left_at, at)
        session.expiry_s = expiry_s
        session.will = will_from(will)

    def _ended(self, session: Session) -> None:
        for topic_filter in list(session.subscriptions):
            self._state.routes.unsubscribe(session, topic_filter)
        self._state.forget_session(session)
        del self._inflight[session.client_id]
        self._known.pop(session.client_id, None)
        self._served_late.pop(session.client_id, None)

    def _imported(self, session: Session | None, client_id: bytes, snapshot: bytes) -> None:
        if session is not None:
            self._ended(session)
        self._load_session(client_id, snapshot)

    def _leaving(self, session: Session, whereto: list[Any] | None) -> None:
        session.leaving = None if whereto is None else (whereto[0], whereto[1])
        if session.leaving is not None and session.leaving[1] > OWNER_NUMBER_MAX:
            self._pass_over(f"session of {session.client_id!r} leaves under number {session.leaving[1]}")
            session.leaving = None

    def _moved(self, session: Session, node: str, number: int) -> None:
        user, since, _ = self._state.whose.get(session.client_id, (None, 0, False))
        self._owned(session.client_id, node, number, session.user, since if user == session.user else number)
        self._ended(session)

    def _subscribed(
        self, session: Session, topic_filter: bytes, qos: int, no_local: bool, as_published: bool, identifier: int
    ) -> None:
        is_new = topic_filter not in session.subscriptions
        self._state.routes.subscribe(session, Subscription(topic_filter, qos, no_local, as_published, identifier))
        if session.beginning is not None:
            session.beginning.is_told = True
        if is_new:
            _opens(session, topic_filter)

    def _began(self, session: Session, fields: list[Any]) -> None:
        before = session.beginning
        session.beginning = beginning_from(msgspec.convert(fields, BeginningState))
        if before is None:
            session.count_apart()
        else:
            session.beginning.opening = before.opening.difference(session.beginning.since)

    def _unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        self._state.routes.unsubscribe(session, topic_filter)

    def _assigned(self, session: Session, packet_id: int, offset: int, fields: list[Any]) -> None:
        grant = grant_from(fields)
        share = self._state.routes.share(grant.share) if grant.share else None
        if share is not None:
            share.queue.remove(offset)
        else:
            waiting = len(session.queue)
            session.queue.remove(offset)
            if len(session.queue) == waiting:
                self._note_served_late(session, offset, grant)
        self._inflight[session.client_id][packet_id] = (offset, grant)
        session.next_packet_id = packet_id % 65535 + 1

    def _queued(self, session: Session, offset: int, fields: list[Any]) -> None:
        """A checkpoint may know of it already: it is taken together with events that are written after it."""
        known = self._known.get(session.client_id)
        if known is None:
            known = {offset for offset, _ in session.queue}
            known.update(entry[0] for entry in self._inflight[session.client_id].values() if entry)
            self._known[session.client_id] = known
        if offset not in known:
            known.add(offset)
            grant = grant_from(fields)
            session.queue.push(offset, grant)
            self._note_served_late(session, offset, grant)

    def _note_served_late(self, session: Session, offset: int, grant: Grant) -> None:
        if session.beginning is not None and not grant.retained:
            self._served_late.setdefault(session.client_id, {})[offset] = None

    def _done(self, session: Session, packet_id: int) -> None:
        """A message is the client's; should the same one be queued again, that is a new delivery."""
        entry = self._inflight[session.client_id].get(packet_id)
        if entry is not None and session.client_id in self._known:
            self._known[session.client_id].discard(entry[0])

    def _seen(self, origin: str, epoch: int, sequence: int) -> None:
        stamp = Stamp(epoch, sequence)
        if stamp > self._state.vector.get(origin, BEFORE_ALL):
            self._state.vector[origin] = stamp

    def _taken(self, share_key: bytes, offset: int) -> None:
        share = self._state.routes.share(share_key)
        if share is not None:
            share.queue.remove(offset)

    def _part(self, holder: str, name: bytes, is_wanted: bool, since_us: int) -> None:
        if not holder:
            self._state.routes.computations.recovery.remember_part(name, since_us)
            return
        if not is_wanted:
            self._state.routes.release_part(name, holder)
            return
        with suppress(ExpressionError):  # of another release: its reader will ask again
            self._state.routes.hold_part(name, holder, since_us)

    def _acknowledged(self, session: Session, packet_id: int) -> None:
        self._done(session, packet_id)
        self._inflight[session.client_id].pop(packet_id, None)

    def _returned(self, session: Session, packet_id: int) -> None:
        """A message of a shared subscription that this member did not acknowledge: back to the front of the share."""
        entry = self._inflight[session.client_id].pop(packet_id, None)
        share = self._state.routes.share(entry[1].share) if entry else None
        if entry is not None and share is not None:
            share.queue.push_front(entry[0], None)

    def _received(self, session: Session, packet_id: int) -> None:
        self._done(session, packet_id)
        inflight = self._inflight[session.client_id]
        entry = inflight.get(packet_id)
        if session.in_doubt is None or entry is None:
            inflight[packet_id] = None
        elif entry[0] >= 0:
            inflight[packet_id] = stored_session.in_doubt(entry[0]), entry[1]

    def _arrived(self, session: Session, packet_id: int) -> None:
        session.received.add(packet_id)
        if session.beginning is not None:
            session.beginning.is_told = True

    def _released(self, session: Session, packet_id: int) -> None:
        session.received.discard(packet_id)

    def _computed(self, expression: bytes, offset: int, value: float | None) -> None:
        routes = self._state.routes
        computation = routes.computations.get(expression)
        if computation is not None:
            routes.computations.calls.replay(computation, offset, value)

    def messages(self, messages: list[Message], epoch: int = 0) -> None:
        """Every message since the checkpoint: retained, and waiting for the persistent sessions that want it.

        The limit on waiting messages does not apply: here they also wait while the live broker already had them in
        flight, and what it dropped cannot be told from what it kept.  The journal since the checkpoint is the bound.
        """
        for message in messages:
            if message.retain:
                self._state.retained.update(message)
            try:
                only_for_shares = is_for_shares_only(message)
            except LinkProtocolError as error:
                self._pass_over(f"message {message.offset}: {error}")
                message.shares, only_for_shares = FOR_NOBODY, True
            if message.identity is not None and message.shares != FOR_NOBODY:
                self._seen(*message.identity)
            if message.qos == 0:
                continue
            if message.properties:
                self._numbered(message)
            route = self._state.routes.route(message.topic)
            if not only_for_shares:
                recovery = self._state.routes.computations.recovery
                recovery.message(message, route.computed)
                if route.counted and message.identity is None:
                    recovery.own_message(message, route.counted)
            for session, grant in () if only_for_shares else route.deliveries:
                mine = route.own.get(session.client_id, grant) if message.publisher == session.client_id else grant
                if (session.barrier or session.told) and has_had(session, message):
                    continue
                if mine is not None and mine.qos:
                    if session.beginning is not None and min(message.qos, mine.qos) == 2:
                        identity = message.identity or Identity(self._node, epoch, message.offset)
                        if session.beginning.leaves_to_old(identity):
                            session.beginning.note_left(identity)
                            continue
                        session.beginning.hears(identity)
                    session.queue.push(message.offset, mine)
                    if session.client_id in self._known:
                        self._known[session.client_id].add(message.offset)
            for share in route.shares:
                if is_for_share(message, share.key, self._name_at(message.offset)):
                    share.queue.push(message.offset, None)

    def _name_at(self, offset: int) -> str:
        """Of this node when it took in that message: empty before it was one of several."""
        joined = self._state.vector.get(self._node)
        return self._node if joined is not None and offset > joined.sequence else ""

    def _numbered(self, message: Message) -> None:
        # Results are numbered, too, under names that clients may carry.
        is_clients = message.identity is None and not is_reserved(message.topic)
        number = number_of(message.properties) if is_clients else None
        session = self._state.sessions.get(message.publisher) if number is not None else None
        if session is not None and number is not None:
            session.sequence = max(session.sequence, number)

    def resolve(self, read: Callable[[int], Message | None], epoch_of: Callable[[int], int]) -> None:
        """The journal can be read: put what was in flight back into the sessions, with its messages.

        A message the journal no longer holds cannot be sent again; the session counts it.
        """
        for client_id, inflight in self._inflight.items():
            session = self._state.sessions[client_id]
            for packet_id, entry in inflight.items():
                if entry is None:
                    session.inflight[packet_id] = None
                    continue
                offset, grant = entry
                is_in_doubt = offset < 0
                offset = stored_session.in_doubt(offset) if is_in_doubt else offset
                message = read(offset) or self._state.retained.at_offset(offset)
                if is_in_doubt:
                    session.inflight[packet_id] = None
                    if message is not None and session.in_doubt is not None:
                        session.in_doubt[packet_id] = message, grant
                elif message is None:
                    session.dropped_by_retention += 1
                else:
                    session.put_in_flight(packet_id, message, grant)
        self._inflight.clear()
        for client_id, offsets in self._served_late.items():
            beginning = self._state.sessions[client_id].beginning
            for message in map(read, offsets):
                if message is not None and message.qos == 2 and beginning is not None:
                    own = Identity(self._node, epoch_of(message.offset), message.offset)
                    beginning.hears(message.identity or own)
        self._served_late.clear()


def _opens(session: Session, topic_filter: bytes) -> None:
    """From where on it hears that everybody had yet to say; what it heard meanwhile is in the journal."""
    if session.beginning is not None and not topic_filter.startswith(SHARE):
        session.beginning.opening.add(topic_filter)


_REPLAYS: dict[int, Callable[..., None]] = {
    SessionEvent.CLOSED: Replay._closed,
    SessionEvent.ENDED: Replay._ended,
    SessionEvent.SUBSCRIBED: Replay._subscribed,
    SessionEvent.UNSUBSCRIBED: Replay._unsubscribed,
    SessionEvent.ASSIGNED: Replay._assigned,
    SessionEvent.ACKNOWLEDGED: Replay._acknowledged,
    SessionEvent.RETURNED: Replay._returned,
    SessionEvent.RECEIVED: Replay._received,
    SessionEvent.ARRIVED: Replay._arrived,
    SessionEvent.RELEASED: Replay._released,
    SessionEvent.QUEUED: Replay._queued,
    SessionEvent.LEAVING: Replay._leaving,
    SessionEvent.MOVED: Replay._moved,
    SessionEvent.BEGAN: Replay._began,
}
