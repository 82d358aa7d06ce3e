"""Control packets a server sends, decoded: the half of the codec that a broker has no use for and a gateway needs.

A server's bytes are trusted no more than a client's: anything that does not fit is a `ProtocolError`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.properties import NONE, READERS, Properties

#: Properties only servers send, in CONNACK or DISCONNECT.
_READERS: dict[int, prop.Reader] = READERS | {
    prop.ASSIGNED_CLIENT_ID: wire.read_text,
    prop.SERVER_KEEP_ALIVE: wire.read_two,
    prop.RESPONSE_INFORMATION: wire.read_text,
    prop.SERVER_REFERENCE: wire.read_text,
    prop.MAXIMUM_QOS: wire.read_byte,
    prop.RETAIN_AVAILABLE: wire.read_byte,
    prop.WILDCARD_AVAILABLE: wire.read_byte,
    prop.SUBSCRIPTION_IDENTIFIERS_AVAILABLE: wire.read_byte,
    prop.SHARED_AVAILABLE: wire.read_byte,
}


@dataclass(frozen=True, slots=True)
class Connack:
    session_present: bool
    #: Reason code of MQTT 5, or return code of 3.1.1.
    code: int
    properties: Properties
    #: The same properties one by one, as they came.
    raw: dict[int, bytes]


def decode_connack(data: bytes, position: int, end: int, version: int) -> Connack:
    flags, position = wire.read_byte(data, position, end)
    code, position = wire.read_byte(data, position, end)
    if flags > 1:
        raise wire.malformed("reserved flags of CONNACK are set")
    found: Properties = NONE
    raw: dict[int, bytes] = {}
    if version == MQTT_5 and position < end:
        found, raw, position = _properties(data, position, end)
    if position != end:
        raise wire.malformed("bytes after the end of CONNACK")
    return Connack(bool(flags), code, found, raw)


def decode_disconnect(data: bytes, position: int, end: int) -> tuple[int, Properties]:
    """Reason code and properties, both of which may be left out."""
    if position == end:
        return 0, NONE
    code, position = wire.read_byte(data, position, end)
    found: Properties = NONE
    if position < end:
        found, _, position = _properties(data, position, end)
    if position != end:
        raise wire.malformed("bytes after the end of DISCONNECT")
    return code, found


def decode_granted(data: bytes, position: int, end: int, version: int) -> tuple[int, bytes]:
    """SUBACK or UNSUBACK: the packet identifier and a code for each filter."""
    packet_id, position = wire.read_two(data, position, end)
    if version == MQTT_5:
        length, position = wire.read_variable(data, position, end)
        position += length
    return packet_id, data[position:end]


def _properties(data: bytes, position: int, end: int) -> tuple[Properties, dict[int, bytes], int]:
    length, position = wire.read_variable(data, position, end)
    stop = position + length
    if stop > end:
        raise wire.malformed("properties run past the end of the packet")
    found: Properties = {}
    raw: dict[int, bytes] = {}
    while position < stop:
        start = position
        identifier, position = wire.read_variable(data, position, stop)
        reader = _READERS.get(identifier)
        if reader is None:
            raise wire.malformed(f"unknown property 0x{identifier:02x}")
        found[identifier], position = reader(data, position, stop)
        # User properties are the one thing that may repeat here.
        raw[identifier] = raw.get(identifier, b"") + data[start:position]
    return found, raw, position
