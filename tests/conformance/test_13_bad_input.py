"""Bad input of every kind closes that one connection, and says why where MQTT 5.0 lets it.

Each case is one packet in plain bytes.  A bystander connected before goes on being served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from .packets import (
    NO_LOCAL,
    RETAINED_IF_NEW,
    RETAINED_NEVER,
    Connack,
    Connect,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Will,
    frame,
)
from .peer import Broker
from .properties import data, encode_properties, text, u16, varint

MALFORMED, PROTOCOL_ERROR, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID = 0x81, 0x82, 0x8F, 0x90
UNSUPPORTED_VERSION, CLIENT_ID_INVALID, PACKET_ID_IN_USE, PACKET_TOO_LARGE = 0x84, 0x85, 0x91, 0x95
EITHER = (MALFORMED, PROTOCOL_ERROR)  # where the standard leaves open which of the two it is

NUL, SURROGATE, OVERLONG, TRUNCATED = b"a\0b", b"a\xed\xa0\x80", b"a\xc0\xafb", b"a\xe2\x82"
BAD_TEXT = {"U+0000": NUL, "a surrogate": SURROGATE, "an overlong form": OVERLONG, "a cut character": TRUNCATED}
FIVE_BYTE_LENGTH = b"\xff\xff\xff\xff\x01"


@dataclass(frozen=True)
class Bad:
    name: str
    packet: Callable[[bytes], bytes]
    """Builds the packet around an empty property block: nothing in 3.1.1, one zero byte in 5.0."""
    codes: tuple[int, ...] = EITHER
    versions: tuple[int, ...] = (4, 5)


def on_both_sides(cases: list[Bad]) -> list[object]:
    return [pytest.param(case, v, id=f"{case.name}-v{v}") for case in cases for v in case.versions]


@pytest.fixture(autouse=True)
def bystander(broker: Broker, topic: str) -> Iterator[None]:
    """Whatever a test does to its own connection, this one goes on."""
    client = broker.join(4)
    client.subscribe(f"{topic}/bystander")
    yield
    broker.join(5).publish(f"{topic}/bystander", b"undisturbed")
    client.expect(Publish(f"{topic}/bystander", b"undisturbed"))


# Once connected

CONNECTED = [
    # Fixed header
    Bad("a remaining length of five bytes", lambda p: b"\x30" + FIVE_BYTE_LENGTH, (*EITHER, PACKET_TOO_LARGE)),
    Bad("packet type 0", lambda p: frame(0x00)),
    Bad("packet type 15", lambda p: frame(0xF0), versions=(4,)),
    Bad("a second CONNECT", lambda p: Connect("second").encode(5 if p else 4), (PROTOCOL_ERROR,)),  # [MQTT-3.1.0-2]
    Bad("CONNACK from a client", lambda p: frame(0x20, b"\0\0" + p)),
    Bad("SUBACK from a client", lambda p: frame(0x90, u16(1) + p + b"\0")),
    Bad("UNSUBACK from a client", lambda p: frame(0xB0, u16(1) + p)),
    Bad("PINGRESP from a client", lambda p: frame(0xD0)),
    Bad("PUBREL with wrong flags", lambda p: frame(0x60, u16(1))),  # [MQTT-2.1.3-1], and the next ones
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
    Bad("PUBLISH with an empty topic", lambda p: frame(0x30, text("") + p), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("PUBLISH to a/+", lambda p: frame(0x30, text("a/+") + p), (*EITHER, TOPIC_NAME_INVALID)),  # [MQTT-3.3.2-2]
    Bad("PUBLISH to a/#", lambda p: frame(0x30, text("a/#") + p), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("PUBLISH to a+b", lambda p: frame(0x30, text("a+b") + p), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("PUBLISH with packet id 0", lambda p: frame(0x32, text("a") + u16(0) + p)),  # [MQTT-2.2.1-3]
    Bad("PUBLISH at QoS 1 without packet id", lambda p: frame(0x32, text("a"))),
    # SUBSCRIBE and UNSUBSCRIBE
    Bad("SUBSCRIBE with packet id 0", lambda p: frame(0x82, u16(0) + p + text("a") + b"\0")),
    Bad("SUBSCRIBE without filters", lambda p: frame(0x82, u16(1) + p)),  # [MQTT-3.8.3-2]
    Bad("SUBSCRIBE without anything", lambda p: frame(0x82)),
    Bad("SUBSCRIBE without options", lambda p: frame(0x82, u16(1) + p + text("a"))),
    Bad("SUBSCRIBE with half a filter", lambda p: frame(0x82, u16(1) + p + u16(9) + b"abc")),
    Bad("SUBSCRIBE at QoS 3", lambda p: frame(0x82, u16(1) + p + text("a") + b"\x03")),
    Bad("SUBSCRIBE with reserved bits", lambda p: frame(0x82, u16(1) + p + text("a") + b"\xc0")),  # [MQTT-3.8.3-5]
    Bad("SUBSCRIBE with the options of 5.0", lambda p: frame(0x82, u16(1) + text("a") + bytes([NO_LOCAL])), (), (4,)),
    Bad(
        "SUBSCRIBE with retain handling 3",
        lambda p: frame(0x82, u16(1) + p + text("a") + bytes([RETAINED_IF_NEW | RETAINED_NEVER])),
    ),
    Bad("UNSUBSCRIBE with packet id 0", lambda p: frame(0xA2, u16(0) + p + text("a"))),
    Bad("UNSUBSCRIBE without filters", lambda p: frame(0xA2, u16(1) + p)),  # [MQTT-3.10.3-2]
    Bad("UNSUBSCRIBE with half a filter", lambda p: frame(0xA2, u16(1) + p + u16(9) + b"abc")),
]
for _name, _text in BAD_TEXT.items():  # [MQTT-1.5.4-1], [MQTT-1.5.4-2]
    CONNECTED += [
        Bad(f"PUBLISH to {_name}", lambda p, t=_text: frame(0x30, data(t) + p), (*EITHER, TOPIC_NAME_INVALID)),
        Bad(
            f"SUBSCRIBE to {_name}",
            lambda p, t=_text: frame(0x82, u16(1) + p + data(t) + b"\0"),
            (*EITHER, TOPIC_FILTER_INVALID),
        ),
        Bad(f"UNSUBSCRIBE from {_name}", lambda p, t=_text: frame(0xA2, u16(1) + p + data(t)), (*EITHER, 0x8F)),
    ]


def publish_with(block: bytes, length: int | None = None) -> Callable[[bytes], bytes]:
    """A PUBLISH in 5.0 with this property block, as long as it is or as long as it claims to be."""
    return lambda p: frame(0x30, text("a") + varint(len(block) if length is None else length) + block)


def subscribe_with(block: bytes) -> Callable[[bytes], bytes]:
    return lambda p: frame(0x82, u16(1) + varint(len(block)) + block + text("a") + b"\0")


def disconnect_with(block: bytes) -> Callable[[bytes], bytes]:
    return lambda p: frame(0xE0, b"\0" + varint(len(block)) + block)


CONTENT_TYPE, SESSION_EXPIRY = b"\x03" + text("x"), b"\x11\0\0\0\x05"
PROPERTIES = [
    Bad("a property twice", publish_with(CONTENT_TYPE * 2), (PROTOCOL_ERROR,)),
    Bad("payload format twice", publish_with(b"\x01\0" * 2), (PROTOCOL_ERROR,)),
    Bad("topic alias twice", publish_with(b"\x23\0\x01" * 2), (PROTOCOL_ERROR,)),
    Bad("an unknown property", publish_with(b"\x7f\0"), (MALFORMED,)),
    Bad("an unknown property of two bytes", publish_with(b"\x80\x01\0"), (MALFORMED,)),
    Bad("a property of another packet", publish_with(SESSION_EXPIRY)),
    Bad("a subscription identifier from a client", publish_with(b"\x0b\x01"), (PROTOCOL_ERROR,)),  # [MQTT-3.3.4-6]
    Bad("payload format 2", publish_with(b"\x01\x02")),
    Bad("a cut number", publish_with(b"\x02\0\0"), (MALFORMED,)),
    Bad("a cut text", publish_with(b"\x03\0\x09abc"), (MALFORMED,)),
    Bad("half a user property", publish_with(b"\x26" + text("key")), (MALFORMED,)),
    Bad("properties longer than the packet", publish_with(CONTENT_TYPE, length=100), (MALFORMED,)),
    Bad("a property length of five bytes", lambda p: frame(0x30, text("a") + FIVE_BYTE_LENGTH), (MALFORMED,)),
    Bad("no property length", lambda p: frame(0x30, text("a")), (MALFORMED,)),
    Bad("a wildcard in the response topic", publish_with(b"\x08" + text("a/#")), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("bad text in a user property", publish_with(b"\x26" + text("key") + data(SURROGATE)), (MALFORMED,)),
    Bad("bad text in the content type", publish_with(b"\x03" + data(NUL)), (MALFORMED,)),
    Bad("subscription identifier 0", subscribe_with(b"\x0b\0"), (PROTOCOL_ERROR,)),
    Bad("two subscription identifiers", subscribe_with(b"\x0b\x01\x0b\x02"), (PROTOCOL_ERROR,)),
    Bad("a subscription identifier of five bytes", subscribe_with(b"\x0b" + FIVE_BYTE_LENGTH)),
    Bad("a property of CONNECT in SUBSCRIBE", subscribe_with(SESSION_EXPIRY)),
    Bad("session expiry twice in DISCONNECT", disconnect_with(SESSION_EXPIRY * 2), (PROTOCOL_ERROR,)),
    Bad("a property of PUBLISH in DISCONNECT", disconnect_with(CONTENT_TYPE)),
]


@pytest.mark.parametrize(("case", "version"), on_both_sides(CONNECTED))
def test_a_connected_client_is_closed_for(broker: Broker, case: Bad, version: int) -> None:
    client = broker.join(version, session_expiry=60) if version == 5 else broker.join(4)
    client.send(case.packet(b"\0" if version == 5 else b""))
    client.expect_close(*case.codes)


@pytest.mark.parametrize("case", PROPERTIES, ids=lambda case: case.name)
def test_a_connected_client_is_closed_for_properties_like(broker: Broker, case: Bad) -> None:
    """Section 2.2.2"""
    client = broker.join(session_expiry=60)
    client.send(case.packet(b"\0"))
    client.expect_close(*case.codes)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a/#/b",
        "#/",
        "a#",
        "#a",
        "a+",
        "+a",
        "a/b+",
        "a/+b/c",
        "$share//x",
        "$share/g+/x",
        "$share/#/x",
        "$share/g/",
    ],
)
def test_a_bad_filter_is_refused(broker: Broker, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.8.2-1], [MQTT-4.8.2-2]: in SUBACK, or by closing."""
    if version == 4 and topic_filter.startswith("$share"):
        pytest.skip("3.1.1 gives $share no meaning")
    client = broker.join(version)
    client.send(Subscribe(1, [(topic_filter, 0)]))
    try:
        answer = client.receive()
    except EOFError:
        return
    if isinstance(answer, Suback):
        assert answer.codes == [0x80 if version == 4 else TOPIC_FILTER_INVALID]
    else:
        assert getattr(answer, "code", 0) in (*EITHER, TOPIC_FILTER_INVALID)
        client.expect_close()


