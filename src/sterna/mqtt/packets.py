"""Control packets a client sends, decoded; and those a server sends, encoded.

PUBLISH and the acknowledgements are not here as objects: the broker's connection takes them apart in place, because
they are the hot path.  Decoders check everything the standard says about the packet alone; what depends on the
session (packet identifiers, permissions, limits on counts) is the broker's to check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.properties import NONE, Properties, read_properties, write_properties
from sterna.mqtt.reasons import CONNACK_3_1_1, CONNACK_3_1_1_UNAVAILABLE, Reason
from sterna.mqtt.topics import SHARE, is_topic_filter, is_topic_name, split_share
from sterna.vocabulary.errors import ProtocolError

CONNECT: Final = 1
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
UNSUBSCRIBE: Final = 10
PINGREQ: Final = 12
DISCONNECT: Final = 14
AUTH: Final = 15

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

#: Added to the protocol level by bridges of Mosquitto's kind: all their subscriptions are to be No Local and Retain As
#: Published, which 3.1 and 3.1.1 have no other words for.
BRIDGE: Final = 0x80

PINGRESP_BYTES = b"\xd0\x00"

#: Topic filters in one packet if the caller names no bound: more than the largest packet can hold.
FILTERS_MAX: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Will:
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    delay_s: int
    expiry_s: int | None
    forwarded: bytes
    """Encoded properties that travel with the message."""
    utf8_payload: bool


@dataclass(frozen=True, slots=True)
class Connect:
    version: int
    """MQTT_3_1_1 or MQTT_5.  A client of MQTT 3.1 is served as one of 3.1.1, but for what `is_3_1` is asked about."""
    client_id: bytes
    clean_start: bool
    keep_alive_s: int
    username: str | None
    password: bytes | None
    will: Will | None
    properties: Properties
    is_3_1: bool = False
    is_bridge: bool = False


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """One line of a SUBSCRIBE."""

    topic_filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    packet_id: int
    requests: tuple[FilterRequest, ...]
    identifier: int
    """Subscription identifier, 0 if none."""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    packet_id: int
    filters: tuple[bytes, ...]


def decode_connect(data: bytes, position: int, end: int, user_properties_max: int) -> Connect:
    name, position = wire.read_binary(data, position, end)
    level, position = wire.read_byte(data, position, end)
    version, is_3_1, is_bridge = _spoken(name, level)
    flags, position = wire.read_byte(data, position, end)
    if is_3_1:
        flags = _flags_of_3_1(flags)
    _check_connect_flags(flags, version)
    keep_alive_s, position = wire.read_two(data, position, end)
    found: Properties = NONE
    if version == MQTT_5:
        found, _, position = read_properties(data, position, end, "CONNECT", user_properties_max)
        if prop.AUTHENTICATION_DATA in found and prop.AUTHENTICATION_METHOD not in found:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "authentication data without a method")
    client_id, position = wire.read_text(data, position, end)
    if is_3_1 and not client_id:
        raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 has no empty client identifier")
    will = None
    if flags & 0x04:
        will, position = _decode_will(data, position, end, flags, version, user_properties_max)
    username = password = None
    # In 3.1 the length of the packet takes precedence over these flags: what they announce may be missing.
    if flags & 0x80 and not (is_3_1 and position == end):
        raw, position = wire.read_text(data, position, end)
        username = raw.decode()
    if flags & 0x40 and not (is_3_1 and position == end):
        password, position = wire.read_binary(data, position, end)
    if position != end:
        raise wire.malformed("bytes after the end of CONNECT")
    clean = bool(flags & 0x02)
    return Connect(
        version, client_id, clean, keep_alive_s, username, password, will, found, is_3_1=is_3_1, is_bridge=is_bridge
    )


def _spoken(name: bytes, level: int) -> tuple[int, bool, bool]:
    """The version a client is served in, whether it is MQTT 3.1 at that, and whether it is a bridge."""
    if name == b"MQIsdp" and level & ~BRIDGE == MQTT_3_1:
        return MQTT_3_1_1, True, level != MQTT_3_1
    if name == b"MQTT" and level & ~BRIDGE == MQTT_3_1_1:
        return MQTT_3_1_1, False, level != MQTT_3_1_1
    if name == b"MQTT" and level == MQTT_5:
        return MQTT_5, False, False
    if name not in (b"MQTT", b"MQIsdp"):
        raise ProtocolError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol name {name[:16]!r} is not MQTT")
    raise ProtocolError(
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        f"protocol {name.decode()} at level {level} is none of MQIsdp 3, MQTT 4 and MQTT 5",
    )


def _flags_of_3_1(flags: int) -> int:
    """Without the bits that 3.1 leaves unused, whatever they are."""
    return flags & 0xFE if flags & 0x04 else flags & 0xC6


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x01:
        raise wire.malformed("reserved flag of CONNECT is set")  # [MQTT-3.1.2-3]
    if flags & 0x18 == 0x18:
        raise wire.malformed("will QoS 3")  # [MQTT-3.1.2-12]
    if not flags & 0x04 and flags & 0x38:
        raise wire.malformed("will QoS or retain without a will")  # [MQTT-3.1.2-11, -13]
    if version == MQTT_3_1_1 and flags & 0x40 and not flags & 0x80:
        raise wire.malformed("password without user name")  # [MQTT-3.1.2-22], lifted by 5.0


def _decode_will(
    data: bytes, position: int, end: int, flags: int, version: int, user_properties_max: int
) -> tuple[Will, int]:
    found: Properties = NONE
    forwarded = b""
    if version == MQTT_5:
        found, forwarded, position = read_properties(data, position, end, "Will", user_properties_max)
        check_response_topic(found)
    topic, position = wire.read_text(data, position, end)
    payload, position = wire.read_binary(data, position, end)
    will = Will(
        topic,
        payload,
        flags >> 3 & 3,
        bool(flags & 0x20),
        found.get(prop.WILL_DELAY, 0),
        found.get(prop.MESSAGE_EXPIRY),
        forwarded,
        bool(found.get(prop.PAYLOAD_FORMAT)),
    )
    return will, position


def check_response_topic(found: Properties) -> None:
    response = found.get(prop.RESPONSE_TOPIC)
    if response is not None and (b"+" in response or b"#" in response):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "response topic contains a wildcard")  # [MQTT-3.3.2-14]


def check_topic_name(topic: bytes, levels_max: int, bytes_max: int) -> None:
    """Names that are none end the connection as bad packets do; TOPIC_NAME_INVALID is for those that are only more than
    we take."""
    if not topic:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "topic name is empty")  # [MQTT-4.7.3-1], section 3.3.2.1
    if b"+" in topic or b"#" in topic:
        raise wire.malformed("topic name contains a wildcard")  # [MQTT-3.3.2-2]
    if not is_topic_name(topic, levels_max, bytes_max):
        raise ProtocolError(
            Reason.TOPIC_NAME_INVALID,
            f"topic name has more than {levels_max} levels or {bytes_max} bytes"
            " (limits.topic_levels, limits.topic_bytes)",
        )


def check_topic_filter(topic_filter: bytes) -> None:
    """A filter that is none ends the connection, in SUBSCRIBE and in UNSUBSCRIBE [MQTT-4.7.1-1, -2, 4.8.2-1, -2]."""
    plain = topic_filter
    if topic_filter.startswith(SHARE):
        shared = split_share(topic_filter)
        if shared is None:
            raise wire.malformed("shared subscription is not $share/group/filter")
        plain = shared[1]
    if not is_topic_filter(plain, 1 << 16, 1 << 16):
        raise wire.malformed("topic filter is empty or has a wildcard in a wrong place")


def decode_subscribe(
    data: bytes, position: int, end: int, version: int, user_properties_max: int, filters_max: int = FILTERS_MAX
) -> Subscribe:
    packet_id, position = _read_packet_id(data, position, end)
    found: Properties = NONE
    if version == MQTT_5:
        found, _, position = read_properties(data, position, end, "SUBSCRIBE", user_properties_max)
    requests: list[FilterRequest] = []
    while position < end:
        topic_filter, position = wire.read_text(data, position, end)
        options, position = wire.read_byte(data, position, end)
        if len(requests) == filters_max:
            raise ProtocolError(Reason.QUOTA_EXCEEDED, f"more than {filters_max} topic filters in one packet")
        requests.append(_filter_request(topic_filter, options, version))
    if not requests:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "SUBSCRIBE without a filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, tuple(requests), found.get(prop.SUBSCRIPTION_IDENTIFIER, 0))


def _filter_request(topic_filter: bytes, options: int, version: int) -> FilterRequest:
    if options & 3 == 3:
        raise wire.malformed("subscription with QoS 3")
    if options & (0xC0 if version == MQTT_5 else 0xFC):
        raise wire.malformed("reserved subscription options are set")  # [MQTT-3.8.3-5]
    if options & 0x30 == 0x30:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "retain handling 3")
    no_local = bool(options & 0x04)
    if no_local and topic_filter.startswith(b"$share/"):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "no local on a shared subscription")  # [MQTT-3.8.3-4]
    return FilterRequest(topic_filter, options & 3, no_local, bool(options & 0x08), options >> 4 & 3)


def decode_unsubscribe(
    data: bytes, position: int, end: int, version: int, user_properties_max: int, filters_max: int = FILTERS_MAX
) -> Unsubscribe:
    packet_id, position = _read_packet_id(data, position, end)
    if version == MQTT_5:
        _, _, position = read_properties(data, position, end, "UNSUBSCRIBE", user_properties_max)
    filters: list[bytes] = []
    while position < end:
        topic_filter, position = wire.read_text(data, position, end)
        if len(filters) == filters_max:
            raise ProtocolError(Reason.QUOTA_EXCEEDED, f"more than {filters_max} topic filters in one packet")
        filters.append(topic_filter)
    if not filters:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, tuple(filters))


def _read_packet_id(data: bytes, position: int, end: int) -> tuple[int, int]:
    packet_id, position = wire.read_two(data, position, end)
    if packet_id == 0:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "packet identifier 0")  # [MQTT-2.2.1-3]
    return packet_id, position


def decode_acknowledgement(
    data: bytes, position: int, end: int, version: int, user_properties_max: int
) -> tuple[int, int]:
    """PUBACK, PUBREC, PUBREL or PUBCOMP in its longer MQTT 5 form: packet identifier and reason code."""
    packet_id, position = _read_packet_id(data, position, end)
    if position == end:
        return packet_id, Reason.SUCCESS
    if version != MQTT_5:
        raise wire.malformed("acknowledgement with more than a packet identifier")
    code, position = wire.read_byte(data, position, end)
    if position < end:
        _, _, position = read_properties(data, position, end, "ACKNOWLEDGEMENT", user_properties_max)
    if position != end:
        raise wire.malformed("bytes after the end of an acknowledgement")
    return packet_id, code


def decode_ending(
    data: bytes, position: int, end: int, packet: str, user_properties_max: int
) -> tuple[int, Properties]:
    """DISCONNECT or AUTH of MQTT 5: reason code and properties, both of which may be left out."""
    if position == end:
        return Reason.SUCCESS, NONE
    code, position = wire.read_byte(data, position, end)
    if position == end:
        return code, NONE
    found, _, position = read_properties(data, position, end, packet, user_properties_max)
    if position != end:
        raise wire.malformed(f"bytes after the end of {packet}")
    return code, found


def packet(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + wire.variable(len(body)) + body


def encode_connack(version: int, session_present: bool, code: int, values: Properties = NONE) -> bytes:
    present = b"\x01" if session_present else b"\x00"
    if version == MQTT_5:
        return packet(0x20, present + bytes((code,)) + write_properties(values))
    return packet(0x20, present + bytes((CONNACK_3_1_1.get(code, CONNACK_3_1_1_UNAVAILABLE),)))


def encode_acknowledgement(kind: int, packet_id: int, code: int, version: int, reason: str = "") -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP.  3.1.1 has no reason codes, so there the bare form is all there is."""
    first = kind << 4 | (0x02 if kind == PUBREL else 0)
    if version != MQTT_5 or not code:
        return b"%c\x02%c%c" % (first, packet_id >> 8, packet_id & 0xFF)
    body = bytes((packet_id >> 8, packet_id & 0xFF, code))
    if reason:
        body += write_properties({prop.REASON_STRING: reason.encode()})
    return packet(first, body)


