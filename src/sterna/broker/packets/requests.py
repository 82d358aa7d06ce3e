"""Takes SUBSCRIBE, UNSUBSCRIBE and DISCONNECT.

One packet may ask for much: subscribing, and looking up retained messages, are errands of the connection that go on
over as many turns of the loop as they take.
"""

from __future__ import annotations

from collections.abc import Iterator

from sterna.broker import work_budget
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.delivery_audit import DeliveryNotes
from sterna.broker.network import BrokerNetwork, Keeper
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.broker.session.subscriptions import Grant, Subscription, memory_of, merge
from sterna.broker.session_lifecycle import SessionLifecycle
from sterna.journal.journal import Journal
from sterna.mqtt import packets
from sterna.mqtt import properties as prop
from sterna.mqtt.message import Message
from sterna.mqtt.packets import (
    MQTT_5,
    FilterRequest,
    Subscribe,
    Unsubscribe,
    check_topic_filter,
    encode_suback,
    encode_unsuback,
)
from sterna.mqtt.reasons import SUBACK_3_1_1_FAILURE, Reason
from sterna.mqtt.topics import SHARE, is_control, is_topic_filter, split_share
from sterna.operators.grammar import is_expression
from sterna.vocabulary.errors import ProtocolError

#: Retain handling (section 3.8.3.1): always, only with a new subscription, never.
RETAINED_ALWAYS, RETAINED_IF_NEW = 0, 1


class Subscribing:
    """One SUBSCRIBE on its way to its SUBACK."""

    def __init__(self, connection: Connection, session: Session, request: Subscribe) -> None:
        self.connection = connection
        self.session = session
        self.request = request
        self.answer = b""
        #: Subscriptions that bring what is retained, and since when they are told of what comes.
        self.expectant: dict[bytes, tuple[Subscription, int]] = {}
        #: Found, and to be sent after SUBACK: at QoS 0 by offset, and the `$SYS` topics, which have none.
        self.aside: OffsetQueue[Grant] = OffsetQueue()
        self.aside_sys: list[tuple[Message, Grant]] = []


