"""Packets a broker must not put up with, in plain bytes, each with the reason codes that fit it.

A case is written once for both versions: its packet is built around an empty property block, which is nothing in
3.1.1 and one zero byte in 5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .packets import NO_LOCAL, RETAINED_IF_NEW, RETAINED_NEVER, Connect, frame
from .properties import data, text, u16, varint

MALFORMED, PROTOCOL_ERROR, TOPIC_FILTER_INVALID = 0x81, 0x82, 0x8F
UNSUPPORTED_VERSION, CLIENT_ID_INVALID, PACKET_ID_IN_USE, PACKET_TOO_LARGE = 0x84, 0x85, 0x91, 0x95
EITHER = (MALFORMED, PROTOCOL_ERROR)
"""Where the standard leaves open which of the two it is."""
BAD_NAME = EITHER
"""0x90 is for a name that is well-formed and not accepted (table 2-6)."""
BAD_FILTER = (*EITHER, TOPIC_FILTER_INVALID)
V4, V5, BOTH = (4,), (5,), (4, 5)

NUL, SURROGATE, OVERLONG, TRUNCATED = b"a\0b", b"a\xed\xa0\x80", b"a\xc0\xafb", b"a\xe2\x82"
BAD_TEXT = {"U+0000": NUL, "a surrogate": SURROGATE, "an overlong form": OVERLONG, "a cut character": TRUNCATED}
FIVE_BYTES = b"\xff\xff\xff\xff\x01"
CONTENT_TYPE, SESSION_EXPIRY = b"\x03" + text("x"), b"\x11\0\0\0\x05"

Packet = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Bad:
    name: str
    packet: Packet
    codes: tuple[int, ...] = EITHER
    versions: tuple[int, ...] = BOTH


def publish_to(topic: bytes) -> Packet:
    return lambda p: frame(0x30, data(topic) + p)


def subscribe_to(topic_filter: bytes, options: int = 0, packet_id: int = 1) -> Packet:
    return lambda p: frame(0x82, u16(packet_id) + p + data(topic_filter) + bytes([options]))


def unsubscribe_from(topic_filter: bytes, packet_id: int = 1) -> Packet:
    return lambda p: frame(0xA2, u16(packet_id) + p + data(topic_filter))


def publish_with(block: bytes, length: int | None = None) -> Packet:
    """A PUBLISH in 5.0 with this property block, as long as it is or as long as it claims to be."""
    return lambda p: frame(0x30, text("a") + varint(len(block) if length is None else length) + block)


def subscribe_with(block: bytes) -> Packet:
    return lambda p: frame(0x82, u16(1) + varint(len(block)) + block + text("a") + b"\0")


def disconnect_with(block: bytes) -> Packet:
    return lambda p: frame(0xE0, b"\0" + varint(len(block)) + block)


FROM_A_CONNECTED_CLIENT = [
    # Fixed header
    Bad("a remaining length of five bytes", lambda p: b"\x30" + FIVE_BYTES, (*EITHER, PACKET_TOO_LARGE)),
    Bad("packet type 0", lambda p: frame(0x00)),
    Bad("packet type 15", lambda p: frame(0xF0), versions=V4),
    Bad("a second CONNECT", lambda p: Connect("second").encode(5 if p else 4), (PROTOCOL_ERROR,)),  # [MQTT-3.1.0-2]
    Bad("CONNACK from a client", lambda p: frame(0x20, b"\0\0" + p)),
    Bad("SUBACK from a client", lambda p: frame(0x90, u16(1) + p + b"\0")),
    Bad("UNSUBACK from a client", lambda p: frame(0xB0, u16(1) + p)),
    Bad("PINGRESP from a client", lambda p: frame(0xD0)),
    Bad("PUBREL with wrong flags", lambda p: frame(0x60, u16(1))),  # [MQTT-2.1.3-1], also below
    Bad("PUBACK with wrong flags", lambda p: frame(0x42, u16(1))),
    Bad("SUBSCRIBE with wrong flags", lambda p: frame(0x80, u16(1) + p + text("a") + b"\0")),
    Bad("UNSUBSCRIBE with wrong flags", lambda p: frame(0xA0, u16(1) + p + text("a"))),
    Bad("PINGREQ with wrong flags", lambda p: frame(0xC1)),
    Bad("PINGREQ with a body", lambda p: frame(0xC0, b"x")),
    Bad("DISCONNECT with wrong flags", lambda p: frame(0xE1)),
    Bad("PUBACK cut short", lambda p: frame(0x40, b"\0")),
    Bad("PUBREL cut short", lambda p: frame(0x62)),
    # PUBLISH
    Bad("QoS 3", lambda p: frame(0x36, text("a") + u16(1) + p)),  # [MQTT-3.3.1-4]
    Bad("DUP with QoS 0", lambda p: frame(0x38, text("a") + p)),  # [MQTT-3.3.1-2]
    Bad("PUBLISH without a topic", lambda p: frame(0x30)),
    Bad("PUBLISH with half a topic", lambda p: frame(0x30, u16(100) + b"abc")),
    Bad("PUBLISH to an empty topic", publish_to(b""), (PROTOCOL_ERROR,)),  # section 3.3.2.1; in 5.0 without an alias
    Bad("PUBLISH to a/+", publish_to(b"a/+"), BAD_NAME),  # [MQTT-3.3.2-2]
    Bad("PUBLISH to a/#", publish_to(b"a/#"), BAD_NAME),
    Bad("PUBLISH to a+b", publish_to(b"a+b"), BAD_NAME),
    Bad("PUBLISH with packet id 0", lambda p: frame(0x32, text("a") + u16(0) + p)),  # [MQTT-2.2.1-3]
    Bad("PUBLISH at QoS 1 without packet id", lambda p: frame(0x32, text("a"))),
    # SUBSCRIBE and UNSUBSCRIBE
    Bad("SUBSCRIBE with packet id 0", subscribe_to(b"a", packet_id=0)),
    Bad("SUBSCRIBE without filters", lambda p: frame(0x82, u16(1) + p)),  # [MQTT-3.8.3-2]
    Bad("SUBSCRIBE without anything", lambda p: frame(0x82)),
    Bad("SUBSCRIBE without options", lambda p: frame(0x82, u16(1) + p + text("a"))),
    Bad("SUBSCRIBE with half a filter", lambda p: frame(0x82, u16(1) + p + u16(9) + b"abc")),
    Bad("SUBSCRIBE at QoS 3", subscribe_to(b"a", 3)),
    Bad("SUBSCRIBE with reserved bits", subscribe_to(b"a", 0xC0)),  # [MQTT-3.8.3-5]
    Bad("SUBSCRIBE with the options of 5.0", subscribe_to(b"a", NO_LOCAL), versions=V4),  # [MQTT-3.8.3-4] of 3.1.1
    Bad("SUBSCRIBE with retain handling 3", subscribe_to(b"a", RETAINED_IF_NEW | RETAINED_NEVER)),
    Bad("UNSUBSCRIBE with packet id 0", unsubscribe_from(b"a", packet_id=0)),
    Bad("UNSUBSCRIBE without filters", lambda p: frame(0xA2, u16(1) + p)),  # [MQTT-3.10.3-2]
    Bad("UNSUBSCRIBE with half a filter", lambda p: frame(0xA2, u16(1) + p + u16(9) + b"abc")),
    # Text: [MQTT-1.5.4-1], [MQTT-1.5.4-2]
    *(Bad(f"PUBLISH to {name}", publish_to(bad), BAD_NAME) for name, bad in BAD_TEXT.items()),
    *(Bad(f"SUBSCRIBE to {name}", subscribe_to(bad), BAD_FILTER) for name, bad in BAD_TEXT.items()),
    *(Bad(f"UNSUBSCRIBE from {name}", unsubscribe_from(bad), BAD_FILTER) for name, bad in BAD_TEXT.items()),
    # Properties: section 2.2.2
    Bad("a property twice", publish_with(CONTENT_TYPE * 2), (PROTOCOL_ERROR,), V5),
    Bad("payload format twice", publish_with(b"\x01\0" * 2), (PROTOCOL_ERROR,), V5),
    Bad("topic alias twice", publish_with(b"\x23\0\x01" * 2), (PROTOCOL_ERROR,), V5),
    Bad("an unknown property", publish_with(b"\x7f\0"), (MALFORMED,), V5),
    Bad("an unknown property of two bytes", publish_with(b"\x80\x01\0"), (MALFORMED,), V5),
    Bad("a property of another packet", publish_with(SESSION_EXPIRY), (MALFORMED,), V5),  # section 2.2.2.2, also below
    Bad("a subscription identifier in PUBLISH", publish_with(b"\x0b\x01"), (PROTOCOL_ERROR,), V5),  # [MQTT-3.3.4-6]
    Bad("payload format 2", publish_with(b"\x01\x02"), EITHER, V5),
    Bad("a cut number", publish_with(b"\x02\0\0"), (MALFORMED,), V5),
    Bad("a cut text", publish_with(b"\x03\0\x09abc"), (MALFORMED,), V5),
    Bad("half a user property", publish_with(b"\x26" + text("key")), (MALFORMED,), V5),
    Bad("properties longer than the packet", publish_with(CONTENT_TYPE, length=100), (MALFORMED,), V5),
    Bad("a property length of five bytes", lambda p: frame(0x30, text("a") + FIVE_BYTES), (MALFORMED,), V5),
    Bad("no property length", lambda p: frame(0x30, text("a")), (MALFORMED,), V5),
    Bad("a wildcard in the response topic", publish_with(b"\x08" + text("a/#")), BAD_NAME, V5),  # [MQTT-3.3.2-14]
    Bad("bad text in a user property", publish_with(b"\x26" + text("key") + data(SURROGATE)), (MALFORMED,), V5),
    Bad("bad text in the content type", publish_with(b"\x03" + data(NUL)), (MALFORMED,), V5),
    Bad("subscription identifier 0", subscribe_with(b"\x0b\0"), (PROTOCOL_ERROR,), V5),
    Bad("two subscription identifiers", subscribe_with(b"\x0b\x01\x0b\x02"), (PROTOCOL_ERROR,), V5),
    Bad("a subscription identifier of five bytes", subscribe_with(b"\x0b" + FIVE_BYTES), EITHER, V5),
    Bad("a property of CONNECT in SUBSCRIBE", subscribe_with(SESSION_EXPIRY), (MALFORMED,), V5),
    Bad("session expiry twice in DISCONNECT", disconnect_with(SESSION_EXPIRY * 2), (PROTOCOL_ERROR,), V5),
    Bad("a property of PUBLISH in DISCONNECT", disconnect_with(CONTENT_TYPE), (MALFORMED,), V5),
]


def connect(flags: int = 0x02, block: bytes = b"", rest: bytes = text("bad"), name: bytes = b"MQTT") -> Packet:
    """A CONNECT with one part replaced."""

    def packet(p: bytes) -> bytes:
        properties = varint(len(block)) + block if p else b""
        return frame(0x10, data(name) + bytes([5 if p else 4, flags]) + u16(60) + properties + rest)

    return packet


def connect_with(*blocks: bytes) -> Packet:
    return connect(block=b"".join(blocks))


def will(topic: bytes, block: bytes = b"", flags: int = 0x06) -> Packet:
    """A CONNECT with this will."""

    def packet(p: bytes) -> bytes:
        properties = varint(len(block)) + block if p else b""
        return connect(flags, rest=text("bad") + properties + data(topic) + data(b"payload"))(p)

    return packet


BAD_CONNECTS = [
    Bad("wrong flags in the fixed header", lambda p: b"\x11" + connect()(p)[1:]),
    Bad("the reserved flag", connect(0x03)),  # [MQTT-3.1.2-3]
    Bad("will QoS without a will", connect(0x0A)),  # [MQTT-3.1.2-11]
    Bad("will retain without a will", connect(0x22)),  # [MQTT-3.1.2-13]
    Bad("will QoS 3", will(b"t", flags=0x1E)),  # [MQTT-3.1.2-12]
    Bad("a password without a user name", connect(0x42, rest=text("bad") + text("secret")), versions=V4),
    Bad("nothing after the flags", lambda p: frame(0x10, text("MQTT") + (b"\x05\x02" if p else b"\x04\x02"))),
    Bad("no client id", connect(rest=b"")),
    Bad("half a client id", connect(rest=u16(20) + b"short")),
    Bad("a user name announced and missing", connect(0x82)),
    Bad("a will announced and missing", connect(0x06)),
    Bad("bytes left over", connect(rest=text("bad") + b"left over")),
    *(Bad(f"{name} in the client id", connect(rest=data(bad)), (*EITHER, 0x85)) for name, bad in BAD_TEXT.items()),
    Bad("a will topic with a wildcard", will(b"a/#"), BAD_NAME),
    Bad("an empty will topic", will(b""), BAD_NAME),
    Bad("bad text in the will topic", will(SURROGATE), BAD_NAME),
    Bad("session expiry twice", connect_with(SESSION_EXPIRY, SESSION_EXPIRY), (PROTOCOL_ERROR,), V5),
    Bad("receive maximum 0", connect_with(b"\x21\0\0"), (PROTOCOL_ERROR,), V5),
    Bad("maximum packet size 0", connect_with(b"\x27\0\0\0\0"), (PROTOCOL_ERROR,), V5),
    Bad("request problem information 2", connect_with(b"\x17\x02"), (PROTOCOL_ERROR,), V5),
    Bad("request response information 2", connect_with(b"\x19\x02"), (PROTOCOL_ERROR,), V5),
    Bad("an unknown property", connect_with(b"\x7f\0"), (MALFORMED,), V5),
    Bad("a property of PUBLISH", connect_with(b"\x23\0\x01"), (MALFORMED,), V5),
    Bad("a property of the will", connect_with(b"\x18\0\0\0\x01"), (MALFORMED,), V5),
    Bad("a cut property", connect_with(b"\x11\0\0"), (MALFORMED,), V5),
    Bad("authentication data without a method", connect_with(b"\x16" + text("x")), (PROTOCOL_ERROR,), V5),
    Bad("will delay twice", will(b"t", b"\x18\0\0\0\x01" * 2), (PROTOCOL_ERROR,), V5),
    Bad("will payload format 2", will(b"t", b"\x01\x02"), EITHER, V5),
    Bad("a property of CONNECT in the will", will(b"t", SESSION_EXPIRY), (MALFORMED,), V5),
    Bad("a wildcard in the response topic of the will", will(b"t", b"\x08" + text("a/#")), BAD_NAME, V5),
]

NOT_CONNECT = {
    "PINGREQ": frame(0xC0),
    "PUBLISH": publish_to(b"a")(b""),
    "SUBSCRIBE": subscribe_to(b"a")(b"\0"),
    "DISCONNECT": frame(0xE0),
    "AUTH": frame(0xF0, b"\x18\0"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
    "zeros": bytes(32),
    "ones": b"\xff" * 32,
    "an empty CONNECT": frame(0x10),
    "a length of five bytes": b"\x10" + FIVE_BYTES,
}
"""First words of strangers, instead of CONNECT."""
