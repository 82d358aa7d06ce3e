"""Delivery of a message to its subscribers: fan-out, the in-flight window, queues, retained messages.

Promises: a message goes to a session once, at the lower of its QoS and the subscription's; per session, messages of
one publisher and topic leave in the order they came; a message that cannot leave now waits as a journal offset, or, at
QoS 0, is dropped and counted with a reason.
"""

from __future__ import annotations

from sterna.broker import work_budget
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.delivery.barriers import Barriers
from sterna.broker.delivery.encoding import Encodings, encode_again, with_properties, without_properties
from sterna.broker.delivery.retained_backlog import RetainedBacklog
from sterna.broker.delivery.routes import Route
from sterna.broker.delivery.share_targets import is_for_share, is_for_shares_only
from sterna.broker.network import BrokerNetwork
from sterna.broker.session.outbox import send_to_all
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.broker.session.shares import SharedSubscription
from sterna.broker.session.subscriptions import Grant
from sterna.broker.work_budget import Turns
from sterna.journal.journal import Journal
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import MQTT_5, PUBREL, encode_acknowledgement
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.errors import JournalError


class Delivery:
    __slots__ = (
        "_clock",
        "_commitments",
        "_counters",
        "_dirty",
        "_journal",
        "_limits",
        "_log",
        "_retained",
        "_routes",
        "_work_budget",
        "barriers",
        "network",
        "node",
        "retained_backlog",
    )

    def __init__(
        self,
        journal: Journal,
        clock: BrokerClock,
        commitments: Commitments,
        log: SessionLog,
        state: BrokerState,
        turns: Turns,
    ) -> None:
        self._clock = clock
        self._limits = state.limits
        self._journal = journal
        self._commitments = commitments
        self._log = log
        self._routes = state.routes
        self._retained = state.retained
        self._counters = state.counters
        self._dirty = state.dirty
        self._work_budget = state.work_budget
        self.retained_backlog = RetainedBacklog(state, turns, self._send_retained_now)
        #: This node's name among others, and the others; of a lone node "" and None.
        self.node = ""
        self.network: BrokerNetwork | None = None
        #: Barriers of sessions that came from other nodes; None as long as none came.
        self.barriers: Barriers | None = None

    # -- fan-out -------------------------------------------------------------------------------------------------

    def forward_run(
        self, route: Route, source: Session, data: bytes, start: int, stop: int, size: int, head: int, topic: bytes
    ) -> None:
        """HOT.  A run of equal-sized QoS 0 packets on one topic: to most recipients their bytes go on as they came.

        `data[start:stop]` holds the packets, each `size` bytes of which the first `head` are all but the payload.
        """
        count = 1 if stop - start == size else (stop - start) // size
        counters = self._counters
        counters.publish_received += count
        counters.publish_bytes_received += (size - head) * count
        if counters.observer is not None:
            counters.observer.saw(topic, count, (size - head) * count, data, stop - size + head, stop)
        if counters.flows is not None:
            counters.flows.saw(topic, _gateway_of(source), count)
        missed = 0
        if route.plain_3_1_1:
            packets = (
                data[start:stop] if source.version != MQTT_5 else without_properties(data, start, stop, size, head)
            )
            missed = send_to_all(route.plain_3_1_1, packets, count, self._dirty)
        if route.plain_5:
            packets = data[start:stop] if source.version == MQTT_5 else with_properties(data, start, stop, size, head)
            missed += send_to_all(route.plain_5, packets, count, self._dirty)
        recipients = len(route.plain_3_1_1) + len(route.plain_5)
        if recipients:
            counters.publish_sent += (recipients - missed) * count
            counters.publish_bytes_sent += (recipients - missed) * count * (size - head)
            if missed:
                self._count_missed(route, count)
        network = self.network
        shared = network is not None and network.is_shared(topic)
        if network is not None and not shared and network.wants_elsewhere(topic):
            network.publish_run(
                topic, [data[position + head : position + size] for position in range(start, stop, size)]
            )
        if route.special or route.shares or shared:
            for position in range(start, stop, size):
                message = Message(topic, data[position + head : position + size])
                if shared:
                    assert network is not None
                    network.decide_shares(message)
                    network.publish_loose(message)
                self._fan_out_qos0(route.special, route.own, message, source)
                self._to_shares(route, message, Encodings(message, self._clock.wall))

    def _count_missed(self, route: Route, count: int) -> None:
        for outbox in route.plain_3_1_1 + route.plain_5:
            if outbox.congested:
                self._counters.dropped(outbox.why_not(), count)

    def deliver(self, message: Message, source: Session | None) -> bool:
        """To everybody who wants it; False if nobody does."""
        if self._counters.flows is not None:
            self._counters.flows.saw(message.topic, _gateway_of(source), 1)
        route = self._routes.route(message.topic)
        if message.shares and is_for_shares_only(message):
            if route.shares:
                self._to_shares(route, message, Encodings(message, self._clock.wall))
            return route.wanted
        if route.computed:
            # Others are heard between two messages, however many expressions somebody holds.
            self._work_budget.spent += work_budget.COMPUTATION * len(route.computed)
            self._routes.computations.take(route.computed, message)
        if route.counted and message.identity is None:
            self._work_budget.spent += work_budget.COMPUTATION * len(route.counted)
            self._routes.computations.take_own(route.counted, message)
        if self.barriers is not None:
            route = self.barriers.let_through(route, message)
        if message.qos == 0:
            self._fan_out_qos0(route.deliveries, route.own, message, source)
            if route.shares:
                self._to_shares(route, message, Encodings(message, self._clock.wall))
            return route.wanted or bool(route.counted)
        encodings = Encodings(message, self._clock.wall)
        own = route.own
        for session, grant in route.deliveries:
            if own and session is source:
                mine = own.get(session.client_id, grant)
                if mine is None:
                    continue
                grant = mine
            if grant.qos == 0:
                self._send_qos0(session, message, grant, encodings)
            elif session.queue or not session.ready:
                self.enqueue(session, message.offset, grant)
            else:
                self._send(session, message, grant, encodings)
        if route.shares:
            self._to_shares(route, message, encodings)
        return route.wanted or bool(route.counted)

    def _fan_out_qos0(
        self,
        deliveries: list[tuple[Session, Grant]],
        own: dict[bytes, Grant | None],
        message: Message,
        source: Session | None,
    ) -> None:
        encodings = Encodings(message, self._clock.wall)
        for session, grant in deliveries:
            mine = own.get(session.client_id, grant) if own and session is source else grant
            if mine is not None:
                self._send_qos0(session, message, mine, encodings)

    def _send_qos0(self, session: Session, message: Message, grant: Grant, encodings: Encodings) -> bool:
        """False if it was dropped."""
        outbox = session.outbox
        if outbox.congested:
            is_held = session.held is not None and session.held.hold(message, grant)
            if not is_held and (reason := session.why_not()):
                self._drop(session, message, grant, reason)
            return False
        packet = encodings.packet(session, grant, 0, 0)
        if session.packet_bytes_max and len(packet) > session.packet_bytes_max:
            self._drop(session, message, grant, "packet-too-large")
            return False
        outbox.send(packet)
        outbox.delivered += 1
        self._counters.publish_sent += 1
        self._counters.publish_bytes_sent += len(message.payload)
        return True

    def let_go(self, session: Session) -> None:
        held, session.held = session.held, None
        for message, grant, _ in held.messages if held else ():
            if session.permissions.unrestricted or session.permissions.may_receive(message.topic):
                self._send_qos0(session, message, grant, Encodings(message, self._clock.wall))
            else:
                self._drop(session, message, grant, "not-authorized")

    def _drop(self, session: Session, message: Message, grant: Grant, reason: DropReason) -> None:
        """A message that this session will not get."""
        self._counters.dropped(reason)

    def expired(self, message: Message) -> None:
        """Nobody will get it."""
        self._counters.dropped("expired")

    def _send(self, session: Session, message: Message, grant: Grant, encodings: Encodings) -> None:
        """HOT.  One QoS 1 or 2 message into the in-flight window.  The caller saw that the session is ready."""
        qos = message.qos if message.qos < grant.qos else grant.qos
        packet_id = session.take_packet_id()
        packet = encodings.packet(session, grant, qos, packet_id)
        if session.packet_bytes_max and len(packet) > session.packet_bytes_max:
            self._drop(session, message, grant, "packet-too-large")  # as if it had been delivered [MQTT-3.1.2-25]
            return
        session.put_in_flight(packet_id, message, grant)
        session.outbox.delivered += 1
        self._counters.publish_sent += 1
        self._counters.publish_bytes_sent += len(message.payload)
        if session.expiry_s:
            self._log.assigned(session, packet_id, message.offset, grant)
            if qos == 2:
                # If the node forgot which message this identifier stood for, the client would take another message
                # for a repetition: the assignment must be safe before the packet leaves.
                assert session.connection is not None
                self._commitments.answer(session.connection, packet)
                return
        elif qos == 2 and grant.share:
            # No other member may get it from here on, crash or not [MQTT-4.8.2-5].
            self._taken(grant.share, message.offset)
            assert session.connection is not None
            self._commitments.answer(session.connection, packet)
            return
        if not session.timed_id:
            session.timed_id, session.timed_at = packet_id, self._clock.now
        session.outbox.send(packet)

    def _taken(self, share_key: bytes, offset: int) -> None:
        share = self._routes.share(share_key)
        if share is not None:
            self._log.taken(share, offset)

    def _to_shares(self, route: Route, message: Message, encodings: Encodings) -> None:
        for share in route.shares:
            if not is_for_share(message, share.key, self.node):
                continue
            # Messages that wait already go first.
            member = None if share.queue and message.qos else share.next_member(message.topic, qos=message.qos)
            if member is not None:
                session, grant = member
                self._send_shared(share, session, message, grant, encodings)
            elif message.qos == 0:
                self._counters.dropped("no-member-ready")
            elif share.has_room(self._limits):
                share.queue.push(message.offset, None)
            else:
                self._turn_away_from(share, message)

    def _turn_away_from(self, share: SharedSubscription, message: Message) -> None:
        share.turn_away(self._counters)

    def _send_shared(
        self, share: SharedSubscription, session: Session, message: Message, grant: Grant, encodings: Encodings
    ) -> None:
        if min(message.qos, grant.qos):
            self._send(session, message, grant, encodings)
        else:
            self._send_qos0(session, message, grant, encodings)
            if message.qos:
                self._log.taken(share, message.offset)

    # -- waiting --

    def enqueue(self, session: Session, offset: int, grant: Grant) -> None:
        self._log.touched(session)
        if len(session.queue) >= self._limits.queued:
            self._turn_away(session, offset, grant)
            return
        session.queue.push(offset, grant)
        if offset < session.subscribed_at and session.expiry_s:
            # Published before the subscription that brings it here: replay would not know that it waits.
            self._log.queued(session, offset, grant)

    def _turn_away(self, session: Session, offset: int, grant: Grant) -> None:
        session.turn_away(self._counters)

    def pump(self, session: Session) -> None:
        """Send what waits, as far as the window and the socket allow."""
        if session.unsent:
            self._resend_more(session)  # what was sent before goes first; it comes back here when that is done
            return
        if session.retained_backlog is not None:
            self.retained_backlog.go_on(session, session.retained_backlog)
        queue = session.queue
        while queue and session.ready:
            offset, grant = queue.pop()
            try:
                message = self._readable(session, offset, grant)
            except JournalError as error:
                queue.push_front(offset, grant)
                self._unreadable(session, error)
                return
            if message is not None:
                self._send(session, message, grant, Encodings(message, self._clock.wall))
        for key in session.shares:
            share = self._routes.share(key)
            if share is not None and share.queue:
                self._pump_share(share, session)

    def _pump_share(self, share: SharedSubscription, session: Session) -> None:
        grant = share.grant_of(session)
        while grant is not None and share.queue and session.ready and not session.queue:
            offset, _ = share.queue.pop()
            try:
                waiting = self._journal.read(offset) or self._retained.at_offset(offset)
            except JournalError as error:
                share.queue.push_front(offset, None)
                self._unreadable(session, error)
                return
            if waiting is not None and share.belongs_to_others(session, waiting.topic):
                share.queue.push_front(offset, None)
                return
            message = self._readable(session, offset, grant)
            if message is not None:
                self._send_shared(share, session, message, grant, Encodings(message, self._clock.wall))

    def _unreadable(self, session: Session, error: JournalError) -> None:
        """The disk did not give a message that is there: it stays where it waits, and the client is to come again."""
        if session.connection is not None:
            session.connection.fail(Reason.SERVER_UNAVAILABLE, f"the journal cannot be read: {error}")

    def _readable(self, session: Session, offset: int, grant: Grant) -> Message | None:
        """The message at an offset, if it is still there, still alive and still this session's to read."""
        message = self._journal.read(offset) or self._retained.at_offset(offset)
        if message is None:
            session.dropped_by_retention += 1
            self.retention_took(session, 1)
            return None
        if message.expires_at != NEVER and message.expires_at <= self._clock.wall:
            self._drop(session, message, grant, "expired")
            return None
        if not session.permissions.unrestricted and not session.permissions.may_receive(message.topic):
            self._drop(session, message, grant, "not-authorized")
            return None
        return message

    def retention_took(self, waiting: Session | SharedSubscription, messages: int) -> None:
        """Messages that waited longer than the journal kept them; nobody knows any more what they were."""
        self._counters.dropped("retention", messages)

    # -- what the receiver says --

    def acknowledged(self, session: Session, packet_id: int, *, is_noted: bool = False) -> None:
        """The message is the client's: PUBACK, PUBCOMP, or PUBREC with an error.  `is_noted`: see
        `delivery_audit.py`."""
        if packet_id not in session.inflight:
            return
        entry = session.out_of_flight(packet_id)
        if packet_id == session.timed_id:
            session.answered(self._clock.now)
        if session.expiry_s:
            self._log.acknowledged(session, packet_id)
        elif entry is not None and entry[1].share:
            self._taken(entry[1].share, entry[0].offset)
        if session.unsent:
            if packet_id in session.unsent:  # acknowledged from memory, before it was sent again
                session.unsent.remove(packet_id)
            self._resend_more(session)
        elif session.queue or session.shares:
            self.pump(session)

    def received(self, session: Session, packet_id: int) -> None:
        """PUBREC: say PUBREL when it is safe that we have heard it."""
        code = Reason.SUCCESS if packet_id in session.inflight else Reason.PACKET_IDENTIFIER_NOT_FOUND
        release = encode_acknowledgement(PUBREL, packet_id, code, session.version)
        self.passed_on(session, packet_id)
        assert session.connection is not None
        self._commitments.answer(session.connection, release)

    def passed_on(self, session: Session, packet_id: int, dropped: DropReason | None = None) -> None:
        """From here on only the identifier matters: it is the client's, or `dropped` says why that is not known."""
        if session.inflight.get(packet_id) is not None:
            session.passed_on(packet_id)
            self._log.received(session, packet_id)
            if dropped is not None:
                self._counters.dropped(dropped)

    # -- connections come and go --

    def resend(self, session: Session) -> None:
        """A session is connected again: everything in flight once more, in order, then what waited [MQTT-4.4.0-1]."""
        self.let_go(session)
        session.unsent = list(reversed(session.inflight))
        self._resend_more(session)

    def _resend_more(self, session: Session) -> None:
        """As much of what was in flight as the client's window allows now; it may be smaller than the last one."""
        unsent = session.unsent
        while unsent and not session.outbox.congested and len(session.inflight) - len(unsent) < session.window:
            self._resend_one(session, unsent.pop())
        if not unsent:
            self.pump(session)

    def _resend_one(self, session: Session, packet_id: int) -> None:
        assert session.connection is not None
        entry = session.inflight[packet_id]
        if entry is None:
            packet = encode_acknowledgement(PUBREL, packet_id, Reason.SUCCESS, session.version)
        elif not session.permissions.unrestricted and not session.permissions.may_receive(entry[0].topic):
            self._withhold(session, packet_id, entry[0], entry[1], "not-authorized")
            return
        else:
            packet = encode_again(session, entry[0], entry[1], packet_id, self._clock.wall)
            if session.packet_bytes_max and len(packet) > session.packet_bytes_max:
                self._withhold(session, packet_id, entry[0], entry[1], "packet-too-large")
                return
        # Everything the journal has to know of it was safe before the client was let in.  Not to wait keeps the order:
        # a message sent for the first time does not wait either.
        session.connection.send(packet)

    def _withhold(self, session: Session, packet_id: int, message: Message, grant: Grant, reason: DropReason) -> None:
        """Messages in flight may not be sent again.  At QoS 2 the client may have it all the same, and would take the
        next message under this identifier for a repetition: it is released first."""
        if min(message.qos, grant.qos) == 2:
            self.passed_on(session, packet_id, reason)
            assert session.connection is not None
            release = encode_acknowledgement(PUBREL, packet_id, Reason.SUCCESS, session.version)
            self._commitments.answer(session.connection, release)
            return
        self._drop(session, message, grant, reason)
        session.out_of_flight(packet_id)
        self._log.acknowledged(session, packet_id)

    def disconnected(self, session: Session) -> None:
        """Hand back what came through shared subscriptions at QoS 1 and was not acknowledged, oldest first."""
        if session.retained_backlog is not None:
            self._counters.dropped("offline", len(session.retained_backlog))
            session.retained_backlog = None
        returned: dict[bytes, SharedSubscription] = {}
        for packet_id, entry in reversed(list(session.inflight.items())):
            if entry is None or not entry[1].share or min(entry[0].qos, entry[1].qos) == 2:
                continue  # a QoS 2 message may not go to another member [MQTT-4.8.2-5]
            share = self._routes.share(entry[1].share)
            if share is not None:
                share.queue.push_front(entry[0].offset, None)
                returned[share.key] = share
                session.out_of_flight(packet_id)
                if session.connection is not None:
                    session.taken_back.add(packet_id)
                self._log.returned(session, packet_id)
        for share in returned.values():
            self.offer_to_members(share)

    def offer_to_members(self, share: SharedSubscription) -> None:
        """Something waits in a share: let every member that can take some of it do so."""
        for member, _ in list(share.members.values()):
            if not share.queue:
                return
            self._pump_share(share, member)

    # -- retained messages, one at a time: `requests.py` looks them up, over several turns if they are many --

    def queue_retained(self, session: Session, message: Message, grant: Grant) -> bool:
        """Have a retained message wait for a session that is to survive a crash with it; False if it is not to."""
        if min(message.qos, grant.qos) == 0 or message.offset < 0:
            return False
        self.enqueue(session, message.offset, grant)
        return True

    def _send_retained_now(self, session: Session, message: Message, grant: Grant) -> None:
        if message.expires_at == NEVER or message.expires_at > self._clock.wall:
            self._send_qos0(session, message, grant, Encodings(message, self._clock.wall))

    def send_retained(self, session: Session, message: Message, grant: Grant) -> None:
        if min(message.qos, grant.qos) == 0 or message.offset < 0:
            self.retained_backlog.send(session, message, grant)
        elif session.ready and not session.queue:
            self._send(session, message, grant, Encodings(message, self._clock.wall))
        else:
            self.enqueue(session, message.offset, grant)


def _gateway_of(source: Session | None) -> str:
    return source.connection.gateway if source is not None and source.connection is not None else ""
