"""One broker: composes the parts of this package, and keeps the promises of a group when the journal has it.

The world feeds connections, tells the time, and after each turn of its loop calls `flush` and, if `commitments` are
pending, has the journal's group written.  Everything else follows from that; nothing here waits or blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from sterna.broker.access.access_control import AccessControl
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.identity import Credentials
from sterna.broker.access_renewal import AccessRenewal
from sterna.broker.backpressure import Backpressure
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import MADE_OF_ANOTHER, Commit, Commitments, Promise
from sterna.broker.deadlines import Deadlines
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.delivery_audit import DeliveryNotes, RecordedDelivery
from sterna.broker.delivery.share_targets import FOR_NOBODY
from sterna.broker.expressions.function_calls import Done
from sterna.broker.flow_page import FlowPages
from sterna.broker.ingress import Ingress
from sterna.broker.limits import Limits
from sterna.broker.network import BrokerNetwork, Keeper
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.packets.acknowledgements import Acknowledgements
from sterna.broker.packets.dispatcher import PacketDispatcher
from sterna.broker.packets.handshake import ConnectHandshake
from sterna.broker.packets.publications import Publications
from sterna.broker.packets.requests import Requests
from sterna.broker.session.connection import ClientPeer, Connection, ConnectionContext, ConnectionState
from sterna.broker.session.outbox import Transport
from sterna.broker.session.publisher_sequence import number_of
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.broker.session_lifecycle import SessionLifecycle
from sterna.broker.statistics import SessionView, Statistics, WaitingSums
from sterna.broker.topic_tree import TopicTrees
from sterna.broker.tracing import Tracing
from sterna.broker.work_budget import Turns
from sterna.journal.journal import Journal
from sterna.journal.store import Position
from sterna.mqtt.message import Message
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_reserved
from sterna.vocabulary.identity import Identity

#: The journal notes how far another node's clock is ahead each time it is this much further ahead.
CLOCK_STEP_S: Final = 0.5


class World(Protocol):
    """The requests of the broker to the process or simulator that runs it."""

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know."""

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        """Run `authenticator.verify` where it may take its time, then call `connection.proceed_with`."""

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        """Run a data processing function where it may take its time and hurt nobody, then (never at once) tell `done`
        the number, or None and why there is none.  False if there is no room: there is when another one is done."""


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
        recorded: bool = False,
    ) -> None:
        state = state or BrokerState(limits)
        self.state = state
        self.limits = limits
        self.sessions = state.sessions
        self.routes = state.routes
        self.retained = state.retained
        self.counters = state.counters
        self.work_budget = state.work_budget
        self._dirty = state.dirty
        self.journal = journal
        self._world = world
        self.clock = BrokerClock()
        self.started_at = 0.0
        self.deadlines = Deadlines()
        self.turns = Turns(self.clock, self.deadlines, self.work_budget)
        self.log = SessionLog(journal.note, enabled=durable)
        self.commitments = Commitments(journal)
        self.access = AccessControl(authenticator, access, state.access_register)
        self.backpressure = Backpressure(journal)
        self.reports = OperatorReports(world.report, self.access)
        delivery = RecordedDelivery if recorded else Delivery
        self.delivery: Delivery = delivery(journal, self.clock, self.commitments, self.log, state, self.turns)
        self.ingress = Ingress(journal, self.clock, state, self.commitments, self.delivery)
        self._compose(rng)
        #: The other nodes; None for a lone one.
        self.network: BrokerNetwork | None = None
        #: Notes for an audit; None if none are taken.
        self.records: DeliveryNotes | None = None
        #: To be done when nothing is on its way to the disk and everything that is safe has been delivered.
        self._between: list[Callable[[], None]] = []
        self._is_keeping = False
        #: Everything the journal got before has been delivered, and this one is being or has been.
        self.delivered_upto = journal.next_offset - 1
        self.routes.computations.attach(self)

    def _compose(self, rng: Random) -> None:
        """Make the parts that serve clients, of those that are there."""
        state, clock, journal, deadlines = self.state, self.clock, self.journal, self.deadlines
        log, commitments, delivery, reports = self.log, self.commitments, self.delivery, self.reports
        self.lifecycle = SessionLifecycle(
            state, clock, deadlines, journal, commitments, log, delivery, self.ingress, reports
        )
        #: Shows packets to operators.
        self.tracing = Tracing(self.sessions, clock, deadlines)
        self.topic_trees = TopicTrees(state, clock, deadlines)
        self.flow_pages = FlowPages(state, clock, deadlines)
        self.renewal = AccessRenewal(self.access, self.sessions, self.routes, self.turns, clock)
        self.handshake = ConnectHandshake(
            state,
            clock,
            deadlines,
            rng,
            self.access,
            self.renewal,
            self.lifecycle,
            commitments,
            delivery,
            reports,
            self._world.verify_elsewhere,
        )
        self.requests = Requests(state, clock, journal, commitments, log, delivery, self.lifecycle, reports)
        self.publications = Publications(state, clock, commitments, log, self.ingress, self.backpressure, reports)
        self.acknowledgements = Acknowledgements(self.limits, delivery)
        self.connections = ConnectionContext(
            self.limits, clock, self.counters, self.backpressure, self.work_budget, self.turns, deadlines
        )
        self.packets = PacketDispatcher(
            self.connections,
            self.routes,
            delivery,
            self.publications,
            self.acknowledgements,
            self.handshake,
            self.requests,
            self.lifecycle,
            reports,
        )

    def record(self, node: str) -> None:
        """From here on what becomes of messages and sessions is noted, under this node's name."""
        assert isinstance(self.delivery, RecordedDelivery)
        records = DeliveryNotes(self.journal, self.clock, node, self.state.vector)
        self.records = self.lifecycle.records = self.requests.records = self.renewal.records = records
        self.delivery.record(records)
        records.started(list(self.sessions.values()))

    # -- time --

    def tell_time(self, now: float, wall: float) -> None:
        self.clock.tell(now, wall)

    def at(self, now: float) -> None:
        """The steady clock reads `now`: called before each piece of work."""
        self.clock.at(now)

    def limits_changed(self) -> None:
        """Those who keep a copy of a limit, or measure by one, look at it again."""
        self.connections.unauthenticated.most = self.limits.unauthenticated_bytes
        self.state.holdings.wills.most = self.limits.will_bytes
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.set_pace()

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def wall(self) -> float:
        return self.clock.wall

    @property
    def running_clock(self) -> float:
        """Seconds by which sessions age."""
        return self.clock.running

    def heard_clock(self, wall: float) -> None:
        """Another node's clock read `wall` when it took in a message."""
        ahead_s = self.clock.heard(wall)
        if ahead_s > self.state.clock_ahead_s + CLOCK_STEP_S:
            self.state.clock_ahead_s = ahead_s
            self.log.clock_ahead(ahead_s)

    def handle_deadlines(self, now: float) -> None:
        self.clock.at(now)
        self.work_budget.begin(now)
        self.deadlines.run_due(now)

    # -- connections --

    def accept(self, transport: Transport, peer: ClientPeer) -> Connection:
        self.counters.connections += 1
        connection = Connection(self.connections, self.packets, transport, peer)
        if self.tracing.is_on:
            self.tracing.accepted(connection)
        due = self.clock.now + self.limits.connect_s
        connection.deadline = self.deadlines.replace(None, due, lambda: _connect_timeout(connection))
        return connection

    def report(self, event: str, **fields: Any) -> None:
        self._world.report(event, fields)

    def tell(self, event: str, fields: dict[str, Any]) -> None:
        self._world.report(event, fields)

    def flush(self) -> int:
        """Hand every outbox's bytes to its transport; how many there were."""
        dirty = self._dirty
        # Flushing may find a client congested, never add to another's outbox, so one pass is enough.
        for outbox in dirty:
            outbox.flush()
        count = len(dirty)
        dirty.clear()
        return count

    # -- expressions --

    def publish_result(self, message: Message) -> None:
        self.ingress.publish_result(message)

    def identity_of(self, message: Message) -> Identity | None:
        """The message's identity at every node; None if others need not know it, or could not tell it from others.  A
        message that came along with a session is another one than the node it came from dealt with."""
        identity = message.identity
        if identity is not None and message.shares != FOR_NOBODY:
            return identity if identity.sequence >= 0 else None
        if not message.qos or not self.delivery.node:
            return None
        return Identity(self.delivery.node, self.journal.epoch_of(message.offset), message.offset)

    def result_qos(self, topic: bytes) -> int:
        return self.routes.highest_qos(topic)

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        return self._world.compute_elsewhere(function, payload, done)

    def read_back(self, offset: int) -> Message | None:
        """May raise JournalError."""
        return self.journal.read(offset) or self.retained.at_offset(offset)

    # -- the network --

    def attach(self, network: BrokerNetwork, node: str) -> None:
        """From here on this broker is one of several, under this name."""
        self.network = self.delivery.network = self.commitments.network = network
        self.ingress.network = self.requests.network = network
        self.delivery.node = node

    def attach_keeper(self, keeper: Keeper) -> None:
        """From here on `keeper` makes sure that one node owns a session."""
        self.handshake.keeper = self.lifecycle.keeper = self.requests.keeper = keeper

    # -- commits --

    def overloaded(self) -> bool:
        return self.backpressure.overloaded()

    def _resume_reading(self) -> None:
        self.backpressure.resume()
        if self.network is not None:
            self.network.caught_up()

    def committed(self, commit: Commit, at: Position | None) -> None:
        """The group is safe: deliver what it holds, answer who waits for it."""
        self._is_keeping = True
        for promise in self.commitments.committed(commit, at):
            self._keep(promise)
        self._is_keeping = False
        self._do_between()
        if (self.backpressure.is_pausing or self.network is not None) and not self.overloaded():
            self._resume_reading()

    def _do_between(self) -> None:
        if self._between and not self.commitments.under_way:
            between, self._between = self._between, []
            for action in between:
                action()

    def between_groups(self, action: Callable[[], None]) -> None:
        """Do this when everything that is safe has been delivered, and nothing is on its way to be: now, or soon."""
        if self.commitments.under_way or self._is_keeping:
            self._between.append(action)
        else:
            action()

    def _keep(self, promise: Promise) -> None:
        message, connection, detail = promise
        if message is not None:
            self.delivered_upto = message.offset
            matched = self.ingress.deliver(message, self._source(message, connection))
            if self.network is not None and message.identity is None and not is_reserved(message.topic):
                self.network.publish(message)
                matched = matched or self.network.wants_elsewhere(message.topic)
            elif message.shares and message.identity is not None and self.network is not None:
                self.network.delivered(message)
            if connection is not None:
                assert isinstance(detail, int)
                self.publications.published(connection, message, detail, matched=matched)
        elif isinstance(detail, bytes):
            assert connection is not None
            connection.send(detail)
        else:
            assert callable(detail)
            detail()

    def _source(self, message: Message, connection: Connection | None) -> Session | None:
        """HOT.  The session that No Local keeps it from: wills, and retained values of a foreign broker, have one."""
        if connection is not None:
            return connection.session
        return self.sessions.get(message.publisher) if message.identity is None else None

    def failed(self, commit: Commit, reason: str) -> None:
        """The group could not be written: clients that wait for it are sent away, unanswered, and will try again.

        Later groups go the same way, or they would overtake messages that their publishers are about to send again.
        """
        unavailable = self.commitments.unavailable = f"the journal cannot be written: {reason}"
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
            connection.fail(Reason.SERVER_UNAVAILABLE, unavailable)
        self._do_between()
        self._resume_reading()

    def _withdraw(self, message: Message, connection: Connection | None, packet_id: int) -> None:
        """A message that was never kept: its repetition is the first we hear of it."""
        if connection is None and message.identity is not None:
            assert self.network is not None
            self.network.not_kept(message)
        elif connection is None and packet_id != MADE_OF_ANOTHER:
            self.ingress.publish(message)  # a will: nobody is left to send it again
        elif connection is not None and connection.session is not None:
            self._expect_again(message, connection.session, packet_id)

    def _expect_again(self, message: Message, session: Session, packet_id: int) -> None:
        number = number_of(message.properties)
        if number is not None:
            session.sequence = min(session.sequence, (number[0], number[1] - 1))
        if message.qos == 2:
            session.received.discard(packet_id)
            if session.expiry_s:
                # The note that it arrived goes with the next group, like all that were in this one.
                self.log.released(session, packet_id)

    # -- looking back --

    def report_losses(self) -> None:
        """Tell of every session and share that has begun to lose messages since the last time, and of what was denied
        more often than it was said."""
        self.reports.denied_more(self.clock.now)
        losing, self.counters.losing = self.counters.losing, []
        for who, reason in losing:
            self.reports.losing(who, reason)

    def views(self, most: int) -> list[SessionView]:
        """The sessions that lost most, then those that most waits for."""
        order = heapq.nlargest(
            most,
            self.sessions.values(),
            key=lambda s: (s.dropped_by_retention + s.dropped_by_full_queue, len(s.queue)),
        )
        return [
            SessionView(
                session.name(),
                session.user,
                session.connection is not None,
                len(session.subscriptions),
                len(session.inflight),
                len(session.queue),
                session.dropped_by_retention,
                session.dropped_by_full_queue,
            )
            for session in order
        ]

    def waiting_sums(self) -> WaitingSums:
        """It takes a look at every session."""
        inflight = queued = 0
        for session in self.sessions.values():
            inflight += len(session.inflight)
            queued += len(session.queue)
        return WaitingSums(inflight, queued)

    def statistics(self, sums: WaitingSums | None = None) -> Statistics:
        """`sums`: of a while ago, for who asks so often that they may be a little old."""
        counters = self.counters
        if sums is None:
            sums = self.waiting_sums()
        journal = self.journal.statistics()
        return Statistics(
            uptime_s=self.clock.now - self.started_at,
            packets_received=counters.packets_received,
            bytes_received=counters.bytes_received,
            bytes_sent=counters.bytes_sent,
            publish_received=counters.publish_received,
            publish_sent=counters.publish_sent,
            publish_bytes_received=counters.publish_bytes_received,
            publish_bytes_sent=counters.publish_bytes_sent,
            packets_sent=counters.publish_sent + counters.answers_sent,
            connections=counters.connections,
            sessions_expired=counters.sessions_expired,
            throttled=counters.throttled,
            publish_dropped=dict(counters.publish_dropped),
            connections_refused=dict(counters.connections_refused),
            subscriptions_refused=dict(counters.subscriptions_refused),
            clients_connected=self.lifecycle.clients_connected,
            clients_maximum=self.lifecycle.clients_maximum,
            sessions=len(self.sessions),
            subscriptions=self.routes.size,
            shared_subscriptions=self.routes.shared_subscriptions,
            expressions=len(self.routes.computations),
            expression_results=self.routes.computations.results,
            expression_values=self.routes.computations.troubles(),
            function_calls=self.routes.computations.calls.waiting,
            retained=len(self.retained) - self.ingress.sys_topics,  # what clients had retained, without `$SYS`
            retained_bytes=self.retained.bytes - self.ingress.sys_bytes,
            inflight=sums.inflight,
            queued=sums.queued + self.routes.waiting.messages,
            journal_first_offset=journal.first_offset,
            journal_next_offset=journal.next_offset,
            journal_bytes=journal.bytes,
            journal_lost=journal.lost_messages,
            impossible_entries=counters.impossible_entries,
        )


def _connect_timeout(connection: Connection) -> None:
    """It is the client that has to say something.  One that has, and waits for us, is another matter."""
    if connection.state == ConnectionState.AWAITING_CONNECT:
        connection.fail(Reason.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
    elif connection.state == ConnectionState.AUTHENTICATING and connection.exchange is not None:
        connection.fail(Reason.MAXIMUM_CONNECT_TIME, "no AUTH in time")