def encode_suback(packet_id: int, codes: bytes, version: int, reason: str = "") -> bytes:
    return packet(0x90, wire.two(packet_id) + _reason_section(version, reason) + codes)


def encode_unsuback(packet_id: int, codes: bytes, version: int) -> bytes:
    # 3.1.1 has no payload here: the packet identifier is the whole answer.
    return packet(0xB0, wire.two(packet_id) + (b"\x00" + codes if version == MQTT_5 else b""))


def encode_redirection(code: int, server: str) -> bytes:
    """DISCONNECT that names another server."""
    return packet(0xE0, bytes((code,)) + write_properties({prop.SERVER_REFERENCE: server.encode()}))


def encode_disconnect(code: int, reason: str = "") -> bytes:
    if code == Reason.SUCCESS and not reason:
        return b"\xe0\x00"
    return packet(0xE0, bytes((code,)) + _reason_section(MQTT_5, reason))


def encode_auth(code: int, method: bytes, data: bytes) -> bytes:
    values: Properties = {prop.AUTHENTICATION_METHOD: method, prop.AUTHENTICATION_DATA: data}
    return packet(0xF0, bytes((code,)) + write_properties(values))


def _reason_section(version: int, reason: str) -> bytes:
    if version != MQTT_5:
        return b""
    return write_properties({prop.REASON_STRING: reason.encode()}) if reason else b"\x00"


def publish_head(first_byte: int, topic: bytes, rest: int) -> bytes:
    """Fixed header and topic of a PUBLISH whose remaining `rest` bytes follow the topic."""
    length = 2 + len(topic) + rest
    if length < 0x80:
        return b"%c%c%c%c%b" % (first_byte, length, len(topic) >> 8, len(topic) & 0xFF, topic)
    return bytes((first_byte,)) + wire.variable(length) + wire.binary(topic)
