"""The packets between gateway and node: they come back as they went, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.mqtt import wire
from sterna.mqtt.gateway_packets import (
    BODY_MAX,
    Cancel,
    Control,
    Drained,
    Farewell,
    GatewayHello,
    GatewayStopped,
    Prepare,
    Redirect,
    decode,
    encode,
)
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

addresses = st.text(min_size=1, max_size=100)
controls = st.one_of(
    st.builds(GatewayHello, st.text(max_size=100), st.just(1), st.text(max_size=100), st.booleans(), st.booleans()),
    st.builds(Prepare, addresses),
    st.builds(Redirect, addresses),
    st.just(Cancel()),
    st.just(Drained()),
    st.just(GatewayStopped()),
    st.builds(Farewell, st.integers(0, 255)),
)


def taken(packet: bytes) -> Control:
    assert packet[0] == 0x00
    length, position = wire.read_variable(packet, 1, len(packet))
    assert position + length == len(packet)
    return decode(packet, position, len(packet))


def body(*fields: object) -> bytes:
    return msgspec.msgpack.encode(list(fields))


@given(controls)
def test_a_packet_comes_back_as_it_went(control: Control) -> None:
    assert taken(encode(control)) == control


def test_the_bytes_are_those_agreed_on() -> None:
    assert encode(Cancel()) == b"\x00\x02\x91\x03"
    assert encode(Redirect("a:1")) == b"\x00\x06\x92\x04\xa3a:1"
    assert encode(GatewayHello("g", 1, "")) == b"\x00\x08\x96\x01\xa1g\x01\xa0\xc2\xc2"


def test_fields_of_a_later_version_are_skipped() -> None:
    data = body(2, "a:1", {"hurry": True})
    assert decode(data, 0, len(data)) == Prepare("a:1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        body(),
        body(0),
        body(8),
        body(6),
        body(6, 256),
        body("4", "a:1"),
        body(4),
        body(4, 1883),
        body(4, ""),
        body(4, "a" * 301),
        body(1, "g", 1),
        body(1, "g" * 129, 1, ""),
        body(4, "a:1") + b"\x00",
        b"\x91" * 1000,
        b"\x92\x04\xa2\xff\xff",
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(data, 0, len(data))
    assert refused.value.code == Reason.MALFORMED_PACKET


def test_what_is_too_large_is_refused_unread() -> None:
    data = body(4, "a" * BODY_MAX)
    with pytest.raises(ProtocolError) as refused:
        decode(data, 0, len(data))
    assert refused.value.code == Reason.PACKET_TOO_LARGE


def test_a_gateway_of_another_version_is_refused_by_name() -> None:
    data = body(1, "g", 2, "")
    with pytest.raises(ProtocolError, match="version 2") as refused:
        decode(data, 0, len(data))
    assert refused.value.code == Reason.UNSUPPORTED_PROTOCOL_VERSION


@given(st.binary(max_size=64))
def test_no_bytes_do_anything_but_decode_or_be_refused(data: bytes) -> None:
    try:
        control = decode(data, 0, len(data))
    except ProtocolError:
        return
    assert isinstance(control, Control)
