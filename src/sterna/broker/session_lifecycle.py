"""The lifecycle of sessions: opened by a CONNECT, taken over, left by their connection, expired; with their wills.

A session that outlives its connection is looked at again when its delayed will or its end is due.  Every change of a
persistent session is noted, so that it happens again after a crash.
"""

from __future__ import annotations

from functools import partial

from sterna.broker.access.authorization import Permissions
from sterna.broker.access.bridges import is_bridge_state, may_publish
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.deadlines import Deadline, Deadlines
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.delivery_audit import DeliveryNotes
from sterna.broker.ingress import Ingress
from sterna.broker.network import Keeper
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.outbox import WaitingRoom
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.journal.journal import Journal
from sterna.mqtt import properties as prop
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import MQTT_3_1_1, Connect, Will, encode_disconnect
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_control
from sterna.vocabulary.errors import ProtocolError

#: Keep-alive is exceeded at one and a half times the interval [MQTT-3.1.2-22].
KEEP_ALIVE_GRACE = 1.5

#: Connections with a keep-alive are looked at this often, or more often if they ask for it.
WATCH_S = 60.0

#: How long a closing connection may take to read the last bytes.
LINGER_S = 5.0

#: Session events that may wait for a journal that cannot be written; past it nobody begins or resumes a session.
NOTES_WAITING_MAX = 100_000