def test_a_packet_id_in_use_does_not_make_a_second_message(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-2.2.1-4] forbids it to the client; refused with 0x91, closed or taken as the same message."""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic)
    publisher.send(Publish(topic, b"first", qos=2, packet_id=5))
    publisher.expect(Pubrec(5))
    publisher.send(Publish(topic, b"second", qos=2, packet_id=5))
    answer = publisher.receive()
    if isinstance(answer, Pubrec):
        assert answer in (Pubrec(5), Pubrec(5, PACKET_ID_IN_USE))
        publisher.send(Pubrel(5))
        publisher.receive()
    else:
        assert getattr(answer, "code", 0) in (PROTOCOL_ERROR, PACKET_ID_IN_USE)
    assert len(subscriber.waiting_messages()) <= 1


# Before CONNECT, or with a bad one


@pytest.mark.parametrize(
    "first",
    [
        frame(0xC0),
        Publish("a", b"x").encode(4),
        Publish("a", b"x").encode(5),
        Subscribe(1, [("a", 0)]).encode(5),
        frame(0xE0),
        frame(0xF0, b"\x18\0"),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
        b"\x00" * 32,
        b"\xff" * 32,
        b"\x10" + FIVE_BYTE_LENGTH,
    ],
    ids=lambda first: first[:8].hex(" "),
)
def test_a_stranger_that_does_not_begin_with_connect_is_closed(broker: Broker, first: bytes) -> None:
    """[MQTT-3.1.0-1]: without CONNACK."""
    client = broker.dial(5)
    client.send(first)
    client.expect_close()


def connect(
    flags: int = 0x02,
    properties: bytes = b"",
    rest: bytes = text("bad"),
    name: bytes = text("MQTT"),
    first_byte: int = 0x10,
) -> Callable[[bytes], bytes]:
    """A CONNECT with one part replaced."""

    def packet(p: bytes) -> bytes:
        block = varint(len(properties)) + properties if p else b""
        return frame(first_byte, name + bytes([5 if p else 4, flags]) + u16(60) + block + rest)

    return packet


def connect_with(*blocks: bytes) -> Callable[[bytes], bytes]:
    return connect(properties=b"".join(blocks))


def will(topic: bytes, properties: bytes = b"") -> Callable[[bytes], bytes]:
    """A CONNECT with this will."""

    def packet(p: bytes) -> bytes:
        block = varint(len(properties)) + properties if p else b""
        return connect(0x06, rest=text("bad") + block + data(topic) + data(b"payload"))(p)

    return packet


V5 = (5,)
BAD_CONNECT = [
    Bad("wrong flags in the fixed header", connect(first_byte=0x11)),
    Bad("the reserved flag", connect(0x03)),  # [MQTT-3.1.2-3]
    Bad("will QoS without a will", connect(0x0A)),  # [MQTT-3.1.2-11]
    Bad("will retain without a will", connect(0x22)),  # [MQTT-3.1.2-13]
    Bad("will QoS 3", connect(0x1E, rest=text("bad") + text("t") + text("p"))),  # [MQTT-3.1.2-12]
    Bad(
        "a password without a user name", connect(0x42, rest=text("bad") + text("secret")), (), (4,)
    ),  # [MQTT-3.1.2-22]
    Bad("nothing after the flags", lambda p: frame(0x10, text("MQTT") + (b"\x05\x02" if p else b"\x04\x02"))),
    Bad("no client id", connect(rest=b"")),
    Bad("half a client id", connect(rest=u16(20) + b"short")),
    Bad("a user name announced and missing", connect(0x82)),
    Bad("a will announced and missing", connect(0x06)),
    Bad("bytes left over", connect(rest=text("bad") + b"left over")),
    Bad("a will topic with a wildcard", will(b"a/#"), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("an empty will topic", will(b""), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("bad text in the will topic", will(SURROGATE), (*EITHER, TOPIC_NAME_INVALID)),
    Bad("a cut length", lambda p: b"\x10\x00", EITHER),
    Bad("session expiry twice", connect_with(SESSION_EXPIRY, SESSION_EXPIRY), (PROTOCOL_ERROR,), V5),
    Bad("receive maximum 0", connect_with(b"\x21\0\0"), (PROTOCOL_ERROR,), V5),
    Bad("maximum packet size 0", connect_with(b"\x27\0\0\0\0"), (PROTOCOL_ERROR,), V5),
    Bad("request problem information 2", connect_with(b"\x17\x02"), (PROTOCOL_ERROR,), V5),
    Bad("request response information 2", connect_with(b"\x19\x02"), (PROTOCOL_ERROR,), V5),
    Bad("an unknown property", connect_with(b"\x7f\0"), (MALFORMED,), V5),
    Bad("a property of PUBLISH", connect_with(b"\x23\0\x01"), EITHER, V5),
    Bad("a property of the will", connect_with(b"\x18\0\0\0\x01"), EITHER, V5),
    Bad("a cut property", connect_with(b"\x11\0\0"), (MALFORMED,), V5),
    Bad("authentication data without a method", connect_with(b"\x16" + text("x")), (PROTOCOL_ERROR,), V5),
    Bad("will delay twice", will(b"t", b"\x18\0\0\0\x01" * 2), (PROTOCOL_ERROR,), V5),
    Bad("will payload format 2", will(b"t", b"\x01\x02"), EITHER, V5),
    Bad("a property of CONNECT in the will", will(b"t", SESSION_EXPIRY), EITHER, V5),
]
BAD_CONNECT += [
    Bad(f"{name} in the client id", connect(rest=data(bad)), (*EITHER, CLIENT_ID_INVALID))
    for name, bad in BAD_TEXT.items()
]


@pytest.mark.parametrize(("case", "version"), on_both_sides(BAD_CONNECT))
def test_connect_is_refused_for(broker: Broker, case: Bad, version: int) -> None:
    """[MQTT-3.1.4-1]: 3.1.1 closes without CONNACK, 5.0 may give the reason."""
    client = broker.dial(version)
    client.send(case.packet(b"\0" if version == 5 else b""))
    if version == 4:
        client.expect_close()
    else:
        client.expect_refusal(*case.codes)


def test_another_protocol_is_closed(broker: Broker, version: int) -> None:
    """[MQTT-3.1.2-1]: the server may refuse it with CONNACK 0x84, or just close."""
    client = broker.dial(version)
    client.send(connect(name=text("MQTX"))(b"\0" if version == 5 else b""))
    try:
        assert client.wait_for(Connack).code == UNSUPPORTED_VERSION
    except EOFError:
        return
    client.expect_close()


@pytest.mark.parametrize(("name", "level"), [("MQIsdp", 3), ("MQTT", 3), ("MQTT", 0), ("MQTT", 6), ("MQTT", 127)])
def test_another_protocol_level_is_refused_politely(broker: Broker, name: str, level: int) -> None:
    """[MQTT-3.1.2-2]: CONNACK 0x01 in the form of 3.1.1, or 0x84 in that of 5.0, then close."""
    newer = level > 5
    client = broker.dial(5 if newer else 4)
    block = b"\0" if newer else b""
    client.send(frame(0x10, text(name) + bytes([level, 0x02]) + u16(60) + block + text("visitor")))
    client.expect(Connack(UNSUPPORTED_VERSION if newer else 0x01))
    client.expect_close()


def test_a_bad_will_is_not_kept(broker: Broker, topic: str) -> None:
    """A refused CONNECT publishes nothing."""
    watcher = broker.join()
    watcher.subscribe(f"{topic}/#")
    client = broker.dial()
    client.send(Connect(client.client_id, will=Will(f"{topic}/a", b"x"), properties={"receive_maximum": 0}))
    client.expect_refusal(PROTOCOL_ERROR)
    watcher.expect_nothing()


def test_too_many_user_properties_close_one_connection_at_most(broker: Broker, topic: str) -> None:
    """A thousand in one packet: taken or refused, and in either case survived."""
    client = broker.join()
    block = encode_properties({"user_property": [("k", "v")] * 1000})
    client.send(frame(0x32, text(topic) + u16(1) + block))
    answer = client.receive()
    assert getattr(answer, "code", None) in (0x00, 0x10, 0x81, 0x82, 0x95, 0x97)
