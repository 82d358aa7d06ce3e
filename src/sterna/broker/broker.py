"""One broker: the parts of this package put together, publishing, and what happens when a group is safe.

The world feeds connections, tells the time, and after each turn of its loop calls `flush` and, if `commitments` are
pending, has the journal's group written.  Everything else follows from that; nothing here waits or blocks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Literal, Protocol

from sterna.broker.acknowledgements import Acknowledgements
from sterna.broker.authentication import Authenticator
from sterna.broker.authorization import AccessList
from sterna.broker.bridges import BRIDGES_MAX
from sterna.broker.calls import Done
from sterna.broker.commitments import MADE_OF_ANOTHER, Commit, Commitments, Promise
from sterna.broker.connection import Connection, Peer, State
from sterna.broker.deadlines import Deadlines
from sterna.broker.decisions import FOR_NOBODY
from sterna.broker.delivery import Delivery
from sterna.broker.durability import SessionLog
from sterna.broker.effort import Turns
from sterna.broker.handshake import Handshake
from sterna.broker.identity import Credentials
from sterna.broker.lifecycle import Lifecycle
from sterna.broker.limits import Limits
from sterna.broker.network import Keeper, Network
from sterna.broker.outbox import Transport
from sterna.broker.publications import Publications
from sterna.broker.records import RecordedDelivery, Records
from sterna.broker.renewal import Renewal
from sterna.broker.repeats import number_of
from sterna.broker.requests import Requests
from sterna.broker.session import Session
from sterna.broker.state import BrokerState
from sterna.broker.statistics import SessionView, Statistics
from sterna.journal.interest import Interest
from sterna.journal.journal import Journal
from sterna.journal.store import Position
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_reserved
from sterna.vocabulary.allowance import Allowance
from sterna.vocabulary.stamps import Identity
from sterna.vocabulary.throttle import Kind, Throttle

#: Weight of the open group at which publishers are no longer read from until the journal has caught up.
BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
#: Of a topic in a report.
TOPIC_SHOWN_BYTES: Final = 200
#: By how much the clock of another node may be ahead of ours to be taken for right.
CLOCK_AHEAD_MAX_S: Final = 3600.0
#: What is written down of that: as much more at a time.
CLOCK_STEP_S: Final = 0.5


class World(Protocol):
    """What the broker asks of whoever runs it."""

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
        self.limits = limits
        self.journal = journal
        self.authenticator = authenticator
        self.access = access
        self.rng = rng
        self._world = world
        #: Steady seconds, for deadlines; wall-clock seconds, for what clients and the journal see; time run.
        self.now = self._wall_offset = self._running_offset = 0.0
        #: By how much the clock of any other node is ahead of our steady one, as far as its messages have told.
        self._foremost = -math.inf
        self.started_at = 0.0
        self.counters = state.counters
        #: The `$SYS` tree: topic -> bytes it takes among the retained.
        self._sys: dict[bytes, int] = {}
        #: The topics among them on which bridges say whether they are there.
        self._bridges: set[bytes] = set()
        self.clients_connected = self.clients_maximum = 0
        #: Bytes held of clients that are not authenticated yet.
        self.unauthenticated = Allowance(limits.unauthenticated_bytes)
        #: May whoever is at this address say that it is a gateway?
        self.may_be_gateway: Callable[[str], bool] = _anybody
        #: The other nodes; None for a lone one.
        self.network: Network | None = None
        self.state = state
        self.sessions = state.sessions
        #: Why nobody can be promised anything at the moment; empty if they can.
        self.unavailable = ""
        self.deadlines = Deadlines()
        self.effort = state.effort
        self.turns = Turns(self)
        self.routes = state.routes
        self.retained = state.retained
        self._kept: Interest | None = None
        self.log = SessionLog(journal.note, enabled=durable)
        self.commitments = Commitments(journal)
        self._dirty = state.dirty
        self._paused: list[Connection] = []
        self._denials = Throttle()
        delivery = RecordedDelivery if recorded else Delivery
        self.delivery: Delivery = delivery(journal, self.commitments, self.log, state, self.turns)
        #: What is noted for an audit; None if nothing is.
        self.records: Records | None = None
        #: Who sees to it that each session is at one node only; a lone node needs nobody to.
        self.keeper: Keeper | None = None
        #: To be done when nothing is on its way to the disk and everything that is safe has been delivered.
        self._between: list[Callable[[], None]] = []
        self._is_keeping = False
        #: Everything the journal got before has been delivered, and this one is being or has been.
        self.delivered_upto = journal.next_offset - 1
        self.handshake = Handshake(self)
        self.requests = Requests(self)
        self.lifecycle = Lifecycle(self)
        self.renewal = Renewal(self)
        self.publications = Publications(self)
        self.acknowledgements = Acknowledgements(self)
        self.routes.computations.attach(self)

    def record(self, node: str) -> None:
        """From here on what becomes of messages and sessions is noted, under this node's name."""
        assert isinstance(self.delivery, RecordedDelivery)
        self.records = Records(self.journal, self.delivery, node, self.state.vector)
        self.delivery.record(self.records)
        self.records.started(list(self.sessions.values()))

    # -- time --

    def tell_time(self, now: float, wall: float) -> None:
        self.now = now
        self._wall_offset = wall - now
        self.delivery.wall = wall

    @property
    def wall(self) -> float:
        return self.now + self._wall_offset

    @property
    def running_clock(self) -> float:
        """By which sessions grow old.  It goes on while this node runs, whatever becomes of the wall's clock."""
        return self.now + self._running_offset

    def run_from(self, instant: float) -> None:
        """The node has been started: its running clock reads this now."""
        self._running_offset = instant - self.now

    def at(self, now: float) -> None:
        """The steady clock reads `now`: called before each piece of work, so it is small."""
        self.now = now
        self.delivery.wall = now + self._wall_offset

    def heard_clock(self, wall: float) -> None:
        """Another node's, as it was when a message came in there.  Who is too far ahead is wrong, and not followed."""
        ahead_s = wall - self.wall
        if wall - self.now > self._foremost and ahead_s < CLOCK_AHEAD_MAX_S:
            self._foremost = wall - self.now
            if ahead_s > self.state.clock_ahead_s + CLOCK_STEP_S:
                self.state.clock_ahead_s = ahead_s
                self.log.clock_ahead(ahead_s)

    def retained_stamp(self, topic: bytes, session: Session) -> float:
        """When a message that is to be retained came in.  What this client had retained where its session was may
        not have come here yet: this one is later, also if the clock there is ahead."""
        wall = self.wall if session.inheritance is None else max(self.wall, self.now + self._foremost)
        return self.retained.stamp(topic, wall)

    def handle_deadlines(self, now: float) -> None:
        self.at(now)
        self.effort.begin(now)
        self.deadlines.run_due(now)

    # -- connections --

    def accept(self, transport: Transport, peer: Peer) -> Connection:
        self.counters.connections += 1
        connection = Connection(self, transport, peer)
        self.deadlines.at(self.now + self.limits.connect_s, partial(_connect_timeout, connection))
        return connection

    def report(self, event: str, connection: Connection | None = None, **fields: Any) -> None:
        if connection is not None:
            fields["address"] = connection.peer.address
            if connection.session is not None:
                fields["client"] = connection.session.name()
            elif connection.connect is not None and connection.connect.client_id:
                fields["client"] = connection.connect.client_id.decode()  # who it says it is
        self._world.report(event, fields)

    def denied(self, event: str, connection: Connection, topic: bytes, access: Literal["publish", "subscribe"]) -> None:
        """A client may not publish to this topic, or subscribe to this filter: said a few times a minute for each."""
        session = connection.session
        assert session is not None
        if not self._denials.admits(Kind(event, session.name())):
            return
        reason = f"topics that begin with {topic[:1].decode()} are the node's own"
        if access == "subscribe" or not is_reserved(topic):
            reason = self.access.explain(session.user, session.name(), topic, access)
        shown = topic[:TOPIC_SHOWN_BYTES].decode("utf-8", "replace")
        self.report(event, connection, user=session.user, topic=shown, reason=reason)

    def tell(self, event: str, fields: dict[str, Any]) -> None:
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
            connection.listen()
        if self.network is not None:
            self.network.caught_up()

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

    def keep(self, filters: list[bytes]) -> None:
        """Append messages at QoS 0 that match to the journal, too."""
        self._kept = self.routes.kept = Interest(filters)
        self.routes.forget_all()

    def publish_qos0(self, message: Message, source: Session | None) -> None:
        if message.retain:
            # Kept like the rest, but nobody waits for it.
            if self.network is not None:
                self.network.decide_shares(message)
            self.journal.append(message)
            self._retain(message)
            if self.commitments.waiting:
                # An older one is being written and will be retained when that is done; this one is to stay.
                self.commitments.in_turn(partial(self._retain, message))
            if self.network is not None:
                self.commitments.in_turn(partial(self.network.publish, message))
        else:
            if self.network is not None:
                self.network.decide_shares(message)
                self.network.publish_loose(message)
            if self._kept is not None and message.topic in self._kept:
                self.journal.append(message)  # for the table of messages alone: no queue points to it
        self.delivery.deliver(message, source)

    def _retain(self, message: Message) -> None:
        if not self.retained.update(message):
            self.counters.dropped("retained-full")

    def _deliver(self, message: Message, source: Session | None) -> bool:
        if message.expires_at != NEVER and message.expires_at <= self.wall:
            self.delivery.expired(message)  # while the journal was being written
            return True
        if message.retain:
            self._retain(message)
        return self.delivery.deliver(message, source)

    # -- expressions --

    def publish_result(self, message: Message) -> None:
        """What an expression came to.  It concerns this node's clients only: others make their own."""
        if message.qos:
            self.commitments.publication(message, None, 0)
        else:
            self.delivery.deliver(message, None)

    def identity_of(self, message: Message) -> Identity | None:
        """What every node knows it by; None if others need not know it, or could not tell it from others.  What came
        along with a session is not what was dealt with where it came from: it is another one."""
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

    def attach(self, network: Network, node: str) -> None:
        """From here on this broker is one of several, under this name."""
        self.network = self.delivery.network = self.commitments.network = network
        self.delivery.node = node

    def deliver_from_elsewhere(self, message: Message) -> None:
        """A message that entered at another node and need not be written down here."""
        self._deliver(message, None)

    def remember(self, message: Message) -> None:
        """What was retained elsewhere before this node knew: kept for those to come, sent to nobody."""
        message.shares = FOR_NOBODY
        self.journal.append(message)
        self.commitments.in_turn(partial(self._retain, message))

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
        self._sys[topic] = len(topic) + len(payload)
        self.delivery.deliver(message, None)

    def publish_bridge_state(self, topic: bytes, payload: bytes) -> bool:
        """What a bridge says of itself, beside what we say of ourselves; False if there are too many of them."""
        if not payload:
            self._sys.pop(topic, None)
            self._bridges.discard(topic)
            self.retained.update(Message(topic, b"", 0, True), durable=False)
            return True
        if topic not in self._bridges and len(self._bridges) >= BRIDGES_MAX:
            return False
        self._bridges.add(topic)
        self.publish_sys(topic, payload)
        return True

    # -- commits --

    def overloaded(self) -> bool:
        return self.journal.pending_bytes > BACKLOG_BYTES_MAX

    def committed(self, commit: Commit, at: Position | None) -> None:
        """The group is safe: deliver what it holds, answer who waits for it."""
        self.unavailable = ""
        self._is_keeping = True
        for promise in self.commitments.committed(commit, at):
            self._keep(promise)
        self._is_keeping = False
        self._do_between()
        if (self._paused or self.network is not None) and not self.overloaded():
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

    def when_safe(self, action: Callable[[bool], None]) -> None:
        """Do this when everything noted so far is safe (True), or could not be written and is to be tried again."""
        if self.commitments.pending or self.commitments.under_way:
            self.commitments.after_all(lambda: action(not self.unavailable))
        else:
            action(True)

    def _keep(self, promise: Promise) -> None:
        message, connection, detail = promise
        if message is not None:
            self.delivered_upto = message.offset
            matched = self._deliver(message, connection.session if connection is not None else None)
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
        self._do_between()
        self._resume_reading()

    def _withdraw(self, message: Message, connection: Connection | None, packet_id: int) -> None:
        """A message that was never kept: its repetition is the first we hear of it."""
        if connection is None and message.identity is not None:
            assert self.network is not None
            self.network.not_kept(message)
        elif connection is None and packet_id != MADE_OF_ANOTHER:
            self.publish(message)  # a will: nobody is left to send it again
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
        for kind, count in self._denials.turn_over(self.now):
            self.tell(kind.event, {"client": kind.who, "more": count, "reason": f"and {count:,} more"})
        losing, self.counters.losing = self.counters.losing, []
        for who, reason in losing:
            self.report("messages are dropped: too many wait already", waiting_for=who, reason=reason)

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

    def statistics(self) -> Statistics:
        counters = self.counters
        sessions = self.sessions.values()
        journal = self.journal.statistics()
        return Statistics(
            uptime_s=self.now - self.started_at,
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
            publish_dropped=dict(counters.publish_dropped),
            connections_refused=dict(counters.connections_refused),
            subscriptions_refused=dict(counters.subscriptions_refused),
            clients_connected=self.clients_connected,
            clients_maximum=self.clients_maximum,
            sessions=len(self.sessions),
            subscriptions=self.routes.size,
            shared_subscriptions=self.routes.shared_subscriptions,
            expressions=len(self.routes.computations),
            expression_results=self.routes.computations.results,
            expression_values=self.routes.computations.troubles(),
            function_calls=self.routes.computations.calls.waiting,
            retained=len(self.retained) - len(self._sys),  # what clients had retained: what we say of ourselves is none
            retained_bytes=self.retained.bytes - sum(self._sys.values()),
            inflight=sum(len(session.inflight) for session in sessions),
            queued=sum(len(session.queue) for session in sessions) + self.routes.waiting.messages,
            journal_first_offset=journal.first_offset,
            journal_next_offset=journal.next_offset,
            journal_bytes=journal.bytes,
            journal_lost=journal.lost_messages,
            impossible_entries=counters.impossible_entries,
        )


def _anybody(_address: str) -> bool:
    return True


def _connect_timeout(connection: Connection) -> None:
    """It is the client that has to say something.  One that has, and waits for us, is another matter."""
    if connection.state == State.AWAITING_CONNECT:
        connection.fail(Reason.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
    elif connection.state == State.AUTHENTICATING and connection.exchange is not None:
        connection.fail(Reason.MAXIMUM_CONNECT_TIME, "no AUTH in time")
