"""MQTT 5 properties: all of them, in every packet, whole, cut at every byte, and given twice."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import properties as standard
from sterna.mqtt import properties as prop
from sterna.vocabulary.errors import ProtocolError

#: A value for every property of table 2-4, by the standard's name: (name, value, what we decode it to).
VALUES: dict[int, tuple[str, Any, Any]] = {
    prop.PAYLOAD_FORMAT: ("payload_format", 1, 1),
    prop.MESSAGE_EXPIRY: ("message_expiry", 7, 7),
    prop.CONTENT_TYPE: ("content_type", "text", b"text"),
    prop.RESPONSE_TOPIC: ("response_topic", "a/b", b"a/b"),
    prop.CORRELATION_DATA: ("correlation_data", b"\0\xff", b"\0\xff"),
    prop.SUBSCRIPTION_IDENTIFIER: ("subscription_id", [300], 300),
    prop.SESSION_EXPIRY: ("session_expiry", 0xFFFFFFFF, 0xFFFFFFFF),
    prop.AUTHENTICATION_METHOD: ("authentication_method", "SCRAM", b"SCRAM"),
    prop.AUTHENTICATION_DATA: ("authentication_data", b"\1", b"\1"),
    prop.REQUEST_PROBLEM_INFORMATION: ("request_problem_information", 0, 0),
    prop.WILL_DELAY: ("will_delay", 5, 5),
    prop.REQUEST_RESPONSE_INFORMATION: ("request_response_information", 1, 1),
    prop.REASON_STRING: ("reason_string", "because", b"because"),
    prop.RECEIVE_MAXIMUM: ("receive_maximum", 20, 20),
    prop.TOPIC_ALIAS_MAXIMUM: ("topic_alias_maximum", 0, 0),
    prop.TOPIC_ALIAS: ("topic_alias", 3, 3),
    prop.USER_PROPERTY: ("user_property", [("k", "v"), ("k", "w")], [(b"k", b"v"), (b"k", b"w")]),
    prop.MAXIMUM_PACKET_SIZE: ("maximum_packet_size", 100, 100),
}
PAIRS = [(packet, identifier) for packet in prop.ALLOWED for identifier in prop.READERS]
FEW = 5


def section(*identifiers: int) -> bytes:
    found = {VALUES[identifier][0]: VALUES[identifier][1] for identifier in identifiers}
    return standard.encode_properties(cast(standard.Properties, found))


def read(data: bytes, packet: str, user_properties_max: int = FEW) -> tuple[prop.Properties, bytes, int]:
    return prop.read_properties(data, 0, len(data), packet, user_properties_max)


def outcome(data: bytes, packet: str) -> tuple[prop.Properties, bytes, int] | ProtocolError:
    try:
        return read(data, packet)
    except ProtocolError as error:
        return error


def test_there_is_a_value_for_every_property_a_client_may_send() -> None:
    assert VALUES.keys() == prop.READERS.keys()


@pytest.mark.parametrize(("packet", "identifier"), PAIRS)
def test_a_property_is_read_where_it_belongs_and_refused_elsewhere(packet: str, identifier: int) -> None:
    data = section(identifier)
    if identifier in prop.ALLOWED[packet]:
        forwarded = data[1:] if identifier in prop.FORWARDED else b""
        assert read(data, packet) == ({identifier: VALUES[identifier][2]}, forwarded, len(data))
    else:
        with pytest.raises(ProtocolError, match="does not belong") as caught:
            read(data, packet)
        of_a_server = (packet, identifier) == ("PUBLISH", prop.SUBSCRIPTION_IDENTIFIER)
        assert caught.value.code == (0x82 if of_a_server else 0x81)


@pytest.mark.parametrize("packet", prop.ALLOWED)
def test_all_properties_of_a_packet_at_once_are_all_read(packet: str) -> None:
    allowed = sorted(prop.ALLOWED[packet])
    found, forwarded, _ = read(section(*allowed), packet)
    assert found == {identifier: VALUES[identifier][2] for identifier in allowed}
    assert forwarded == section(*[i for i in allowed if i in prop.FORWARDED])[1:]


@pytest.mark.parametrize("packet", prop.ALLOWED)
def test_a_section_cut_at_any_byte_is_malformed(packet: str) -> None:
    data = section(*sorted(prop.ALLOWED[packet]))
    for cut in range(len(data)):
        with pytest.raises(ProtocolError) as caught:
            read(data[:cut], packet)
        assert caught.value.code == 0x81, f"cut after {cut} bytes"


@pytest.mark.parametrize("packet", prop.ALLOWED)
def test_a_section_that_claims_to_end_earlier_is_refused_or_holds_fewer_properties(packet: str) -> None:
    data = section(*sorted(prop.ALLOWED[packet]))
    whole = read(data, packet)[0]
    assert data[0] < 0x80
    for length in range(data[0]):
        found = outcome(bytes([length]) + data[1:], packet)
        if isinstance(found, ProtocolError):
            assert found.code == 0x81
        else:
            assert found[2] == 1 + length
            assert found[0].keys() <= whole.keys()


@pytest.mark.parametrize(("packet", "identifier"), [(p, i) for p, i in PAIRS if i in prop.ALLOWED[p]])
def test_only_user_properties_may_come_twice(packet: str, identifier: int) -> None:
    body = section(identifier)[1:]
    data = bytes([2 * len(body)]) + body + body
    if identifier == prop.USER_PROPERTY:
        assert len(read(data, packet)[0][identifier]) == 4
    else:
        with pytest.raises(ProtocolError, match="twice") as caught:
            read(data, packet)
        assert caught.value.code == 0x82


def test_user_properties_are_counted_and_limited() -> None:
    pair = section(prop.USER_PROPERTY)[1:]
    data = bytes([len(pair)]) + pair
    assert len(read(data, "PUBLISH", 2)[0][prop.USER_PROPERTY]) == 2
    with pytest.raises(ProtocolError) as caught:
        read(data, "PUBLISH", 1)
    assert caught.value.code == 0x97


@pytest.mark.parametrize(
    ("packet", "name", "value", "code"),
    [
        ("PUBLISH", "payload_format", 2, 0x82),
        ("CONNECT", "request_problem_information", 2, 0x82),
        ("CONNECT", "request_response_information", 255, 0x82),
        ("CONNECT", "receive_maximum", 0, 0x82),
        ("CONNECT", "maximum_packet_size", 0, 0x82),
        ("SUBSCRIBE", "subscription_id", [0], 0x82),
        ("PUBLISH", "topic_alias", 0, 0x94),
    ],
)
def test_a_value_the_standard_forbids_is_refused(packet: str, name: str, value: object, code: int) -> None:
    data = standard.encode_properties(cast(standard.Properties, {name: value}))
    with pytest.raises(ProtocolError) as caught:
        read(data, packet)
    assert caught.value.code == code


@pytest.mark.parametrize("identifier", sorted(set(range(128)) - VALUES.keys()))
def test_an_unknown_property_is_malformed(identifier: int) -> None:
    """Those that only a server sends are unknown from a client."""
    with pytest.raises(ProtocolError, match="unknown") as caught:
        read(bytes([3, identifier, 0, 0]), "CONNECT")
    assert caught.value.code == 0x81


@given(packet=st.sampled_from(sorted(prop.ALLOWED)), data=st.binary(max_size=60))
def test_any_bytes_are_properties_or_refused(packet: str, data: bytes) -> None:
    found = outcome(data, packet)
    if isinstance(found, ProtocolError):
        assert found.code in (0x81, 0x82, 0x94, 0x97)
    else:
        assert found[0].keys() <= prop.ALLOWED[packet]
        assert len(found[1]) < found[2] <= len(data)


def test_what_a_server_writes_a_client_reads() -> None:
    values: prop.Properties = {
        prop.SESSION_EXPIRY: 60,
        prop.ASSIGNED_CLIENT_ID: b"auto-1",
        prop.SERVER_KEEP_ALIVE: 30,
        prop.AUTHENTICATION_METHOD: b"SCRAM",
        prop.AUTHENTICATION_DATA: b"\0",
        prop.RESPONSE_INFORMATION: b"r",
        prop.SERVER_REFERENCE: b"other",
        prop.REASON_STRING: b"why",
        prop.RECEIVE_MAXIMUM: 9,
        prop.TOPIC_ALIAS_MAXIMUM: 8,
        prop.TOPIC_ALIAS: 7,
        prop.MAXIMUM_QOS: 1,
        prop.RETAIN_AVAILABLE: 0,
        prop.MAXIMUM_PACKET_SIZE: 1000,
        prop.MESSAGE_EXPIRY: 5,
        prop.SUBSCRIPTION_IDENTIFIER: 200,
    }
    assert standard.Reader(prop.write_properties(values)).properties() == {
        "session_expiry": 60,
        "assigned_client_id": "auto-1",
        "server_keep_alive": 30,
        "authentication_method": "SCRAM",
        "authentication_data": b"\0",
        "response_information": "r",
        "server_reference": "other",
        "reason_string": "why",
        "receive_maximum": 9,
        "topic_alias_maximum": 8,
        "topic_alias": 7,
        "maximum_qos": 1,
        "retain_available": 0,
        "maximum_packet_size": 1000,
        "message_expiry": 5,
        "subscription_id": [200],
    }
