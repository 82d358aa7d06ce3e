"""A small MQTT client without a socket: connects with a clean session, subscribes and publishes at QoS 0.

Bytes in, events out.  The server's bytes are trusted no more than a client's: anything that is not MQTT is a
`ProtocolError`, and the owner hangs up.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from sterna.mqtt import wire
from sterna.mqtt.client_packets import PINGREQ_BYTES, encode_connect, encode_publish, encode_subscribe
from sterna.mqtt.framing import Incoming, packet_end
from sterna.mqtt.packets import MQTT_3_1_1
from sterna.mqtt.reasons import SUBACK_3_1_1_FAILURE, Reason
from sterna.mqtt.server_packets import decode_connack
from sterna.vocabulary.errors import ProtocolError

_CONNACK, _PUBLISH, _SUBACK, _PINGRESP = 2, 3, 9, 13

_REFUSALS = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take this client identifier",
    3: "it is not available",
    4: "user name or password is wrong",
    5: "this user may not connect",
}


class ConnectAccepted(NamedTuple):
    """The server has let the client in."""


class ConnectRefused(NamedTuple):
    reason: str


class Subscribed(NamedTuple):
    """All filters so far stand."""


class Denied(NamedTuple):
    """Some filter was refused."""

    filters: tuple[bytes, ...]


class PublishReceived(NamedTuple):
    topic: bytes
    payload: bytes


Event: TypeAlias = ConnectAccepted | ConnectRefused | Subscribed | Denied | PublishReceived


class ClientLine:
    """One connection."""

    def __init__(
        self, client_id: str, *, keep_alive_s: int, packet_bytes: int, user: str | None, password: bytes | None
    ) -> None:
        self._packet_bytes = packet_bytes
        self._incoming = Incoming()
        self._asked: dict[int, tuple[bytes, ...]] = {}
        self._packet_id = 0
        self.is_open = False
        self.hello = encode_connect(
            MQTT_3_1_1,
            client_id.encode(),
            clean=True,
            keep_alive_s=keep_alive_s,
            username=user.encode() if user is not None else None,
            password=password,
        )
        """To be sent first."""

    def subscribe(self, *filters: bytes) -> bytes:
        self._packet_id = self._packet_id % 65_535 + 1
        self._asked[self._packet_id] = filters
        return encode_subscribe(self._packet_id, [(one, 0) for one in filters], MQTT_3_1_1)

    def publish(self, topic: bytes, payload: bytes) -> bytes:
        return encode_publish(topic, payload, MQTT_3_1_1)

    def ping(self) -> bytes:
        return PINGREQ_BYTES

    def feed(self, data: bytes) -> list[Event]:
        data = self._incoming.with_more(data)
        position, events = 0, []
        while position < len(data):
            body, stop = packet_end(data, position, self._packet_bytes)
            if not body:
                self._incoming.keep(data[position:], stop)
                break
            event = self._packet(data[position], data, body, stop)
            if event is not None:
                events.append(event)
            position = stop
        return events

    def _packet(self, first: int, data: bytes, body: int, stop: int) -> Event | None:
        kind = first >> 4
        if (kind == _CONNACK) == self.is_open:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} at the wrong time")
        if kind == _CONNACK:
            code = decode_connack(data, body, stop, MQTT_3_1_1).code
            self.is_open = not code
            return ConnectRefused(_REFUSALS.get(code, f"return code {code}")) if code else ConnectAccepted()
        if kind == _PUBLISH:
            topic, position = wire.read_binary(data, body, stop)
            if first >> 1 & 3:
                _, position = wire.read_two(data, position, stop)
            return PublishReceived(topic, data[position:stop])
        if kind == _SUBACK:
            return self._suback(data, body, stop)
        if kind != _PINGRESP:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind}, which nobody asked for")
        return None

    def _suback(self, data: bytes, body: int, stop: int) -> Event:
        packet_id, position = wire.read_two(data, body, stop)
        filters = self._asked.pop(packet_id, None)
        codes = data[position:stop]
        if filters is None or len(codes) != len(filters):
            raise ProtocolError(Reason.PROTOCOL_ERROR, "SUBACK to no SUBSCRIBE")
        denied = tuple(one for one, code in zip(filters, codes, strict=True) if code == SUBACK_3_1_1_FAILURE)
        return Denied(denied) if denied else Subscribed()
