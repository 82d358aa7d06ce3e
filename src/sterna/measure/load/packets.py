"""MQTT 3.1.1 packets as bytes, made by hand.

The generator shares no code with the broker it measures, so a mistake in our codec cannot hide itself here.  Every
packet of one workload has one size, at most 127 bytes after the fixed header, which lets the reader count by division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack

CONNACK_ACCEPTED = b"\x20\x02\x00\x00"
PUBLISH = (0x30, 0x32, 0x34)
"""First byte of a PUBLISH by QoS, neither DUP nor RETAIN."""
PUBACK = 0x40
PUBREC = 0x50
PUBREL = 0x62
PUBCOMP = 0x70
ACKNOWLEDGEMENT_BYTES = 4
PAYLOAD_BYTES = 32
SMALL = 127
"""Largest remaining length that takes one byte."""


def connect(client_id: str, *, clean: bool) -> bytes:
    """Keep-alive 0: no broker is charged for pings that the other one did not get."""
    return _packet(0x10, _text("MQTT") + bytes((4, 0x02 if clean else 0x00)) + pack(">H", 0) + _text(client_id))


def subscribe(packet_id: int, filters: Sequence[str], qos: int) -> bytes:
    return _packet(0x82, pack(">H", packet_id) + b"".join(_text(name) + bytes((qos,)) for name in filters))


def suback(packet_id: int, filters: Sequence[str], qos: int) -> bytes:
    """The answer that grants everything asked for; anything else ends the benchmark."""
    return _packet(0x90, pack(">H", packet_id) + bytes((qos,)) * len(filters))


def publish(topic: str, payload: bytes, qos: int = 0, packet_id: int = 0) -> bytes:
    identifier = pack(">H", packet_id) if qos else b""
    packet = _packet(PUBLISH[qos], _text(topic) + identifier + payload)
    assert packet[1] <= SMALL, "the reader counts on a remaining length of one byte"
    return packet


def publish_bytes(topic: str, qos: int = 0) -> int:
    """Size of a PUBLISH of this benchmark, on the way in and on the way out."""
    return 2 + 2 + len(topic.encode()) + (2 if qos else 0) + PAYLOAD_BYTES


def payload_offset(topic: str, qos: int = 0) -> int:
    return publish_bytes(topic, qos) - PAYLOAD_BYTES


def payload(publisher: int, sequence: int) -> bytes:
    """The publisher, and the place in its cycle; the rest is filler."""
    return pack(">HH", publisher, sequence).ljust(PAYLOAD_BYTES, b".")


def acknowledgements(header: int, packet_ids: Iterable[int]) -> bytes:
    return b"".join(pack(">BBH", header, 2, packet_id) for packet_id in packet_ids)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return pack(">H", len(encoded)) + encoded


def _packet(header: int, body: bytes) -> bytes:
    return bytes((header,)) + _remaining_length(len(body)) + body


def _remaining_length(length: int) -> bytes:
    encoded = bytearray()
    while length > SMALL:
        encoded.append(length & SMALL | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
