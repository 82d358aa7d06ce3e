"""MQTT 3.1.1 packets: cutting a stream into packets, reading the few fields that algorithms need, and the generator.

The node passes packets on as the bytes they came in.  It makes packets of its own for its neighbours only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import pack, unpack_from
from typing import Any

from sterna.measure.errors import MeasurementError

PACKET_BYTES_MAX = 1024 * 1024
LENGTH_BYTES_MAX = 4


class MessageType(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


TYPES = {int(kind): kind for kind in MessageType}


class NotMqtt(MeasurementError):
    """Bytes that are no packet of MQTT 3.1.1, or a packet that is too large."""


class PacketStream:
    """Packets out of bytes that come in pieces; holds at most one packet that is not whole."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[MessageType, bytes]]:
        buffer = self._rest + data if self._rest else data
        found = []
        place, end = 0, len(buffer)
        while place + 2 <= end:
            length, shift, body = 0, 0, place + 1
            while body < end:
                byte = buffer[body]
                body += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
                if shift == 7 * LENGTH_BYTES_MAX:
                    raise NotMqtt("a packet has a length of more than four bytes")
            else:
                break
            kind = TYPES.get(buffer[place] >> 4)
            if kind is None or length > PACKET_BYTES_MAX:
                raise NotMqtt(f"a packet begins with {buffer[place : place + 4].hex()}")
            if body + length > end:
                break
            found.append((kind, buffer[place : body + length]))
            place = body + length
        self._rest = buffer[place:]
        return found


@dataclass(frozen=True, slots=True)
class ConnectFields:
    client_id: str
    level: int
    clean: bool
    will: tuple[str, bytes, bool] | None
    """Topic, payload and whether it is retained."""


def body_of(message: bytes) -> int:
    """Where the variable header begins."""
    place = 1
    while message[place] & 0x80:
        place += 1
    return place + 1


def read_connect(message: bytes) -> ConnectFields:
    try:
        name, place = _field(message, body_of(message))
        level, flags = message[place], message[place + 1]
        client_id, place = _field(message, place + 4)
        will = None
        if flags & 0x04:
            topic, place = _field(message, place)
            payload, place = _field(message, place)
            will = (topic.decode(), payload, bool(flags & 0x20))
        if name not in (b"MQTT", b"MQIsdp"):
            raise NotMqtt(f"the protocol is called {name!r}")
        return ConnectFields(client_id.decode(), level, bool(flags & 0x02), will)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise NotMqtt(f"a CONNECT cannot be read: {error}") from None


def read_topic(message: bytes) -> bytes:
    """Of a PUBLISH."""
    return _field(message, body_of(message))[0]


def read_publish(message: bytes) -> tuple[bytes, bytes]:
    """Topic and payload."""
    topic, place = _field(message, body_of(message))
    return topic, message[place + (2 if message[0] & 0x06 else 0) :]


def read_filters(message: bytes) -> tuple[int, list[tuple[str, int]]]:
    """Packet identifier, and filters with their QoS, of a SUBSCRIBE or (QoS 0) an UNSUBSCRIBE."""
    place = body_of(message)
    has_qos = message[0] >> 4 == MessageType.SUBSCRIBE
    (identifier,) = unpack_from(">H", message, place)
    place += 2
    found = []
    while place < len(message):
        text, place = _field(message, place)
        qos = message[place] if has_qos else 0
        place += has_qos
        found.append((text.decode(), qos))
    return identifier, found


def read_suback(message: bytes) -> tuple[int, bytes]:
    """Packet identifier and return codes."""
    return unpack_from(">H", message, 2)[0], message[4:]


def read_identifier(message: bytes) -> int:
    """Of an acknowledgement."""
    return int(unpack_from(">H", message, 2)[0])


def create_mqtt_message(kind: MessageType, **parameters: Any) -> bytes:
    """The message generator.

    CONNECT client_id, keep_alive, clean, will; CONNACK code, session_present; PUBLISH topic, payload, qos, retain, dup,
    identifier; SUBSCRIBE identifier, filters; SUBACK identifier, codes; UNSUBSCRIBE identifier, filters;
    acknowledgements identifier; the others nothing.
    """
    return GENERATORS[kind](**parameters)


def _connect(
    client_id: str, keep_alive: int = 0, clean: bool = True, will: tuple[str, bytes, int, bool] | None = None
) -> bytes:
    flags, tail = (0x02 if clean else 0), b""
    if will is not None:
        topic, payload, qos, retain = will
        flags |= 0x04 | qos << 3 | (0x20 if retain else 0)
        tail = _text(topic.encode()) + _text(payload)
    return _packet(0x10, _text(b"MQTT") + bytes((4, flags)) + pack(">H", keep_alive) + _text(client_id.encode()) + tail)


def _publish(
    topic: bytes, payload: bytes, qos: int = 0, retain: bool = False, dup: bool = False, identifier: int = 0
) -> bytes:
    numbered = pack(">H", identifier) if qos else b""
    return _packet(0x30 | dup << 3 | qos << 1 | retain, _text(topic) + numbered + payload)


def _connack(code: int = 0, session_present: bool = False) -> bytes:
    return bytes((0x20, 2, session_present, code))


def _subscribe(identifier: int, filters: Sequence[tuple[str, int]]) -> bytes:
    return _packet(
        0x82, pack(">H", identifier) + b"".join(_text(name.encode()) + bytes((qos,)) for name, qos in filters)
    )


def _suback(identifier: int, codes: bytes) -> bytes:
    return _packet(0x90, pack(">H", identifier) + codes)


def _unsubscribe(identifier: int, filters: Sequence[str]) -> bytes:
    return _packet(0xA2, pack(">H", identifier) + b"".join(_text(name.encode()) for name in filters))


def _acknowledgement(first: int) -> Callable[[int], bytes]:
    def made(identifier: int) -> bytes:
        return pack(">BBH", first, 2, identifier)

    return made


def _empty(first: int) -> Callable[[], bytes]:
    return lambda: bytes((first, 0))


GENERATORS: dict[MessageType, Callable[..., bytes]] = {
    MessageType.CONNECT: _connect,
    MessageType.CONNACK: _connack,
    MessageType.PUBLISH: _publish,
    MessageType.PUBACK: _acknowledgement(0x40),
    MessageType.PUBREC: _acknowledgement(0x50),
    MessageType.PUBREL: _acknowledgement(0x62),
    MessageType.PUBCOMP: _acknowledgement(0x70),
    MessageType.SUBSCRIBE: _subscribe,
    MessageType.SUBACK: _suback,
    MessageType.UNSUBSCRIBE: _unsubscribe,
    MessageType.UNSUBACK: _acknowledgement(0xB0),
    MessageType.PINGREQ: _empty(0xC0),
    MessageType.PINGRESP: _empty(0xD0),
    MessageType.DISCONNECT: _empty(0xE0),
}


def _field(message: bytes, place: int) -> tuple[bytes, int]:
    end = place + 2 + (message[place] << 8 | message[place + 1])
    if end > len(message):
        raise NotMqtt("a field is longer than its packet")
    return message[place + 2 : end], end


def _text(text: bytes) -> bytes:
    return pack(">H", len(text)) + text


def _packet(first: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes((first,)) + bytes(encoded) + body
