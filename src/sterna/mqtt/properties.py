"""MQTT 5 properties: which exist, of which type, in which packet (table 2-4 of the standard), and their bytes.

Decoded properties are a dict from identifier to value.  Text stays UTF-8 bytes, already validated.  User properties
are a list of (name, value) pairs and subscription identifiers a list of ints, because both may repeat; anything else
that repeats is a protocol error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sterna.mqtt import wire
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

Properties = dict[int, Any]
Reader = Callable[[bytes, int, int], tuple[Any, int]]


def _read_flag(data: bytes, position: int, end: int) -> tuple[int, int]:
    value, position = wire.read_byte(data, position, end)
    if value > 1:
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"a property that may be 0 or 1 is {value}")
    return value, position


def _read_nonzero_two(data: bytes, position: int, end: int) -> tuple[int, int]:
    value, position = wire.read_two(data, position, end)
    if value == 0:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "a property that may not be 0 is 0")
    return value, position


def _read_topic_alias(data: bytes, position: int, end: int) -> tuple[int, int]:
    value, position = wire.read_two(data, position, end)
    if value == 0:
        raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, "topic alias 0")  # [MQTT-3.3.2-8]
    return value, position


def _read_nonzero_four(data: bytes, position: int, end: int) -> tuple[int, int]:
    value, position = wire.read_four(data, position, end)
    if value == 0:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "a property that may not be 0 is 0")
    return value, position


def _read_nonzero_variable(data: bytes, position: int, end: int) -> tuple[int, int]:
    value, position = wire.read_variable(data, position, end)
    if value == 0:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "subscription identifier 0")
    return value, position


def _read_pair(data: bytes, position: int, end: int) -> tuple[tuple[bytes, bytes], int]:
    name, position = wire.read_text(data, position, end)
    value, position = wire.read_text(data, position, end)
    return (name, value), position


#: identifier -> how to read it.
READERS: dict[int, Reader] = {
    PAYLOAD_FORMAT: _read_flag,
    MESSAGE_EXPIRY: wire.read_four,
    CONTENT_TYPE: wire.read_text,
    RESPONSE_TOPIC: wire.read_text,
    CORRELATION_DATA: wire.read_binary,
    SUBSCRIPTION_IDENTIFIER: _read_nonzero_variable,
    SESSION_EXPIRY: wire.read_four,
    AUTHENTICATION_METHOD: wire.read_text,
    AUTHENTICATION_DATA: wire.read_binary,
    REQUEST_PROBLEM_INFORMATION: _read_flag,
    WILL_DELAY: wire.read_four,
    REQUEST_RESPONSE_INFORMATION: _read_flag,
    REASON_STRING: wire.read_text,
    RECEIVE_MAXIMUM: _read_nonzero_two,
    TOPIC_ALIAS_MAXIMUM: wire.read_two,
    TOPIC_ALIAS: _read_topic_alias,
    USER_PROPERTY: _read_pair,
    MAXIMUM_PACKET_SIZE: _read_nonzero_four,
}

#: Properties that a client may send, by packet.  "Will" stands for the will properties inside CONNECT.
ALLOWED: dict[str, frozenset[int]] = {
    "CONNECT": frozenset(
        {
            SESSION_EXPIRY, AUTHENTICATION_METHOD, AUTHENTICATION_DATA, REQUEST_PROBLEM_INFORMATION,
            REQUEST_RESPONSE_INFORMATION, RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM, USER_PROPERTY, MAXIMUM_PACKET_SIZE,
        }
    ),
    "Will": frozenset(
        {PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, WILL_DELAY, USER_PROPERTY}
    ),
    # A client may not send a subscription identifier [MQTT-3.3.4-6].
    "PUBLISH": frozenset(
        {PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, TOPIC_ALIAS, USER_PROPERTY}
    ),
    "SUBSCRIBE": frozenset({SUBSCRIPTION_IDENTIFIER, USER_PROPERTY}),
    "UNSUBSCRIBE": frozenset({USER_PROPERTY}),
    "ACKNOWLEDGEMENT": frozenset({REASON_STRING, USER_PROPERTY}),
    "DISCONNECT": frozenset({SESSION_EXPIRY, REASON_STRING, USER_PROPERTY}),
    "AUTH": frozenset({AUTHENTICATION_METHOD, AUTHENTICATION_DATA, REASON_STRING, USER_PROPERTY}),
}  # fmt: skip

#: Properties of a publication that travel on to subscribers unaltered [MQTT-3.3.2-4, -15, -16, -17, -18, -20].
FORWARDED = frozenset({PAYLOAD_FORMAT, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTY})

NONE: Properties = {}


def read_properties(
    data: bytes, position: int, end: int, packet: str, user_properties_max: int
) -> tuple[Properties, bytes, int]:
    """The property section that starts at `position`: its values, the bytes to forward, and where it ends."""
    length, position = wire.read_variable(data, position, end)
    if length == 0:
        return NONE, b"", position
    stop = position + length
    if stop > end:
        raise wire.malformed("properties run past the end of the packet")
    allowed = ALLOWED[packet]
    found: Properties = {}
    forwarded: list[bytes] = []
    while position < stop:
        start = position
        identifier, position = wire.read_variable(data, position, stop)
        reader = READERS.get(identifier)
        if reader is None:
            raise wire.malformed(f"unknown property 0x{identifier:02x}")
        if identifier not in allowed:
            raise _misplaced(identifier, packet)
        value, position = reader(data, position, stop)
        _add(found, identifier, value, user_properties_max)
        if identifier in FORWARDED:
            forwarded.append(data[start:position])
    return found, b"".join(forwarded), position


def _misplaced(identifier: int, packet: str) -> ProtocolError:
    what = f"property 0x{identifier:02x} does not belong in {packet}"
    if identifier == SUBSCRIPTION_IDENTIFIER and packet == "PUBLISH":
        return ProtocolError(Reason.PROTOCOL_ERROR, what + " of a client")  # [MQTT-3.3.4-6]: servers send it there
    return wire.malformed(what)  # section 2.2.2.2


def _add(found: Properties, identifier: int, value: Any, user_properties_max: int) -> None:
    if identifier == USER_PROPERTY:
        pairs = found.setdefault(USER_PROPERTY, [])
        if len(pairs) >= user_properties_max:
            raise ProtocolError(Reason.QUOTA_EXCEEDED, f"more than {user_properties_max} user properties")
        pairs.append(value)
    elif identifier in found:
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"property 0x{identifier:02x} given twice")
    else:
        found[identifier] = value


#: identifier -> how to write it, for what a server sends.
_WRITERS: dict[int, Callable[[Any], bytes]] = {
    MESSAGE_EXPIRY: lambda v: v.to_bytes(4, "big"),
    SUBSCRIPTION_IDENTIFIER: wire.variable,
    SESSION_EXPIRY: lambda v: v.to_bytes(4, "big"),
    ASSIGNED_CLIENT_ID: wire.binary,
    SERVER_KEEP_ALIVE: wire.two,
    AUTHENTICATION_METHOD: wire.binary,
    AUTHENTICATION_DATA: wire.binary,
    RESPONSE_INFORMATION: wire.binary,
    SERVER_REFERENCE: wire.binary,
    REASON_STRING: wire.binary,
    RECEIVE_MAXIMUM: wire.two,
    TOPIC_ALIAS_MAXIMUM: wire.two,
    TOPIC_ALIAS: wire.two,
    MAXIMUM_QOS: lambda v: bytes((v,)),
    RETAIN_AVAILABLE: lambda v: bytes((v,)),
    MAXIMUM_PACKET_SIZE: lambda v: v.to_bytes(4, "big"),
}


def write_properties(values: Properties) -> bytes:
    """The property section, its length included."""
    body = b"".join(bytes((identifier,)) + _WRITERS[identifier](value) for identifier, value in values.items())
    return wire.variable(len(body)) + body
