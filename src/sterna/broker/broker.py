"""One broker: the parts of this package put together, and the life of sessions.

The world feeds connections, tells the time, and after each turn of its loop calls `flush` and, if `commitments` are
pending, has the journal's group written.  Everything else follows from that; nothing here waits or blocks.
"""

from __future__ import annotations

import heapq
import math
from functools import partial
from random import Random
from typing import Any, Protocol

from sterna.broker.acknowledgements import Acknowledgements
from sterna.broker.authentication import Authenticator
from sterna.broker.authorization import AccessList, Permissions
from sterna.broker.commitments import Commit, Commitments, Promise
from sterna.broker.connection import Connection, Peer, State
from sterna.broker.deadlines import Deadlines
from sterna.broker.delivery import Delivery
from sterna.broker.durability import SessionLog
from sterna.broker.handshake import Handshake
from sterna.broker.identity import Credentials
from sterna.broker.limits import Limits
from sterna.broker.outbox import Outbox, Transport
from sterna.broker.publications import Publications
from sterna.broker.requests import Requests
from sterna.broker.retained import Retained
from sterna.broker.routes import Routes
from sterna.broker.session import Session
from sterna.broker.statistics import Counters, SessionView, Statistics
from sterna.journal.journal import Journal
from sterna.journal.store import Position
from sterna.mqtt import properties as prop
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5, Connect, Will, encode_disconnect
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_reserved
from sterna.vocabulary.errors import ProtocolError

#: Keep-alive is exceeded at one and a half times the interval [MQTT-3.1.2-22].
KEEP_ALIVE_GRACE = 1.5

#: Connections with a keep-alive are looked at this often, or more often if they ask for it.
WATCH_S = 60.0

#: How long a closing connection may take to read the last bytes.
LINGER_S = 5.0

#: Weight of the open group at which publishers are no longer read from until the journal has caught up.
BACKLOG_BYTES_MAX = 16 * 1024 * 1024


#: Session events that may wait for a journal that cannot be written; past it nobody begins or resumes a session.
NOTES_WAITING_MAX = 100_000


class World(Protocol):
    """What the broker asks of whoever runs it."""

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know."""

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        """Run `authenticator.verify` where it may take its time, then call `handshake.verified` and `proceed`."""


class BrokerState:
    """What outlives a restart: the sessions, who wants what, what is retained."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions: dict[bytes, Session] = {}
        self.routes = Routes()
        self.retained = Retained(limits)
        #: Outboxes with something to flush.
        self.dirty: list[Outbox] = []
        self.counters = Counters()

    def new_session(self, client_id: bytes, user: str | None, permissions: Permissions) -> Session:
        session = Session(client_id, Outbox(self.dirty, self.counters), permissions)
        session.user = user
        self.sessions[client_id] = session
        return session