class Requests:
    __slots__ = (
        "_clock",
        "_commitments",
        "_counters",
        "_delivery",
        "_journal",
        "_lifecycle",
        "_limits",
        "_log",
        "_reports",
        "_retained_messages",
        "_routes",
        "_work_budget",
        "keeper",
        "network",
        "records",
    )

    def __init__(
        self,
        state: BrokerState,
        clock: BrokerClock,
        journal: Journal,
        commitments: Commitments,
        log: SessionLog,
        delivery: Delivery,
        lifecycle: SessionLifecycle,
        reports: OperatorReports,
    ) -> None:
        self._limits = state.limits
        self._routes = state.routes
        self._retained_messages = state.retained
        self._counters = state.counters
        self._work_budget = state.work_budget
        self._clock = clock
        self._journal = journal
        self._commitments = commitments
        self._log = log
        self._delivery = delivery
        self._lifecycle = lifecycle
        self._reports = reports
        #: The other nodes; None for a lone one.
        self.network: BrokerNetwork | None = None
        #: Makes sure that one node owns a session; a lone node needs none.
        self.keeper: Keeper | None = None
        #: Notes for an audit; None if none are taken.
        self.records: DeliveryNotes | None = None

    def subscribe(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        limits = self._limits
        request = packets.decode_subscribe(
            data, body, stop, connection.version, limits.user_properties, limits.filters_per_packet
        )
        session = connection.session
        assert session is not None
        _see_that_answer_fits(session, len(request.requests))
        connection.asking += 1
        connection.run(self._subscribe(Subscribing(connection, session, request)))

    def _subscribe(self, task: Subscribing) -> Iterator[None]:
        connection, session = task.connection, task.session
        codes = bytearray()
        reason = ""
        for asked in task.request.requests:
            refusal = self._refusal(session, asked.topic_filter)
            if refusal is None:
                codes.append(asked.qos)
                self._add(task, asked)
            else:
                codes.append(refusal[0] if connection.version == MQTT_5 else SUBACK_3_1_1_FAILURE)
                reason = refusal[1]
                self._refused(connection, asked.topic_filter, refusal[0])
            yield
        packet_id = task.request.packet_id
        task.answer = encode_suback(packet_id, bytes(codes), connection.version)
        if reason and connection.wants_reasons:
            explained = encode_suback(packet_id, bytes(codes), connection.version, reason)
            task.answer = connection.within_limit(explained, task.answer)
        network = self.network
        if network is None:
            self._go_on(task)
            return
        if session.expiry_s:
            network.note_vector()
        # SUBACK says that the subscription stands: everywhere.
        network.when_known(lambda: self._go_on(task), heard=bool(task.expectant))

    def _go_on(self, task: Subscribing) -> None:
        connection = task.connection
        if connection.state != ConnectionState.CONNECTED:
            return  # it left while the network was being told
        if self.records is not None and self.network is not None:
            self.records.stands(task.session, [asked.topic_filter for asked in task.request.requests])
        if task.session.expiry_s:
            self._commitments.answer_by(connection, lambda: connection.run(self._prepare(task)))
        else:
            connection.send(task.answer)
            if self.network is None:
                self._look_up(task)
            else:
                # Messages that other nodes had acknowledged before are here by now, and may still be on their way to
                # the journal: a value that was taken away there must not be found.
                self._commitments.in_turn(lambda: self._look_up(task))

    def _look_up(self, task: Subscribing) -> None:
        if task.connection.state == ConnectionState.CONNECTED:
            task.connection.run(self._send_retained(task))

    def _prepare(self, task: Subscribing) -> Iterator[None]:
        """The subscription is safe; so must be what comes with it before the client may rely on it."""
        waiting = False
        queued_max = self._limits.queued
        for found in self._retained(task):
            if found is not None:
                message, grant = found
                if self._delivery.queue_retained(task.session, message, grant):
                    waiting = True
                elif message.offset < 0:
                    task.aside_sys.append(found)
                elif len(task.aside) < queued_max:
                    task.aside.push(message.offset, grant)
                else:
                    self._counters.dropped("queue-full")
            yield
        if waiting:
            self._commitments.answer_by(task.connection, lambda: self._confirm(task))
        else:
            self._confirm(task)

    def _confirm(self, task: Subscribing) -> None:
        task.connection.send(task.answer)
        if task.connection.state == ConnectionState.CONNECTED:
            for message, grant in task.aside_sys:
                self._delivery.send_retained(task.session, message, grant)
            self._delivery.retained_backlog.add(task.session, task.aside)
            self._delivery.pump(task.session)
        task.connection.asking -= 1

    def _send_retained(self, task: Subscribing) -> Iterator[None]:
        for found in self._retained(task):
            if found is not None:
                self._delivery.send_retained(task.session, *found)
            yield
        self._delivery.pump(task.session)
        task.connection.asking -= 1

    def _retained(self, task: Subscribing) -> Iterator[tuple[Message, Grant] | None]:
        """Messages retained when the client subscribed; one that replaced another since came to the client as it was.

        None for every look that found nothing.  Messages published while this goes on do not wait for it: on a topic
        that has not been looked at yet, a message that is not retained may come before the one that is.
        """
        session = task.session
        for topic_filter, (subscription, moment) in task.expectant.items():
            grant = merge([subscription])._replace(retained=True)
            self._work_budget.spent += work_budget.FILTER
            for message in self._retained_messages.walk(topic_filter):
                if session.subscriptions.get(topic_filter) is not subscription:
                    break  # unsubscribed, or subscribed again
                self._work_budget.spent += work_budget.LOOK
                if (
                    message is None
                    or self._retained_messages.later_than(moment, message.topic)
                    or not self._retained_messages.alive(message, self._clock.wall)
                    or not session.permissions.may_receive(message.topic)
                ):
                    yield None
                    continue
                self._work_budget.spent += work_budget.MESSAGE
                yield message, grant

    def _refusal(self, session: Session, topic_filter: bytes) -> tuple[int, str] | None:
        """Why this filter may not be subscribed to, if so; a filter that is no filter ends the connection."""
        limits = self._limits
        check_topic_filter(topic_filter)
        shared = split_share(topic_filter) if topic_filter.startswith(SHARE) else None
        plain = topic_filter if shared is None else shared[1]
        if not is_topic_filter(plain, limits.topic_levels, limits.topic_bytes):
            return Reason.TOPIC_FILTER_INVALID, "topic filter has too many levels or bytes"
        held = session.subscriptions
        if is_expression(topic_filter):
            refusal = self._cannot_compute(session, topic_filter)
            if refusal is not None:
                return refusal
        if not session.permissions.may_subscribe(plain) or (shared is not None and is_control(plain)):
            return Reason.NOT_AUTHORIZED, "not authorized"
        return None if topic_filter in held else self._no_room(session, topic_filter)

    def _no_room(self, session: Session, topic_filter: bytes) -> tuple[int, str] | None:
        limits = self._limits
        if len(session.subscriptions) >= limits.subscriptions_per_client:
            return Reason.QUOTA_EXCEEDED, f"more than {limits.subscriptions_per_client} subscriptions"
        if self._routes.overlapping(session, topic_filter) > limits.overlapping_filters:
            return Reason.QUOTA_EXCEEDED, f"more than {limits.overlapping_filters} filters that match the same topics"
        size = memory_of(topic_filter)
        if self._routes.charged(session) + size > limits.subscription_bytes_per_client:
            return Reason.QUOTA_EXCEEDED, "more memory for subscriptions than subscription_bytes_per_client"
        if self._routes.subscription_bytes + size > limits.subscription_bytes:
            return Reason.QUOTA_EXCEEDED, "more memory for the subscriptions of all clients than subscription_bytes"
        return None

    def _refused(self, connection: Connection, topic_filter: bytes, code: int) -> None:
        self._counters.subscription_refused(Reason(code).name.lower().replace("_", "-"))
        if code == Reason.NOT_AUTHORIZED:
            self._reports.denied("subscribe denied", connection, topic_filter, "subscribe")

    def _cannot_compute(self, session: Session, text: bytes) -> tuple[int, str] | None:
        held = session.subscriptions
        most = self._limits.expressions_per_client
        self._work_budget.spent += len(held)
        if text not in held and sum(map(is_expression, held)) >= most:
            return Reason.QUOTA_EXCEEDED, f"more than {most} expressions"
        computations = self._routes.computations
        self._work_budget.spent += work_budget.EXPRESSION + work_budget.RECIPIENT * len(computations)
        refusal = computations.refusal(text, session)
        return None if refusal is None else (Reason.TOPIC_FILTER_INVALID, refusal)

    def _add(self, task: Subscribing, asked: FilterRequest) -> None:
        session = task.session
        shared = asked.topic_filter.startswith(SHARE)
        bridge = task.connection.bridge
        subscription = Subscription(
            asked.topic_filter,
            asked.qos,
            asked.no_local or (bridge and not shared),
            asked.retain_as_published or bridge,
            task.request.identifier,
        )
        before = session.subscriptions.get(asked.topic_filter)
        new = self._routes.subscribe(session, subscription)
        if self.records is not None:
            self.records.subscribed(session, subscription, before)
        if session.expiry_s:
            session.subscribed_at = self._journal.next_offset
            self._log.subscribed(session, subscription)
            if before is None and self.keeper is not None:
                self.keeper.subscribed(session, asked.topic_filter)
        wanted = asked.retain_handling == RETAINED_ALWAYS or (asked.retain_handling == RETAINED_IF_NEW and new)
        # A filter that stands twice in one packet brings its retained messages once.
        expected = task.expectant.get(asked.topic_filter)
        if expected is not None:
            task.expectant[asked.topic_filter] = subscription, expected[1]
        elif wanted and not shared:  # a group never gets retained messages [MQTT-4.8.2]
            task.expectant[asked.topic_filter] = subscription, self._retained_messages.moment(task)

    def unsubscribe(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        limits = self._limits
        request = packets.decode_unsubscribe(
            data, body, stop, connection.version, limits.user_properties, limits.filters_per_packet
        )
        for topic_filter in request.filters:
            check_topic_filter(topic_filter)
        session = connection.session
        assert session is not None
        _see_that_answer_fits(session, len(request.filters))
        connection.run(self._unsubscribe(connection, session, request))

    def _unsubscribe(self, connection: Connection, session: Session, request: Unsubscribe) -> Iterator[None]:
        codes = bytearray()
        for topic_filter in request.filters:
            subscription = session.subscriptions.get(topic_filter)
            if self._routes.unsubscribe(session, topic_filter):
                codes.append(Reason.SUCCESS)
                if self.records is not None and subscription is not None:
                    self.records.unsubscribed(session, subscription)
                if session.expiry_s:
                    self._log.unsubscribed(session, topic_filter)
            else:
                codes.append(Reason.NO_SUBSCRIPTION_EXISTED)
            yield
        answer = encode_unsuback(request.packet_id, bytes(codes), connection.version)
        self._commitments.answer(connection, answer)

    def disconnect(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        code: int = Reason.SUCCESS
        if connection.version == MQTT_5:
            limit = self._limits.user_properties
            code, found = packets.decode_ending(data, body, stop, "DISCONNECT", limit)
            if prop.SESSION_EXPIRY in found and connection.session is not None:
                self._change_expiry(connection.session, found[prop.SESSION_EXPIRY])
        elif body != stop:
            raise ProtocolError(Reason.MALFORMED_PACKET, "DISCONNECT with a body")
        if connection.session is not None and connection.session.beginning is not None:
            connection.session.beginning.left()
        self._lifecycle.end(connection, b"", graceful=code == Reason.SUCCESS)

    def _change_expiry(self, session: Session, expiry_s: int) -> None:
        if expiry_s and not session.expiry_s:
            # [MQTT-3.1.2-23]
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a session that was to end with its connection cannot be kept")
        session.expiry_s = min(expiry_s, self._limits.session_expiry_s)


def _see_that_answer_fits(session: Session, codes: int) -> None:
    """Before anything is done: there is no shorter answer than one code per filter [MQTT-3.1.2-24]."""
    if session.packet_bytes_max and len(encode_suback(1, bytes(codes), session.version)) > session.packet_bytes_max:
        raise ProtocolError(
            Reason.PACKET_TOO_LARGE,
            f"the answer to {codes} topic filters is above the client's Maximum Packet Size: fewer at a time fit",
        )
