"""MQTT packets as plain values: what a test sends, and what it compares with what came back.

One class serves both versions (4 is MQTT 3.1.1, 5 is MQTT 5.0); the version is told when encoding and decoding.
Equality leaves out what the broker may choose: its packet identifiers, and properties of packets other than PUBLISH.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from .properties import Properties, Reader, data, encode_properties, text, u16, varint

# Subscription options beside the QoS (section 3.8.3.1)
NO_LOCAL = 0x04
RETAIN_AS_PUBLISHED = 0x08
RETAINED_IF_NEW = 0x10
RETAINED_NEVER = 0x20


def frame(first_byte: int, body: bytes = b"") -> bytes:
    """A fixed header and a body: the way to write packets that no class here would."""
    return bytes([first_byte]) + varint(len(body)) + body


def _properties_if(version: int, properties: Properties) -> bytes:
    return encode_properties(properties) if version == 5 else b""


@dataclass(frozen=True)
class Will:
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


@dataclass(frozen=True)
class Connect:
    client_id: str
    clean: bool = True
    keep_alive: int = 60
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = field(default_factory=Properties)
    protocol: tuple[str, int] | None = None
    """Name and level, if they are not those of the version."""

    @property
    def flags(self) -> int:
        flags = (self.username is not None) << 7 | (self.password is not None) << 6 | self.clean << 1
        if self.will:
            flags |= self.will.retain << 5 | self.will.qos << 3 | 0x04
        return flags

    def encode(self, version: int) -> bytes:
        name, level = self.protocol or ("MQTT", version)
        body = text(name) + bytes([level, self.flags]) + u16(self.keep_alive)
        body += _properties_if(version, self.properties) + text(self.client_id)
        if self.will:
            body += _properties_if(version, self.will.properties) + text(self.will.topic) + data(self.will.payload)
        if self.username is not None:
            body += text(self.username)
        if self.password is not None:
            body += data(self.password)
        return frame(0x10, body)


@dataclass(frozen=True)
class Connack:
    code: int = 0
    session_present: bool = False
    properties: Properties = field(default_factory=Properties, compare=False)

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        acknowledge_flags = body.number(1)
        assert acknowledge_flags <= 1, "reserved bits of the connect acknowledge flags [MQTT-3.2.2-1]"
        code = body.number(1)
        return cls(code, bool(acknowledge_flags), body.properties() if version == 5 else {})


@dataclass(frozen=True)
class Publish:
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = field(default=0, compare=False)
    properties: Properties = field(default_factory=Properties)

    def encode(self, version: int) -> bytes:
        identifier = u16(self.packet_id) if self.qos else b""
        body = text(self.topic) + identifier + _properties_if(version, self.properties) + self.payload
        return frame(0x30 | self.dup << 3 | self.qos << 1 | self.retain, body)

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        topic, qos = body.text(), flags >> 1 & 3
        packet_id = body.number(2) if qos else 0
        assert not qos or packet_id, "packet identifier 0 [MQTT-2.2.1-4]"
        properties = body.properties() if version == 5 else Properties()
        return cls(topic, body.rest(), qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


@dataclass(frozen=True)
class _Acknowledgement:
    FIRST_BYTE: ClassVar[int]

    packet_id: int
    code: int = 0
    properties: Properties = field(default_factory=Properties, compare=False)

    def encode(self, version: int) -> bytes:
        if version == 4 or not (self.code or self.properties):
            return frame(self.FIRST_BYTE, u16(self.packet_id))
        return frame(self.FIRST_BYTE, u16(self.packet_id) + bytes([self.code]) + encode_properties(self.properties))

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        assert flags == cls.FIRST_BYTE & 15, "reserved flags of the fixed header [MQTT-2.1.3-1]"
        packet_id = body.number(2)
        code = body.number(1) if version == 5 and not body.empty else 0
        return cls(packet_id, code, body.properties() if version == 5 and not body.empty else {})


class Puback(_Acknowledgement):
    FIRST_BYTE = 0x40


class Pubrec(_Acknowledgement):
    FIRST_BYTE = 0x50


class Pubrel(_Acknowledgement):
    FIRST_BYTE = 0x62


class Pubcomp(_Acknowledgement):
    FIRST_BYTE = 0x70


@dataclass(frozen=True)
class Subscribe:
    packet_id: int
    filters: list[tuple[str, int]]
    """Each topic filter with its subscription options byte; the lowest two bits are the QoS."""
    properties: Properties = field(default_factory=Properties)

    def encode(self, version: int) -> bytes:
        entries = b"".join(text(topic_filter) + bytes([options]) for topic_filter, options in self.filters)
        return frame(0x82, u16(self.packet_id) + _properties_if(version, self.properties) + entries)


@dataclass(frozen=True)
class Suback:
    packet_id: int
    codes: list[int]
    properties: Properties = field(default_factory=Properties, compare=False)

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        packet_id = body.number(2)
        properties = body.properties() if version == 5 else Properties()
        return cls(packet_id, list(body.rest()), properties)


@dataclass(frozen=True)
class Unsubscribe:
    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=Properties)

    def encode(self, version: int) -> bytes:
        entries = b"".join(text(topic_filter) for topic_filter in self.filters)
        return frame(0xA2, u16(self.packet_id) + _properties_if(version, self.properties) + entries)


class Unsuback(Suback):
    """In 3.1.1 it carries no codes."""


@dataclass(frozen=True)
class Disconnect:
    code: int = 0
    properties: Properties = field(default_factory=Properties, compare=False)

    def encode(self, version: int) -> bytes:
        if version == 4 or not (self.code or self.properties):
            return frame(0xE0)
        return frame(0xE0, bytes([self.code]) + encode_properties(self.properties))

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        assert version == 5, "an MQTT 3.1.1 server sends no DISCONNECT (section 3.14)"
        code = 0 if body.empty else body.number(1)
        return cls(code, {} if body.empty else body.properties())


@dataclass(frozen=True)
class Auth:
    code: int = 0
    properties: Properties = field(default_factory=Properties, compare=False)

    def encode(self, version: int) -> bytes:
        return frame(0xF0, bytes([self.code]) + encode_properties(self.properties))

    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        assert version == 5, "AUTH does not exist in MQTT 3.1.1"
        code = 0 if body.empty else body.number(1)
        return cls(code, {} if body.empty else body.properties())


@dataclass(frozen=True)
class Pingreq:
    def encode(self, version: int) -> bytes:
        return frame(0xC0)


@dataclass(frozen=True)
class Pingresp:
    @classmethod
    def decode(cls, flags: int, body: Reader, version: int) -> Self:
        return cls()


Sent = Connect | Publish | _Acknowledgement | Subscribe | Unsubscribe | Disconnect | Auth | Pingreq
Received = Connack | Publish | _Acknowledgement | Suback | Disconnect | Auth | Pingresp

_FROM_SERVER: dict[int, type[Received]] = {
    2: Connack,
    3: Publish,
    4: Puback,
    5: Pubrec,
    6: Pubrel,
    7: Pubcomp,
    9: Suback,
    11: Unsuback,
    13: Pingresp,
    14: Disconnect,
    15: Auth,
}


def decode(first_byte: int, body: bytes, version: int) -> Received:
    """The packet a server sent; anything it may not send, or bytes left over, is an assertion failure."""
    kind = _FROM_SERVER.get(first_byte >> 4)
    assert kind, f"a server does not send packet type {first_byte >> 4}"
    reader = Reader(body)
    packet = kind.decode(first_byte & 15, reader, version)
    assert reader.empty, f"bytes left over in {packet}"
    return packet