class Broker:
    def __init__(
        self,
        limits: Limits,
        journal: Journal,
        authenticator: Authenticator,
        access: AccessList,
        world: World,
        *,
        durable: bool,
        rng: Random,
        state: BrokerState | None = None,
    ) -> None:
        state = state or BrokerState(limits)
        self.limits = limits
        self.journal = journal
        self.authenticator = authenticator
        self.access = access
        self.rng = rng
        self._world = world
        #: Steady seconds, for deadlines; wall-clock seconds, for what clients and the journal see.
        self.now = 0.0
        self._wall_offset = 0.0
        self.started_at = 0.0
        self.counters = state.counters
        self.clients_connected = 0
        self.clients_maximum = 0
        self.addresses: dict[str, int] = {}
        self._state = state
        self.sessions = state.sessions
        #: Why nobody can be promised anything at the moment; empty if they can.
        self.unavailable = ""
        self.deadlines = Deadlines()
        self.routes = state.routes
        self.retained = state.retained
        self.log = SessionLog(journal.note, enabled=durable)
        self.commitments = Commitments(journal)
        self._dirty = state.dirty
        self._paused: list[Connection] = []
        self.delivery = Delivery(
            limits, journal, self.commitments, self.log, self.routes, self.retained, self.counters, self._dirty
        )
        self.handshake = Handshake(self)
        self.requests = Requests(self)
        self.publications = Publications(self)
        self.acknowledgements = Acknowledgements(self)

    # -- time --

    def tell_time(self, now: float, wall: float) -> None:
        self.now = now
        self._wall_offset = wall - now
        self.delivery.wall = wall

    @property
    def wall(self) -> float:
        return self.now + self._wall_offset

    def at(self, now: float) -> None:
        """The steady clock reads `now`: called before each piece of work, so it is small."""
        self.now = now
        self.delivery.wall = now + self._wall_offset

    def handle_deadlines(self, now: float) -> None:
        self.at(now)
        self.deadlines.run_due(now)

    # -- connections --

    def accept(self, transport: Transport, peer: Peer) -> Connection | None:
        """A new connection, or None if its address has too many already (the caller drops it)."""
        host = peer.address.rpartition(":")[0]
        held = self.addresses.get(host, 0)
        if host and held >= self.limits.connections_per_address:
            self.counters.refused("connections-per-address")
            return None
        self.addresses[host] = held + 1
        self.counters.connections += 1
        connection = Connection(self, transport, peer)
        self.deadlines.at(self.now + self.limits.connect_s, partial(_connect_timeout, connection))
        return connection

    def report(self, event: str, connection: Connection | None = None, **fields: Any) -> None:
        if connection is not None:
            fields["address"] = connection.peer.address
            if connection.session is not None:
                fields["client"] = connection.session.name()
        self._world.report(event, fields)

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        self._world.verify_elsewhere(connection, credentials)

    def pause_reading(self, connection: Connection) -> None:
        """Take nothing more from this client until the journal has caught up."""
        if not connection.reading_paused:
            connection.reading_paused = True
            if not connection.stalled:
                connection.transport.pause_reading()
            self._paused.append(connection)

    def _resume_reading(self) -> None:
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.reading_paused = False
            if connection.state != State.CLOSED and not connection.stalled:
                connection.transport.resume_reading()

    def flush(self) -> int:
        """Hand every outbox's bytes to its transport; how many there were."""
        dirty = self._dirty
        # Flushing may find a client congested, never add to another's outbox, so one pass is enough.
        for outbox in dirty:
            outbox.flush()
        count = len(dirty)
        dirty.clear()
        return count

    # -- publishing --

    def publish_qos0(self, message: Message, source: Session | None) -> None:
        if message.retain:
            # Kept like the rest, but nobody waits for it.
            self.journal.append(message)
            self._retain(message)
            if self.commitments.waiting:
                # An older one is being written and will be retained when that is done; this one is to stay.
                self.commitments.in_turn(partial(self._retain, message))
        self.delivery.deliver(message, source)

    def _retain(self, message: Message) -> None:
        if not self.retained.update(message):
            self.counters.dropped("retained-full")

    def _deliver(self, message: Message, source: Session | None) -> bool:
        if message.retain:
            self._retain(message)
        return self.delivery.deliver(message, source)

    def publish(self, message: Message) -> None:
        """A message of the broker's own (a will): at QoS 1 and 2 it goes through the journal like any other."""
        if message.qos:
            self.commitments.publication(message, None, 0)
        else:
            self.publish_qos0(message, None)

    def publish_sys(self, topic: bytes, payload: bytes) -> None:
        """A value of the `$SYS` tree: retained for whoever asks, journalled by nobody."""
        message = Message(topic, payload, 0, True)
        self.retained.update(message, durable=False)
        self.delivery.deliver(message, None)

    # -- commits --

    def overloaded(self) -> bool:
        return self.journal.pending_bytes > BACKLOG_BYTES_MAX

    def committed(self, commit: Commit, at: Position | None) -> None:
        """The group is safe: deliver what it holds, answer who waits for it."""
        self.unavailable = ""
        for promise in self.commitments.committed(commit, at):
            self._keep(promise)
        if self._paused and not self.overloaded():
            self._resume_reading()

    def _keep(self, promise: Promise) -> None:
        message, connection, detail = promise
        if message is not None:
            matched = self._deliver(message, connection.session if connection is not None else None)
            if connection is not None:
                assert isinstance(detail, int)
                self.publications.published(connection, message, detail, matched=matched)
        elif isinstance(detail, bytes):
            assert connection is not None
            connection.send(detail)
        else:
            assert callable(detail)
            detail()

    def failed(self, commit: Commit, reason: str) -> None:
        """The group could not be written: whoever waits for it is sent away, unanswered, and will try again.

        What came after it goes the same way, or it would overtake what its publishers are about to send again.
        """
        self.unavailable = f"the journal cannot be written: {reason}"
        later = self.commitments.close()
        sent_away = dict.fromkeys((*self.commitments.failed(commit), *self.commitments.failed(later)))
        for message, connection, detail in (*commit.promises, *later.promises):
            if message is not None:
                assert isinstance(detail, int)
                self._withdraw(message, connection, detail)
            elif connection is None:
                assert callable(detail)
                detail()  # QoS 0: it was to wait its turn, not for the journal
        for connection in sent_away:
            connection.fail(Reason.SERVER_UNAVAILABLE, self.unavailable)
        self._resume_reading()

    def _withdraw(self, message: Message, connection: Connection | None, packet_id: int) -> None:
        """A message that was never kept: its repetition is the first we hear of it."""
        if connection is None:
            self.publish(message)  # a will: nobody is left to send it again
        elif message.qos == 2 and connection.session is not None:
            connection.session.received.discard(packet_id)
            if connection.session.expiry_s:
                # The note that it arrived goes with the next group, like all that were in this one.
                self.log.released(connection.session, packet_id)

    # -- the life of sessions --

    def open_session(
        self, connection: Connection, request: Connect, user: str | None, permissions: Permissions
    ) -> tuple[Session, bool, bool]:
        """The client's session, whether it is an old one, and whether the client must wait for the journal."""
        known = self.sessions.get(request.client_id)
        if self.unavailable and self.journal.pending_events > NOTES_WAITING_MAX:
            # What is noted about sessions waits until the journal takes it, so it may not go on for ever.
            raise ProtocolError(Reason.SERVER_UNAVAILABLE, self.unavailable)
        if known is not None and known.connection is not None:
            self._take_over(known.connection)
            known = self.sessions.get(request.client_id)
        wait = False
        if known is not None and request.clean_start:
            wait = known.persistent
            self.end_session(known)
            known = None
        session = known
        if session is None:
            if len(self.sessions) >= self.limits.sessions:
                raise ProtocolError(Reason.QUOTA_EXCEEDED, "too many sessions")
            session = self._state.new_session(request.client_id, user, permissions)
        if session.permissions.unrestricted != permissions.unrestricted or not permissions.unrestricted:
            self.routes.forget_all()
        session.permissions = permissions
        session.connection = connection
        connection.session = session
        session.disconnected_at = 0.0
        session.will = request.will
        session.version = request.version
        session.expiry_s = self._expiry(request)
        self.log.opened(session, new=known is None)
        return session, known is not None, wait or session.persistent or session.logged

    def _expiry(self, request: Connect) -> int:
        if request.version == MQTT_3_1_1:
            return 0 if request.clean_start else self.limits.session_expiry_s
        asked: int = request.properties.get(prop.SESSION_EXPIRY, 0)
        return min(asked, self.limits.session_expiry_s)

    def _take_over(self, old: Connection) -> None:
        """The same client on a new connection: the old one ends [MQTT-3.1.4-3]."""
        farewell = b""
        if old.state == State.CONNECTED:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            full = encode_disconnect(Reason.SESSION_TAKEN_OVER, "another connection with this client identifier")
            farewell = old.within_limit(full, encode_disconnect(Reason.SESSION_TAKEN_OVER))
        self.report("session taken over", old)
        self.end(old, farewell, graceful=False)

    def attach(self, connection: Connection, session: Session, request: Connect) -> None:
        """The connection is the session's: from here on messages flow."""
        found = request.properties
        connection.wants_reasons = bool(found.get(prop.REQUEST_PROBLEM_INFORMATION, 1))
        session.window = min(self.limits.inflight, found.get(prop.RECEIVE_MAXIMUM, 65535))
        session.packet_bytes_max = found.get(prop.MAXIMUM_PACKET_SIZE, 0)
        session.alias_maximum = min(found.get(prop.TOPIC_ALIAS_MAXIMUM, 0), self.limits.topic_aliases)
        session.aliases = {} if session.alias_maximum else None
        needs = (session.version, session.packet_bytes_max > 0, session.aliases is not None)
        if session.subscriptions and needs != session.needs:
            self.routes.forget_all()  # they are sorted by it
        session.needs = needs
        connection.admit(session)
        session.outbox.attach(connection.transport)
        self.clients_connected += 1
        self.clients_maximum = max(self.clients_maximum, self.clients_connected)
        keep_alive_s = request.keep_alive_s
        if self.limits.keep_alive_s and not 0 < keep_alive_s <= self.limits.keep_alive_s:
            keep_alive_s = self.limits.keep_alive_s
        connection.keep_alive_s = keep_alive_s * KEEP_ALIVE_GRACE
        if keep_alive_s:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Look at the connection again when its keep-alive may have run out."""
        if connection.state != State.CONNECTED:
            return
        if connection.reading_paused:
            connection.heard_at = self.now  # it is we who do not listen
        due = connection.heard_at + connection.keep_alive_s
        if due <= self.now:
            connection.fail(Reason.KEEP_ALIVE_TIMEOUT, "keep-alive exceeded")
        else:
            # Not later than in a minute, so that a connection that has ended is not kept for as long as it might live.
            self.deadlines.at(min(due, self.now + WATCH_S), partial(self._watch, connection))

    def end(self, connection: Connection, farewell: bytes, *, graceful: bool) -> None:
        """A connection is over, whoever ended it.  `graceful`: the client said goodbye and takes its will along."""
        if connection.state == State.CLOSED:
            return
        was_connected = connection.state == State.CONNECTED
        connection.enter(State.CLOSED)
        self._release_address(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            if was_connected:
                self.clients_connected -= 1
                if farewell:
                    session.outbox.send(farewell)
            elif farewell:
                connection.transport.write(farewell)
            session.outbox.detach()
            session.connection = None
            self.report("client disconnected", connection, graceful=graceful)
            self._leave(session, graceful=graceful)
        elif farewell:
            connection.transport.write(farewell)
        connection.transport.close()
        # A peer that does not read would keep the farewell, and the socket, for ever.
        self.deadlines.at(self.now + LINGER_S, connection.transport.abort)

    def _release_address(self, connection: Connection) -> None:
        host = connection.peer.address.rpartition(":")[0]
        left = self.addresses.get(host, 0) - 1
        if left > 0:
            self.addresses[host] = left
        else:
            self.addresses.pop(host, None)

    def _leave(self, session: Session, *, graceful: bool) -> None:
        """A session has lost its connection: its will, its shared messages, and how long it stays."""
        session.disconnected_at = self.wall
        if graceful:
            session.will = None
        self.delivery.disconnected(session)
        if not session.persistent:
            self.end_session(session)
            return
        will = session.will
        if will is not None and will.delay_s == 0:
            self._publish_will(session, will)
        self.log.closed(session)
        self.schedule_session(session)

    def schedule_session(self, session: Session) -> None:
        """See that a session without connection is looked at when its delayed will, or its end, is due."""
        wait_s = float(session.expiry_s)
        if session.will is not None:
            wait_s = min(wait_s, float(session.will.delay_s))
        due = self.now + max(0.0, wait_s - (self.wall - session.disconnected_at))
        # A client may come and go for days: one look at a time is enough.
        if due < session.looked_at_next:
            session.looked_at_next = due
            self.deadlines.at(due, partial(self._look_after, session))

    def _look_after(self, session: Session) -> None:
        if self.now < session.looked_at_next:
            return  # asked for when an earlier end was in sight
        session.looked_at_next = math.inf
        if session.connection is not None or self.sessions.get(session.client_id) is not session:
            return
        gone_s = self.wall - session.disconnected_at
        if gone_s >= session.expiry_s:
            self.counters.sessions_expired += 1
            self.end_session(session)
            return
        if session.will is not None and gone_s >= session.will.delay_s:
            self._publish_will(session, session.will)
            self.log.closed(session)
        self.schedule_session(session)

    def end_session(self, session: Session) -> None:
        """The session is over: forget it and all it held."""
        if self.sessions.get(session.client_id) is not session:
            return
        del self.sessions[session.client_id]
        if session.will is not None:
            self._publish_will(session, session.will)  # at the latest now [MQTT-3.1.3-9]
        shares = [share for key in session.shares if (share := self.routes.share(key)) is not None]
        for topic_filter in list(session.subscriptions):
            self.routes.unsubscribe(session, topic_filter)
        for share in shares:
            self.delivery.offer_to_members(share)
        self.log.forgotten(session)
        session.outbox.detach()

    def _publish_will(self, session: Session, will: Will) -> None:
        session.will = None
        if is_reserved(will.topic) or not session.permissions.may_publish(will.topic):
            self.counters.dropped("not-authorized")
            return
        expires_at = NEVER if will.expiry_s is None else self.wall + will.expiry_s
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.forwarded,
            expires_at,
            session.client_id,
            self.wall,
        )
        if will.retain and not self.retained.has_room(message):
            self.counters.dropped("retained-full")
        else:
            self.publish(message)

    def recovered(self) -> None:
        """After a restart: every session has just lost its connection, unless it had none before."""
        for session in list(self.sessions.values()):
            session.logged = True
            if session.disconnected_at == 0.0:
                self._leave(session, graceful=False)
            elif session.expiry_s:
                self.schedule_session(session)
            else:
                self.end_session(session)

    def shut_down(self) -> None:
        """Send every client away, politely; wills of those who would not come back are published by the standard."""
        for session in list(self.sessions.values()):
            connection = session.connection
            if connection is not None:
                told = connection.version == MQTT_5 and connection.state == State.CONNECTED
                farewell = encode_disconnect(Reason.SERVER_SHUTTING_DOWN) if told else b""
                self.end(connection, farewell, graceful=False)

    # -- looking back --

    def retention_moved(self, first_offset: int) -> None:
        """The journal dropped everything below `first_offset`: so do the queues, and each session counts its loss."""
        for session in self.sessions.values():
            dropped = self._drop_trimmed(session, first_offset)
            if dropped:
                session.dropped_by_retention += dropped
                self.counters.dropped("retention", dropped)
                self.log.touched(session)
                self.report("retention dropped waiting messages", client=session.name(), messages=dropped)
        for share in self.routes.shares():
            dropped = share.queue.drop_below(first_offset)
            if dropped:
                self.counters.dropped("retention", dropped)
                self.report("retention dropped waiting messages", share=share.key.decode(), messages=dropped)

    def _drop_trimmed(self, session: Session, first_offset: int) -> int:
        kept = self.retained.at_offset
        return session.queue.drop_below(first_offset, unless=lambda offset: kept(offset) is not None)

    def views(self, most: int) -> list[SessionView]:
        """The sessions that lost most, then those that most waits for."""
        order = heapq.nlargest(most, self.sessions.values(), key=lambda s: (s.dropped_by_retention, len(s.queue)))
        return [
            SessionView(
                session.name(),
                session.user,
                session.connection is not None,
                len(session.subscriptions),
                len(session.inflight),
                len(session.queue),
                session.dropped_by_retention,
            )
            for session in order
        ]

    def statistics(self) -> Statistics:
        counters = self.counters
        sessions = self.sessions.values()
        return Statistics(
            self.now - self.started_at,
            counters.packets_received,
            counters.bytes_received,
            counters.bytes_sent,
            counters.publish_received,
            counters.publish_sent,
            counters.publish_bytes_received,
            counters.publish_bytes_sent,
            counters.publish_sent + counters.answers_sent,
            counters.connections,
            counters.sessions_expired,
            dict(counters.publish_dropped),
            dict(counters.connections_refused),
            self.clients_connected,
            self.clients_maximum,
            len(self.sessions),
            self.routes.size,
            self.routes.shared_subscriptions,
            len(self.retained),
            self.retained.bytes,
            sum(len(session.inflight) for session in sessions),
            sum(len(session.queue) for session in sessions),
            self.journal.first_offset,
            self.journal.next_offset,
            self.journal.statistics().bytes,
        )


def _connect_timeout(connection: Connection) -> None:
    if connection.state in (State.AWAITING_CONNECT, State.AUTHENTICATING):
        connection.fail(Reason.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
