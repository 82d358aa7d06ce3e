"""SUBSCRIBE, UNSUBSCRIBE and DISCONNECT: what a connected client asks for besides publishing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.broker.connection import Connection, State
from sterna.broker.session import Session
from sterna.broker.subscriptions import Subscription
from sterna.mqtt import packets
from sterna.mqtt import properties as prop
from sterna.mqtt.message import Message
from sterna.mqtt.packets import MQTT_5, FilterRequest, encode_suback, encode_unsuback
from sterna.mqtt.reasons import SUBACK_3_1_1_FAILURE, Reason
from sterna.mqtt.topics import SHARE, is_topic_filter, split_share
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.broker.broker import Broker

#: Retain handling (section 3.8.3.1): always, only with a new subscription, never.
RETAINED_ALWAYS, RETAINED_IF_NEW = 0, 1


class Requests:
    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def subscribe(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        limit = self._broker.limits.user_properties
        request = packets.decode_subscribe(data, body, stop, connection.version, limit)
        session = connection.session
        assert session is not None
        codes = bytearray()
        reason = ""
        retained: list[tuple[Subscription, list[Message]]] = []
        seen: set[bytes] = set()
        for asked in request.requests:
            refusal = self._refusal(session, asked.topic_filter)
            if refusal is None:
                codes.append(asked.qos)
                # A filter that stands twice in one packet brings its retained messages once.
                again = asked.topic_filter in seen
                self._add(session, asked, request.identifier, [] if again else retained)
                seen.add(asked.topic_filter)
            else:
                codes.append(refusal[0] if connection.version == MQTT_5 else SUBACK_3_1_1_FAILURE)
                reason = refusal[1]
        answer = encode_suback(request.packet_id, bytes(codes), connection.version)
        if reason and connection.wants_reasons:
            explained = encode_suback(request.packet_id, bytes(codes), connection.version, reason)
            answer = connection.within_limit(explained, answer)

        def prepare() -> None:
            """The subscription is safe; so must be what comes with it before the client may rely on it."""
            waiting = False
            if connection.state == State.CONNECTED:
                for subscription, messages in retained:
                    waiting = self._broker.delivery.queue_retained(session, subscription, messages) or waiting
            if waiting:
                self._broker.commitments.then(connection, confirm)
            else:
                confirm()

        def confirm() -> None:
            connection.send(answer)
            if connection.state == State.CONNECTED:
                for subscription, messages in retained:
                    self._broker.delivery.send_retained(session, subscription, messages)
                self._broker.delivery.pump(session)

        if session.expiry_s:
            self._broker.commitments.then(connection, prepare)
        else:
            confirm()

    def _refusal(self, session: Session, topic_filter: bytes) -> tuple[int, str] | None:
        """Why this filter may not be subscribed to, if so; a filter that is no filter ends the connection."""
        limits = self._broker.limits
        plain = topic_filter
        if topic_filter.startswith(SHARE):
            shared = split_share(topic_filter)
            if shared is None:
                raise ProtocolError(Reason.MALFORMED_PACKET, "shared subscription is not $share/group/filter")
            plain = shared[1]
        if not is_topic_filter(plain, levels_max=1 << 16, bytes_max=1 << 16):
            raise ProtocolError(Reason.MALFORMED_PACKET, "topic filter is empty or has a wildcard in a wrong place")
        if not is_topic_filter(plain, limits.topic_levels, limits.topic_bytes):
            return Reason.TOPIC_FILTER_INVALID, "topic filter has too many levels or bytes"
        if not session.permissions.unrestricted and not session.permissions.may_subscribe(plain):
            return Reason.NOT_AUTHORIZED, "not authorized"
        held = session.subscriptions
        if topic_filter not in held and len(held) >= limits.subscriptions_per_client:
            return Reason.QUOTA_EXCEEDED, f"more than {limits.subscriptions_per_client} subscriptions"
        return None

    def _add(
        self,
        session: Session,
        asked: FilterRequest,
        identifier: int,
        retained: list[tuple[Subscription, list[Message]]],
    ) -> None:
        subscription = Subscription(
            asked.topic_filter, asked.qos, asked.no_local, asked.retain_as_published, identifier
        )
        new = self._broker.routes.subscribe(session, subscription)
        if session.expiry_s:
            session.subscribed_at = self._broker.journal.next_offset
            self._broker.log.subscribed(session, subscription)
        shared = asked.topic_filter.startswith(SHARE)  # never gets retained messages [MQTT-4.8.2]
        wanted = asked.retain_handling == RETAINED_ALWAYS or (asked.retain_handling == RETAINED_IF_NEW and new)
        if wanted and not shared:
            retained.append((subscription, self._broker.retained.match(asked.topic_filter, self._broker.wall)))

    def unsubscribe(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        limit = self._broker.limits.user_properties
        request = packets.decode_unsubscribe(data, body, stop, connection.version, limit)
        session = connection.session
        assert session is not None
        codes = bytearray()
        for topic_filter in request.filters:
            if not topic_filter:
                raise ProtocolError(Reason.MALFORMED_PACKET, "empty topic filter")
            if self._broker.routes.unsubscribe(session, topic_filter):
                codes.append(Reason.SUCCESS)
                if session.expiry_s:
                    self._broker.log.unsubscribed(session, topic_filter)
            else:
                codes.append(Reason.NO_SUBSCRIPTION_EXISTED)
        answer = encode_unsuback(request.packet_id, bytes(codes), connection.version)
        self._broker.commitments.answer(connection, answer)

    def disconnect(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        code: int = Reason.SUCCESS
        if connection.version == MQTT_5:
            limit = self._broker.limits.user_properties
            code, found = packets.decode_ending(data, body, stop, "DISCONNECT", limit)
            if prop.SESSION_EXPIRY in found and connection.session is not None:
                self._change_expiry(connection.session, found[prop.SESSION_EXPIRY])
        elif body != stop:
            raise ProtocolError(Reason.MALFORMED_PACKET, "DISCONNECT with a body")
        self._broker.lifecycle.end(connection, b"", graceful=code == Reason.SUCCESS)

    def _change_expiry(self, session: Session, expiry_s: int) -> None:
        if expiry_s and not session.expiry_s:
            # [MQTT-3.1.2-23]
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a session that was to end with its connection cannot be kept")
        session.expiry_s = min(expiry_s, self._broker.limits.session_expiry_s)
