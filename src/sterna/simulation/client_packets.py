"""Packets of an MQTT client as bytes: the half of the codec that a broker has no use for.

Both versions (4 is 3.1.1, 5 is 5.0).  A broker's bytes that are not MQTT are an assertion: it is the broker under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.packets import MQTT_5, packet
from sterna.mqtt.properties import write_properties

PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"
DUP = 0x08
FOREVER_S = 0xFFFF_FFFF


class LastWords(NamedTuple):
    """A will."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool = False


class Delivered(NamedTuple):
    """A PUBLISH from the broker."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


def encode_connect(
    client_id: str, version: int, *, persistent: bool, keep_alive_s: int, receive_maximum: int, will: LastWords | None
) -> bytes:
    flags = 0 if persistent else 0x02
    last_words = b""
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        no_properties = b"\0" if version == MQTT_5 else b""
        last_words = no_properties + wire.binary(will.topic) + wire.binary(will.payload)
    body = wire.binary(b"MQTT") + bytes((version, flags)) + wire.two(keep_alive_s)
    if version == MQTT_5:
        values = {prop.RECEIVE_MAXIMUM: receive_maximum}
        if persistent:
            values[prop.SESSION_EXPIRY] = FOREVER_S
        body += write_properties(values)
    return packet(0x10, body + wire.binary(client_id.encode()) + last_words)


def decode_connect(body: bytes) -> tuple[int, str]:
    """Version and client identifier."""
    _, place = wire.read_text(body, 0, len(body))
    version = body[place]
    place += 4  # version, flags, keep-alive
    if version == MQTT_5:
        length, place = wire.read_variable(body, place, len(body))
        place += length
    return version, wire.read_text(body, place, len(body))[0].decode()


def encode_publish(
    topic: bytes, payload: bytes, qos: int, packet_id: int, version: int, *, retain: bool, dup: bool
) -> bytes:
    identifier = wire.two(packet_id) if qos else b""
    no_properties = b"\0" if version == MQTT_5 else b""
    first = 0x30 | (DUP if dup else 0) | qos << 1 | retain
    return packet(first, wire.binary(topic) + identifier + no_properties + payload)


def encode_subscribe(packet_id: int, topic_filter: bytes, qos: int, version: int) -> bytes:
    no_properties = b"\0" if version == MQTT_5 else b""
    return packet(0x82, wire.two(packet_id) + no_properties + wire.binary(topic_filter) + bytes((qos,)))


def encode_unsubscribe(packet_id: int, topic_filter: bytes, version: int) -> bytes:
    no_properties = b"\0" if version == MQTT_5 else b""
    return packet(0xA2, wire.two(packet_id) + no_properties + wire.binary(topic_filter))


def decode_publish(first: int, body: bytes, version: int) -> Delivered:
    end = len(body)
    qos = first >> 1 & 3
    topic, place = wire.read_text(body, 0, end)
    packet_id = 0
    if qos:
        packet_id, place = wire.read_two(body, place, end)
        assert packet_id, "packet identifier 0 [MQTT-2.2.1-4]"
    if version == MQTT_5:
        length, place = wire.read_variable(body, place, end)
        place += length
    assert qos < 3
    assert place <= end
    return Delivered(topic, body[place:], qos, bool(first & 1), bool(first & DUP), packet_id)


class PacketReader:
    """Bytes in pieces of any size in, whole packets out."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(first byte, body) of every packet that is whole now."""
        data = self._partial + data
        self._partial = b""
        place = 0
        while (found := _frame(data, place)) is not None:
            body, stop = found
            yield data[place], data[body:stop]
            place = stop
        self._partial = data[place:]


def _frame(data: bytes, place: int) -> tuple[int, int] | None:
    """Where the body of the packet at `place` begins and ends; None if it is not all there."""
    length = shift = 0
    for index in range(place + 1, len(data)):
        length |= (data[index] & 0x7F) << shift
        if data[index] < 0x80:
            stop = index + 1 + length
            return (index + 1, stop) if stop <= len(data) else None
        shift += 7
        assert shift < 28, "a remaining length of five bytes"
    return None


def server_reference(section: bytes) -> str:
    """The server that the properties of a CONNACK or DISCONNECT name; empty if none."""
    if not section:
        return ""
    length, start = wire.read_variable(section, 0, len(section))
    if length > 3 and section[start] == prop.SERVER_REFERENCE:
        return section[start + 3 : start + length].decode()
    return ""
