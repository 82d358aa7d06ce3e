"""Control packets a client sends, encoded: CONNECT, SUBSCRIBE, UNSUBSCRIBE and PUBLISH, in 3.1.1 and 5."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.packets import BRIDGE, MQTT_3_1_1, MQTT_5, packet
from sterna.mqtt.properties import Properties, write_properties

PINGREQ_BYTES = b"\xc0\x00"
DISCONNECT_BYTES = b"\xe0\x00"

#: Options of a subscription beside its QoS; the last two are for Retain Handling.
NO_LOCAL = 0x04
RETAIN_AS_PUBLISHED = 0x08
RETAINED_IF_NEW = 0x10
RETAINED_NEVER = 0x20


def encode_connect(
    level: int,
    client_id: bytes,
    *,
    clean: bool,
    keep_alive_s: int,
    username: bytes | None = None,
    password: bytes | None = None,
    values: Properties | None = None,
) -> bytes:
    """`level` is 4, 5, or 4 with the bridge bit; `values` are properties, which 3.1.1 does not have."""
    flags = 0x02 if clean else 0
    credentials = b""
    if username is not None:
        flags |= 0x80
        credentials = wire.binary(username)
    if password is not None:
        flags |= 0x40
        credentials += wire.binary(password)
    section = write_properties(values or {}) if level == MQTT_5 else b""
    head = wire.binary(b"MQTT") + bytes((level, flags)) + wire.two(keep_alive_s) + section
    return packet(0x10, head + wire.binary(client_id) + credentials)


def version_of(level: int) -> int:
    """The version whose packets follow a CONNECT of this level."""
    return MQTT_5 if level & ~BRIDGE == MQTT_5 else MQTT_3_1_1


def encode_subscribe(packet_id: int, filters: Sequence[tuple[bytes, int]], version: int) -> bytes:
    """Each filter with its options, of which 3.1.1 has the QoS only."""
    mask = 0x3F if version == MQTT_5 else 0x03
    lines = b"".join(wire.binary(topic_filter) + bytes((options & mask,)) for topic_filter, options in filters)
    return packet(0x82, wire.two(packet_id) + _no_properties(version) + lines)


def encode_unsubscribe(packet_id: int, filters: Sequence[bytes], version: int) -> bytes:
    return packet(0xA2, wire.two(packet_id) + _no_properties(version) + b"".join(map(wire.binary, filters)))


def encode_publish(
    topic: bytes,
    payload: bytes,
    version: int,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    properties: bytes = b"",
) -> bytes:
    """`properties`: as they are encoded, one after the other."""
    identifier = wire.two(packet_id) if qos else b""
    section = wire.variable(len(properties)) + properties if version == MQTT_5 else b""
    return packet(0x30 | qos << 1 | retain, wire.binary(topic) + identifier + section + payload)


def user_property(name: bytes, value: bytes) -> bytes:
    return bytes((prop.USER_PROPERTY,)) + wire.binary(name) + wire.binary(value)


def _no_properties(version: int) -> bytes:
    return b"\0" if version == MQTT_5 else b""
