"""Control packets: what a client encodes is what the node decodes, and any other bytes are a protocol error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import packets as client
from conformance.properties import Properties
from sterna.mqtt import packets
from sterna.mqtt import properties as prop
from sterna.mqtt.reasons import CONNACK_3_1_1, Reason
from sterna.vocabulary.errors import ProtocolError

USER_PROPERTIES = 4
versions = st.sampled_from([4, 5])
both_versions = pytest.mark.parametrize("version", [4, 5])
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
packet_ids = st.integers(1, 0xFFFF)

Decoder = Callable[[bytes, int], object]
DECODERS: dict[str, Decoder] = {
    "CONNECT": lambda body, version: packets.decode_connect(body, 0, len(body), USER_PROPERTIES),
    "SUBSCRIBE": lambda body, version: packets.decode_subscribe(body, 0, len(body), version, USER_PROPERTIES),
    "UNSUBSCRIBE": lambda body, version: packets.decode_unsubscribe(body, 0, len(body), version, USER_PROPERTIES),
    "PUBACK": lambda body, version: packets.decode_acknowledgement(body, 0, len(body), version, USER_PROPERTIES),
    "DISCONNECT": lambda body, version: packets.decode_ending(body, 0, len(body), "DISCONNECT", USER_PROPERTIES),
    "AUTH": lambda body, version: packets.decode_ending(body, 0, len(body), "AUTH", USER_PROPERTIES),
}
decoders = pytest.mark.parametrize("kind", DECODERS)


def body_of(packet: client.Sent, version: int) -> bytes:
    """The packet without its fixed header."""
    encoded = packet.encode(version)
    place = 1
    while encoded[place] & 0x80:
        place += 1
    return encoded[place + 1 :]


wills = st.builds(
    client.Will,
    topic=texts,
    payload=st.binary(max_size=8),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.fixed_dictionaries(
        {}, optional={"will_delay": st.integers(0, 9), "message_expiry": st.integers(0, 9), "content_type": texts}
    ),
)
connects = st.builds(
    client.Connect,
    client_id=texts,
    clean=st.booleans(),
    keep_alive=st.integers(0, 0xFFFF),
    will=st.none() | wills,
    username=texts,
    password=st.none() | st.binary(max_size=8),
    properties=st.fixed_dictionaries(
        {}, optional={"session_expiry": st.integers(0, 0xFFFFFFFF), "receive_maximum": st.integers(1, 0xFFFF)}
    ),
)


@given(packet=connects, version=versions)
def test_a_connect_survives_the_way(packet: client.Connect, version: int) -> None:
    found = packets.decode_connect(body_of(packet, version), 0, len(body_of(packet, version)), USER_PROPERTIES)
    assert (found.version, found.client_id, found.clean_start) == (version, packet.client_id.encode(), packet.clean)
    assert (found.keep_alive_s, found.username) == (packet.keep_alive, packet.username)
    assert found.password == packet.password
    told = packet.properties if version == 5 else Properties()
    assert found.properties.get(prop.SESSION_EXPIRY) == told.get("session_expiry")
    assert found.properties.get(prop.RECEIVE_MAXIMUM) == told.get("receive_maximum")
    assert (found.will is None) == (packet.will is None)
    if packet.will is not None and found.will is not None:
        will, sent = found.will, packet.will
        assert (will.topic, will.payload) == (sent.topic.encode(), sent.payload)
        assert (will.qos, will.retain) == (sent.qos, sent.retain)
        options = sent.properties if version == 5 else Properties()
        assert (will.delay_s, will.expiry_s) == (options.get("will_delay", 0), options.get("message_expiry"))
        assert will.forwarded.endswith(options.get("content_type", "").encode())


@given(
    packet_id=packet_ids,
    filters=st.lists(st.tuples(texts, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1),
    identifier=st.none() | st.integers(1, 268_435_455),
    version=versions,
)
def test_a_subscribe_survives_the_way(
    packet_id: int, filters: list[tuple[str, int, bool, bool, int]], identifier: int | None, version: int
) -> None:
    if version == 4:
        filters = [(topic_filter, qos, False, False, 0) for topic_filter, qos, *_ in filters]
    entries = [
        (topic_filter, qos | no_local << 2 | as_published << 3 | handling << 4)
        for topic_filter, qos, no_local, as_published, handling in filters
    ]
    properties: Properties = {} if identifier is None else {"subscription_id": [identifier]}
    body = body_of(client.Subscribe(packet_id, entries, properties), version)
    found = packets.decode_subscribe(body, 0, len(body), version, USER_PROPERTIES)
    assert found.packet_id == packet_id
    assert found.identifier == ((identifier or 0) if version == 5 else 0)
    assert [
        (r.topic_filter.decode(), r.qos, r.no_local, r.retain_as_published, r.retain_handling) for r in found.requests
    ] == filters


@given(packet_id=packet_ids, filters=st.lists(texts, min_size=1), version=versions)
def test_an_unsubscribe_survives_the_way(packet_id: int, filters: list[str], version: int) -> None:
    body = body_of(client.Unsubscribe(packet_id, filters), version)
    found = packets.decode_unsubscribe(body, 0, len(body), version, USER_PROPERTIES)
    assert found == packets.Unsubscribe(packet_id, tuple(f.encode() for f in filters))


@given(packet_id=packet_ids, code=st.integers(0, 255), reason=st.none() | texts)
def test_an_acknowledgement_with_a_reason_survives_the_way(packet_id: int, code: int, reason: str | None) -> None:
    properties: Properties = {} if reason is None else {"reason_string": reason}
    body = body_of(client.Puback(packet_id, code, properties), 5)
    assert packets.decode_acknowledgement(body, 0, len(body), 5, USER_PROPERTIES) == (packet_id, code)


@given(code=st.integers(0, 255), expiry=st.none() | st.integers(0, 0xFFFFFFFF))
def test_a_disconnect_survives_the_way(code: int, expiry: int | None) -> None:
    properties: Properties = {} if expiry is None else {"session_expiry": expiry}
    body = body_of(client.Disconnect(code, properties), 5)
    expected = {} if expiry is None else {prop.SESSION_EXPIRY: expiry}
    assert packets.decode_ending(body, 0, len(body), "DISCONNECT", USER_PROPERTIES) == (code, expected)


# -- bytes that are no packet --


def outcome(kind: str, body: bytes, version: int) -> object:
    """The decoded body, or the error; anything else that is raised is a bug."""
    try:
        return DECODERS[kind](body, version)
    except ProtocolError as error:
        return error


def is_packet_or_told_why(found: object) -> bool:
    return found is not None if not isinstance(found, ProtocolError) else found.code >= 0x80 and bool(found.reason)


@decoders
@given(body=st.binary(max_size=40), version=versions)
def test_any_bytes_are_a_packet_or_a_protocol_error(kind: str, body: bytes, version: int) -> None:
    assert is_packet_or_told_why(outcome(kind, body, version))


def samples(version: int) -> dict[str, client.Sent]:
    everything: Properties = {"user_property": [("a", "b")], "session_expiry": 3, "receive_maximum": 5}
    will = client.Will("w", b"p", 1, True, {"will_delay": 3, "content_type": "c"})
    return {
        "CONNECT": client.Connect("id", False, 9, will, "u", b"p", everything),
        "SUBSCRIBE": client.Subscribe(7, [("a/+", 1), ("b/#", 2)], {"subscription_id": [4]}),
        "UNSUBSCRIBE": client.Unsubscribe(8, ["a/+", "b"], {"user_property": [("a", "b")]}),
    }


@both_versions
@pytest.mark.parametrize("kind", ["CONNECT", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_packet_cut_anywhere_is_refused_or_has_fewer_filters(kind: str, version: int) -> None:
    body = body_of(samples(version)[kind], version)
    whole = DECODERS[kind](body, version)
    for cut in range(len(body)):
        found = outcome(kind, body[:cut], version)
        if isinstance(found, ProtocolError):
            assert found.code in (0x81, 0x82, 0x84)
        else:
            # Lists of filters have no length of their own: cut between two, they are a shorter list.
            assert kind != "CONNECT"
            assert getattr(found, "packet_id", None) == getattr(whole, "packet_id", None)


@given(kind=st.sampled_from(["CONNECT", "SUBSCRIBE", "UNSUBSCRIBE"]), version=versions, data=st.data())
def test_a_packet_with_any_byte_changed_is_a_packet_or_a_protocol_error(
    kind: str, version: int, data: st.DataObject
) -> None:
    body = bytearray(body_of(samples(version)[kind], version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert is_packet_or_told_why(outcome(kind, bytes(body), version))


@both_versions
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE", "PUBACK"])
def test_packet_identifier_0_is_refused(kind: str, version: int) -> None:
    with pytest.raises(ProtocolError, match="packet identifier 0") as caught:
        DECODERS[kind](b"\0\0" + b"\0" * 3, version)
    assert caught.value.code == 0x82


@pytest.mark.parametrize(
    ("flags", "version", "code"),
    [(0x03, 4, 0x81), (0x1E, 4, 0x81), (0x0A, 5, 0x81), (0x22, 5, 0x81), (0x42, 4, 0x81)],
    ids=["reserved", "will QoS 3", "will QoS without will", "will retain without will", "password without name"],
)
def test_connect_flags_that_contradict_themselves_are_refused(flags: int, version: int, code: int) -> None:
    body = b"\0\4MQTT" + bytes([version, flags]) + b"\0\0" + b"\0" * 20
    with pytest.raises(ProtocolError) as caught:
        DECODERS["CONNECT"](body, version)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "name",
    [b"\0\6MQIsdp\4", b"\0\6MQIsdp\x85", b"\0\4MQTT\3", b"\0\4MQTT\x85", b"\0\4MQTT\6", b"\0\4HTTP\4", b"\0\0\4"],
)
def test_other_protocols_are_refused_as_such(name: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        DECODERS["CONNECT"](name + b"\2\0\0\0\0", 4)
    assert caught.value.code == 0x84


# -- what the server sends --


def decoded(data: bytes, version: int) -> client.Received:
    place = 1
    while data[place] & 0x80:
        place += 1
    return client.decode(data[0], data[place + 1 :], version)


@given(version=versions, present=st.booleans(), code=st.sampled_from(sorted(CONNACK_3_1_1)))
def test_a_connack_says_in_each_version_what_it_can(version: int, present: bool, code: int) -> None:
    told = code if version == 5 else CONNACK_3_1_1[code]
    assert decoded(packets.encode_connack(version, present, code), version) == client.Connack(told, present)


@both_versions
@pytest.mark.parametrize(
    ("kind", "expected"), [(4, client.Puback), (5, client.Pubrec), (6, client.Pubrel), (7, client.Pubcomp)]
)
@given(packet_id=packet_ids, code=st.sampled_from([0, 0x10, 0x97]), reason=texts)
def test_an_acknowledgement_says_in_each_version_what_it_can(
    kind: int, expected: type[client.Puback], version: int, packet_id: int, code: int, reason: str
) -> None:
    found = decoded(packets.encode_acknowledgement(kind, packet_id, code, version, reason), version)
    assert found == expected(packet_id, code if version == 5 else 0)


@both_versions
def test_suback_unsuback_disconnect_and_auth_are_read_by_a_client(version: int) -> None:
    assert decoded(packets.encode_suback(9, b"\1\x87", version, "no"), version) == client.Suback(9, [1, 0x87])
    codes = [0, 0x11] if version == 5 else []
    assert decoded(packets.encode_unsuback(9, b"\0\x11", version), version) == client.Unsuback(9, codes)
    assert decoded(packets.encode_disconnect(Reason.SERVER_BUSY, "later"), 5) == client.Disconnect(0x89)
    auth = decoded(packets.encode_auth(0x18, b"M", b"data"), 5)
    assert isinstance(auth, client.Auth)
    assert auth.properties == {"authentication_method": "M", "authentication_data": b"data"}


@given(topic=texts, payload=st.binary(max_size=300), flags=st.integers(0, 1))
def test_the_head_of_a_publish_announces_exactly_the_rest(topic: str, payload: bytes, flags: int) -> None:
    head = packets.publish_head(0x30 | flags, topic.encode(), len(payload))
    assert decoded(head + payload, 4) == client.Publish(topic, payload, 0, bool(flags))
