"""Takes PUBLISH packets: decodes, checks, accepts or refuses them, and answers once the message is safe.

A message is accepted whole or not at all.  A mistake in the packet itself ends the connection; a message that is
refused is answered so in its acknowledgement, where the protocol has one.
"""

from __future__ import annotations

from sterna.broker.access.bridges import may_publish
from sterna.broker.backpressure import Backpressure
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.control_notes import ControlNotes
from sterna.broker.ingress import Ingress
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.packets.acknowledgements import read_acknowledgement
from sterna.broker.session.connection import Connection
from sterna.broker.session.publisher_sequence import number_of
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import (
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    check_response_topic,
    check_topic_name,
    encode_acknowledgement,
)
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_control, is_reserved
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.errors import ProtocolError

#: Topics remembered that one restricted client may publish to; past this the memory is cleared.
ALLOWED_MAX = 1024


class Publications:
    __slots__ = (
        "_backpressure",
        "_clock",
        "_commitments",
        "_counters",
        "_ingress",
        "_limits",
        "_log",
        "_remembered",
        "_reports",
        "_retained",
        "control_notes",
    )

    def __init__(
        self,
        state: BrokerState,
        clock: BrokerClock,
        commitments: Commitments,
        log: SessionLog,
        ingress: Ingress,
        backpressure: Backpressure,
        reports: OperatorReports,
    ) -> None:
        self._limits = state.limits
        self._counters = state.counters
        self._remembered = state.routes.remembered
        self._retained = state.retained
        self._clock = clock
        self._commitments = commitments
        self._log = log
        self._ingress = ingress
        self._backpressure = backpressure
        self._reports = reports
        self.control_notes = ControlNotes()

    def publish(self, connection: Connection, first: int, data: bytes, body: int, stop: int) -> None:
        """HOT for QoS 1 and 2.  One PUBLISH of any kind."""
        qos = first >> 1 & 3
        if qos == 3:
            raise wire.malformed("QoS 3")  # [MQTT-3.3.1-4]
        if first & 0x08 and not qos:
            raise wire.malformed("DUP at QoS 0")  # [MQTT-3.3.1-2]
        topic, position = wire.read_binary(data, body, stop)
        packet_id = 0
        if qos:
            packet_id, position = wire.read_two(data, position, stop)
            if packet_id == 0:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "packet identifier 0")
        values = prop.NONE
        forwarded = b""
        if connection.version == MQTT_5:
            if position < stop and data[position] == 0:
                position += 1
            else:
                limit = self._limits.user_properties
                values, forwarded, position = prop.read_properties(data, position, stop, "PUBLISH", limit)
                topic = self._resolve_alias(connection, topic, values.get(prop.TOPIC_ALIAS, 0))
        if topic not in self._remembered:
            self._check_topic(topic)
        wall = self._clock.wall
        expiry = values.get(prop.MESSAGE_EXPIRY)
        session = connection.session
        assert session is not None
        received_at = wall if not first & 1 else self._ingress.retained_stamp(topic, session)
        message = Message(
            topic,
            data[position:stop],
            qos,
            bool(first & 1),
            forwarded,
            NEVER if expiry is None else wall + expiry,
            session.client_id,
            received_at,
        )
        self._counters.publish_received += 1
        self._counters.publish_bytes_received += stop - position
        refusal = self._refusal(connection, message, values)
        if self._counters.observer is not None and refusal is None and not is_control(topic):
            self._counters.observer.saw(topic, 1, stop - position, data, position, stop)
        if refusal is not None and not (qos == 2 and packet_id in session.received):
            if refusal[0]:
                self._refuse(connection, topic, qos, packet_id, *refusal)
            elif qos:
                self._answer_repeat(connection, session, qos, packet_id)
        elif qos == 0:
            self._ingress.publish_qos0(message, session)
        elif forwarded and session.in_doubt is None and self._is_repeat(session, message, packet_id):
            self._answer_repeat(connection, session, qos, packet_id)
        elif qos == 1:
            self._accept_qos1(connection, message, packet_id)
        else:
            self._accept_qos2(connection, session, message, packet_id)

    def _resolve_alias(self, connection: Connection, topic: bytes, alias: int) -> bytes:
        if not alias:
            return topic
        if alias > self._limits.topic_aliases:
            raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is above the maximum")
        if connection.aliases is None:
            connection.aliases = {}
        if topic:
            self._check_topic(topic)
            connection.aliases[alias] = topic
            return topic
        known = connection.aliases.get(alias)
        if known is None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"topic alias {alias} was never defined")
        return known

    def _check_topic(self, topic: bytes) -> None:
        wire.check_text(topic)
        limits = self._limits
        check_topic_name(topic, limits.topic_levels, limits.topic_bytes)

    def _refusal(
        self, connection: Connection, message: Message, values: prop.Properties
    ) -> tuple[int, DropReason] | None:
        """Why this message goes no further, if so; with SUCCESS if it has been dealt with."""
        topic = message.topic
        allowed = connection.allowed
        if is_reserved(topic):
            return self._bridge_state(connection, message)
        if is_control(topic):
            return self._control(connection, message)
        if allowed is not None and topic not in allowed and not self._ask_permission(connection, topic):
            return Reason.NOT_AUTHORIZED, "not-authorized"
        if values:
            check_response_topic(values)
            if values.get(prop.PAYLOAD_FORMAT) and not _is_text(message.payload):
                return Reason.PAYLOAD_FORMAT_INVALID, "payload-format-invalid"
        if message.retain and not self._retained.has_room(message):
            return Reason.QUOTA_EXCEEDED, "retained-full"
        return None

    def _control(self, connection: Connection, message: Message) -> tuple[int, DropReason] | None:
        refusal = _control_refusal(connection, message)
        if refusal is None:
            self.control_notes.saw(message.topic, bytes(message.payload), self._clock.now)
        return refusal

    def _bridge_state(self, connection: Connection, message: Message) -> tuple[int, DropReason] | None:
        """Of the topics that only the broker writes to, a bridge may publish one: whether it is there."""
        session = connection.session
        assert session is not None
        if not may_publish(session.permissions, session.client_id, message.topic, message.payload):
            return Reason.NOT_AUTHORIZED, "not-authorized"
        if not self._ingress.publish_bridge_state(message.topic, message.payload):
            return Reason.QUOTA_EXCEEDED, "too-many-bridges"
        return Reason.SUCCESS, ""

    def _ask_permission(self, connection: Connection, topic: bytes) -> bool:
        session = connection.session
        assert session is not None
        assert connection.allowed is not None
        if not session.permissions.may_publish(topic):
            return False
        if len(connection.allowed) >= ALLOWED_MAX:
            connection.allowed.clear()
        connection.allowed.add(topic)
        return True

    def _refuse(
        self, connection: Connection, topic: bytes, qos: int, packet_id: int, code: int, reason: DropReason
    ) -> None:
        """The message goes nowhere.  3.1.1 has no way to say so, and MQTT 5 none at QoS 0: counted."""
        self._counters.dropped(reason)
        if code == Reason.NOT_AUTHORIZED:
            self._reports.denied("publish denied", connection, topic, "publish")
        if qos:
            kind = PUBACK if qos == 1 else PUBREC
            bare = encode_acknowledgement(kind, packet_id, code, connection.version)
            if connection.wants_reasons:
                bare = connection.within_limit(
                    encode_acknowledgement(kind, packet_id, code, connection.version, reason), bare
                )
            self._commitments.answer(connection, bare)

    def _accept_qos1(self, connection: Connection, message: Message, packet_id: int) -> None:
        self._count(connection)
        self._commitments.publication(message, connection, packet_id)

    def _accept_qos2(self, connection: Connection, session: Session, message: Message, packet_id: int) -> None:
        if packet_id in session.received:
            # Seen before and not released: the first PUBREC was lost, the message was not [MQTT-4.3.3-10].
            answer = encode_acknowledgement(PUBREC, packet_id, Reason.SUCCESS, connection.version)
            self._commitments.answer(connection, answer)
            return
        self._take_in(connection, session, packet_id)
        self._commitments.publication(message, connection, packet_id)

    def _take_in(self, connection: Connection, session: Session, packet_id: int) -> None:
        """From here on until it is released, the identifier stands for a message we have."""
        self._count(connection)
        if len(session.received) >= self._limits.receive_maximum:
            # Slowing a client down does not help when it is the client that does not release.
            raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many QoS 2 messages are not released")
        session.received.add(packet_id)
        if session.expiry_s:
            self._log.arrived(session, packet_id)

    def _is_repeat(self, session: Session, message: Message, packet_id: int) -> bool:
        """Has a publisher that numbers its messages sent this one before?  Else it is the last one from now on."""
        number = number_of(message.properties)
        if number is None:
            return False
        if number <= session.sequence:
            return True
        session.sequence = number
        # The number decides, not the identifier: an earlier life of the client may have left it unreleased.
        session.received.discard(packet_id)
        self._log.touched(session)
        return False

    def _answer_repeat(self, connection: Connection, session: Session, qos: int, packet_id: int) -> None:
        """As if it had just been published; not before the first time is safe."""
        if qos == 2 and packet_id not in session.received:
            self._take_in(connection, session, packet_id)
        kind = PUBACK if qos == 1 else PUBREC
        answer = encode_acknowledgement(kind, packet_id, Reason.SUCCESS, connection.version)
        self._commitments.answer(connection, answer)

    def _count(self, connection: Connection) -> None:
        """One more that the client waits for: until PUBACK, or at QoS 2 until PUBCOMP [MQTT-3.3.4-7]."""
        connection.unanswered += 1
        if connection.unanswered <= self._limits.receive_maximum:
            return
        if connection.version == MQTT_5:
            raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than agreed")
        # 3.1.1 cannot be told a maximum: it is slowed down instead.
        self._backpressure.pause(connection)

    def published(self, connection: Connection, message: Message, packet_id: int, *, matched: bool) -> None:
        """HOT.  The journal has the message: tell its publisher."""
        kind = PUBREC
        if message.qos == 1:
            connection.unanswered -= 1
            kind = PUBACK
        if matched or connection.version != MQTT_5:
            connection.send(b"%c\x02%c%c" % (kind << 4, packet_id >> 8, packet_id & 0xFF))
        else:
            connection.send(encode_acknowledgement(kind, packet_id, Reason.NO_MATCHING_SUBSCRIBERS, connection.version))

    def pubrel(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        packet_id, _ = read_acknowledgement(connection, data, body, stop, self._limits.user_properties)
        session = connection.session
        assert session is not None
        code = Reason.SUCCESS
        if packet_id in session.received:
            session.received.remove(packet_id)
            connection.unanswered = max(0, connection.unanswered - 1)  # unless it came over an earlier connection
            if session.expiry_s:
                self._log.released(session, packet_id)
        else:
            code = Reason.PACKET_IDENTIFIER_NOT_FOUND
        # If the release were forgotten, the client's next message under this identifier would be taken for a
        # repetition: PUBCOMP waits for the journal too.
        self._commitments.answer(connection, encode_acknowledgement(PUBCOMP, packet_id, code, connection.version))


def _control_refusal(connection: Connection, message: Message) -> tuple[int, DropReason] | None:
    """Control words pass by: they are never journalled, so they are at QoS 0 and not retained."""
    session = connection.session
    assert session is not None
    if not session.permissions.may_publish(message.topic):
        return Reason.NOT_AUTHORIZED, "not-authorized"
    if message.qos:
        return Reason.QOS_NOT_SUPPORTED, "control-topic-qos"
    return (Reason.RETAIN_NOT_SUPPORTED, "control-topic-retained") if message.retain else None


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