class SessionLifecycle:
    __slots__ = (
        "_clock",
        "_commitments",
        "_counters",
        "_deadlines",
        "_delivery",
        "_ingress",
        "_journal",
        "_limits",
        "_log",
        "_looks",
        "_reports",
        "_retained",
        "_routes",
        "_sessions",
        "_state",
        "clients_connected",
        "clients_maximum",
        "keeper",
        "records",
    )

    def __init__(
        self,
        state: BrokerState,
        clock: BrokerClock,
        deadlines: Deadlines,
        journal: Journal,
        commitments: Commitments,
        log: SessionLog,
        delivery: Delivery,
        ingress: Ingress,
        reports: OperatorReports,
    ) -> None:
        self._state = state
        self._limits = state.limits
        self._sessions = state.sessions
        self._routes = state.routes
        self._retained = state.retained
        self._counters = state.counters
        self._clock = clock
        self._deadlines = deadlines
        self._journal = journal
        self._commitments = commitments
        self._log = log
        self._delivery = delivery
        self._ingress = ingress
        self._reports = reports
        #: Makes sure that one node owns a session; a lone node needs none.
        self.keeper: Keeper | None = None
        #: Notes for an audit; None if none are taken.
        self.records: DeliveryNotes | None = None
        self.clients_connected = self.clients_maximum = 0
        #: Client identifier -> when its session is looked at next, for its delayed will or its end.
        self._looks: dict[bytes, Deadline] = {}

    def open_session(
        self, connection: Connection, request: Connect, user: str | None, permissions: Permissions
    ) -> tuple[Session, bool, bool]:
        """The client's session, whether it is an old one, and whether the client must wait for the journal."""
        known = self._sessions.get(request.client_id)
        if self._commitments.unavailable and self._journal.pending_events > NOTES_WAITING_MAX:
            # Notes about sessions wait until the journal takes them, so this may not go on for ever.
            raise ProtocolError(Reason.SERVER_UNAVAILABLE, self._commitments.unavailable)
        if known is not None and known.connection is not None:
            self.take_over(known.connection)
            known = self._sessions.get(request.client_id)
        wait = False
        if known is not None and request.clean_start:
            wait = known.persistent
            self.end_session(known)
            known = None
        session = known
        present = known is not None
        if session is not None and session.beginning is not None and not session.beginning.has_heard_of_it:
            # It is new, and nothing shows that its client has been told: it may not have got that CONNACK.
            present = False
            session.received.clear()
        if session is None:
            if len(self._sessions) >= self._limits.sessions:
                raise ProtocolError(Reason.QUOTA_EXCEEDED, "too many sessions; see limits.sessions")
            if self._state.holdings.sessions_of(user) >= self._limits.sessions_per_user:
                raise ProtocolError(
                    Reason.QUOTA_EXCEEDED, "too many sessions of this user; see limits.sessions_per_user"
                )
            session = self._state.new_session(request.client_id, user, permissions)
            if self.records is not None:
                session.life = self.records.next_life()
        restricted = not (session.permissions.unrestricted and permissions.unrestricted)
        if session.subscriptions and restricted:
            self._routes.forget_all()
        session.permissions = permissions
        session.user = user
        unsaid = session.will
        has_hung_up = 0.0 < session.disconnected_at <= self._clock.running and not session.is_called
        if unsaid is not None and unsaid.delay_s == 0 and has_hung_up:
            self.publish_will(session, unsaid)  # it hung up while it was to be moved, and is back before that was over
        session.connection = connection
        connection.session = session
        session.disconnected_at = 0.0
        session.opened_at, session.opened_wall = self._clock.now, self._clock.wall
        session.will = request.will
        session.version = request.version
        session.expiry_s = self.expiry(request)
        if self.keeper is not None and session.persistent and not session.number and session.in_doubt is None:
            session.number = self.keeper.next_number(session.client_id)
        self._log.opened(session, new=known is None)
        if self.records is not None:
            self.records.opened(session)
        return session, present, wait or session.persistent or session.logged

    def expiry(self, request: Connect) -> int:
        """How long the session is to outlive the connection."""
        if request.version == MQTT_3_1_1:
            return 0 if request.clean_start else self._limits.session_expiry_s
        asked: int = request.properties.get(prop.SESSION_EXPIRY, 0)
        return min(asked, self._limits.session_expiry_s)

    def take_over(self, old: Connection) -> None:
        """The same client on a new connection: the old one ends [MQTT-3.1.4-3]."""
        farewell = b""
        if old.state == ConnectionState.CONNECTED:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            full = encode_disconnect(Reason.SESSION_TAKEN_OVER, "another connection with this client identifier")
            farewell = old.within_limit(full, encode_disconnect(Reason.SESSION_TAKEN_OVER))
        self._reports.report("session taken over", old)
        self.end(old, farewell, graceful=False)

    def attach(self, connection: Connection, session: Session, request: Connect) -> None:
        """The connection is the session's: from here on messages flow."""
        found = request.properties
        connection.wants_reasons = bool(found.get(prop.REQUEST_PROBLEM_INFORMATION, 1))
        session.window = min(self._limits.inflight, found.get(prop.RECEIVE_MAXIMUM, 65535))
        session.window_bytes = self._limits.inflight_bytes
        session.is_losing = False
        session.round_trip_s, session.timed_id = 0.0, 0
        session.taken_back.clear()
        session.packet_bytes_max = found.get(prop.MAXIMUM_PACKET_SIZE, 0)
        session.alias_maximum = min(found.get(prop.TOPIC_ALIAS_MAXIMUM, 0), self._limits.topic_aliases)
        session.aliases = {} if session.alias_maximum else None
        needs = (session.version, session.packet_bytes_max > 0, session.aliases is not None)
        if session.subscriptions and needs != session.needs:
            session.needs = needs
            self._routes.sort_anew(session)
        session.needs = needs
        connection.admit(session)
        waiting = session.outbox.transport
        if isinstance(waiting, WaitingRoom):
            if session.version == waiting.version and not session.packet_bytes_max:
                connection.unsaid = waiting.taken()
            else:
                waiting.give_up()
        session.outbox.attach(connection.transport)
        self.clients_connected += 1
        self.clients_maximum = max(self.clients_maximum, self.clients_connected)
        keep_alive_s = request.keep_alive_s
        if self._limits.keep_alive_s and not 0 < keep_alive_s <= self._limits.keep_alive_s:
            keep_alive_s = self._limits.keep_alive_s
        connection.keep_alive_s = keep_alive_s * KEEP_ALIVE_GRACE
        if keep_alive_s:
            self._watch(connection)
        else:
            self._deadlines.cancel(connection.deadline)

    def _watch(self, connection: Connection) -> None:
        """Look at the connection again when its keep-alive may have run out."""
        if connection.state != ConnectionState.CONNECTED:
            return
        if connection.reading_paused or connection.is_throttled:
            connection.unheard_until = self._clock.now  # it is we who do not listen
        due = max(connection.heard_at, connection.unheard_until) + connection.keep_alive_s
        if due <= self._clock.now:
            connection.fail(Reason.KEEP_ALIVE_TIMEOUT, "keep-alive exceeded")
        else:
            connection.deadline = self._deadlines.replace(
                connection.deadline, min(due, self._clock.now + WATCH_S), partial(self._watch, connection)
            )

    def end(self, connection: Connection, farewell: bytes, *, graceful: bool) -> None:
        """End a connection.  `graceful`: the client sent DISCONNECT, so its will is not published."""
        if connection.state == ConnectionState.CLOSED:
            return
        was_connected = connection.state == ConnectionState.CONNECTED
        connection.enter(ConnectionState.CLOSED)
        connection.drop_input()
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
            self._reports.report("client disconnected", connection, graceful=graceful)
            self._leave(session, graceful=graceful)
        elif farewell:
            connection.transport.write(farewell)
        connection.transport.close()
        self._deadlines.cancel(connection.proof_deadline)
        # A peer that does not read would keep the farewell, and the socket, for ever.
        connection.deadline = self._deadlines.replace(
            connection.deadline, self._clock.now + LINGER_S, connection.transport.abort
        )

    def lost(self, connection: Connection) -> None:
        """Its transport is gone: end it, and keep nothing that waits for it."""
        self.end(connection, b"", graceful=False)
        self._deadlines.cancel(connection.deadline)

    def _leave(self, session: Session, *, graceful: bool) -> None:
        """A session has lost its connection: its will, its shared messages, and how long it stays."""
        session.disconnected_at = self._clock.running
        if session.leaving is not None:
            if graceful:
                session.will = None
            self._log.closed(session)
            return  # the node that has it in the end does the rest, and publishes its will once
        if graceful:
            session.will = None
        self._delivery.disconnected(session)
        if self.records is not None:
            self.records.closed(session)
        if not session.persistent:
            self.end_session(session)
            return
        if session.is_called:
            self._log.closed(session)
            return  # it was sent on: its will waits until it is known that it has not come
        will = session.will
        if will is not None and will.delay_s == 0:
            self.publish_will(session, will)
        self._log.closed(session)
        self.schedule_session(session)

    def schedule_session(self, session: Session) -> None:
        """See that a session without connection is looked at when its delayed will, or its end, is due."""
        wait_s = float(session.expiry_s)
        if session.will is not None:
            wait_s = min(wait_s, float(session.will.delay_s))
        due = self._clock.now + max(0.0, wait_s - (self._clock.running - session.disconnected_at))
        # A client may come and go for days, and its session to other nodes and back: one look at a time is enough.
        look = self._looks.get(session.client_id)
        if look is None or due < look.instant:
            action = partial(self._look_after, session.client_id)
            self._looks[session.client_id] = self._deadlines.replace(look, due, action)

    def _look_after(self, client_id: bytes) -> None:
        del self._looks[client_id]
        session = self._sessions.get(client_id)
        if session is None:
            return
        if session.connection is not None or session.is_moving or session.is_called:
            return  # it is looked at again when it is here to stay
        gone_s = self._clock.running - session.disconnected_at
        if gone_s >= session.expiry_s:
            self._counters.sessions_expired += 1
            self.end_session(session)
            return
        if session.will is not None and gone_s >= session.will.delay_s:
            self.publish_will(session, session.will)
            self._log.closed(session)
        self.schedule_session(session)

    def end_session(self, session: Session, *, goes_on: bool = False) -> None:
        """The session is over: forget it and all it held.  `goes_on`: another one has that, and this has been noted."""
        if self._sessions.get(session.client_id) is not session:
            return
        will = session.will
        self._state.forget_session(session)
        if will is not None:
            self.publish_will(session, will)  # at the latest now [MQTT-3.1.3-9]
        self.take_apart(session)
        if self.records is not None and not goes_on:
            self.records.ended(session)
        self._log.forgotten(session)
        if self.keeper is not None:
            self.keeper.ended(session)

    def take_apart(self, session: Session) -> None:
        """The rest of a session that is no longer known here."""
        self._deadlines.cancel(self._looks.pop(session.client_id, None))
        shares = [share for key in session.shares if (share := self._routes.share(key)) is not None]
        for topic_filter in list(session.subscriptions):
            self._routes.unsubscribe(session, topic_filter)
        for share in shares:
            self._delivery.offer_to_members(share)
        session.outbox.detach()
        session.let_go()

    def publish_will(self, session: Session, will: Will) -> None:
        if session.will is will:
            session.will = None
        if not may_publish(session.permissions, session.client_id, will.topic, will.payload):
            self._counters.dropped("not-authorized")
            return
        if is_bridge_state(will.topic):
            if not self._ingress.publish_bridge_state(will.topic, will.payload):
                self._counters.dropped("too-many-bridges")
            return
        expires_at = NEVER if will.expiry_s is None else self._clock.wall + will.expiry_s
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.forwarded,
            expires_at,
            session.client_id,
            self._ingress.retained_stamp(will.topic, session) if will.retain else self._clock.wall,
        )
        if will.retain and not self._retained.has_room(message):
            self._counters.dropped("retained-full")
        else:
            self._ingress.publish(message)
            if self._counters.observer is not None and not is_control(will.topic):
                self._counters.observer.saw_one(will.topic, will.payload)

    def recovered(self) -> None:
        """After a restart: every session has just lost its connection, unless it had none before."""
        for session in list(self._sessions.values()):
            session.logged = True
            if session.leaving is None:
                self.left(session)
        self._routes.computations.recovered()

    def left(self, session: Session) -> None:
        """It is here without a connection, and perhaps has just lost it."""
        if session.disconnected_at == 0.0:
            self._leave(session, graceful=False)
        elif session.expiry_s:
            self.schedule_session(session)
        else:
            self.end_session(session)

    def shut_down(self) -> None:
        """Send every client away, politely; wills of those who would not come back are published by the standard."""
        for session in list(self._sessions.values()):
            connection = session.connection
            if connection is not None:
                word = encode_disconnect(Reason.SERVER_SHUTTING_DOWN)
                farewell = connection.within_limit(word, word) if connection.state == ConnectionState.CONNECTED else b""
                self.end(connection, farewell, graceful=False)
