"""What payloads say: numbers, texts and fields, and nothing at all of what is neither."""

from __future__ import annotations

import struct

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.operators import payload_values
from sterna.operators.payload_values import field_of, number_in, number_of, text_in, text_of

ROOM = 65_536


@pytest.mark.parametrize(
    ("payload", "number"),
    [
        (b"21.5", 21.5),
        (b" -3e2\n", -300.0),
        (b"+.5", 0.5),
        (b"1e-400", 0.0),
        (b"0" * 64, 0.0),
        (b"1.7e38", 1.7e38),
        (b"0" * 65, None),
        (b"1e39", None),
        (b"1e999", None),
        (b"nan", None),
        (b"-Infinity", None),
        (b"1_000", None),
        (b"0x10", None),
        (b"", None),
        (b"21.5 C", None),
        (b"1\x00", None),
        ("٣".encode(), None),
        (b"\xff", None),
    ],
)
def test_the_number_of_a_payload(payload: bytes, number: float | None) -> None:
    assert number_of(payload) == number


def test_zero_has_one_form() -> None:
    assert repr(number_of(b"-0.0")) == "0.0"
    assert repr(number_in(-0.0)) == "0.0"


@pytest.mark.parametrize(
    "encode", [lambda text: text.encode(), lambda text: cbor2.dumps(__import__("json").loads(text))]
)
@pytest.mark.parametrize(
    ("path", "number"),
    [
        (".t", 21.5),
        (".deep.list.1", 7.0),
        (".deep.list.1.0", None),
        (".deep.list.2", None),
        (".deep.list.-1", None),
        (".deep.list.999999999999", None),
        (".deep", None),
        (".text", 4.25),
        (".yes", None),
        (".nothing", None),
        (".missing", None),
        (".big", None),
        (".0", 3.0),
    ],
)
def test_a_field_is_found_in_json_and_cbor_alike(encode: object, path: str, number: float | None) -> None:
    text = """{"t": 21.5, "deep": {"list": [1, 7]}, "text": "4.25", "yes": true, "nothing": null,
               "big": 1e39, "0": 3}"""
    assert callable(encode)
    assert number_in(field_of(encode(text), tuple(path.split(".")[1:]), ROOM)) == number


def test_a_field_may_be_in_a_list_and_behind_a_tag() -> None:
    assert number_in(field_of(b"[5, [6]]", ("1", "0"), ROOM)) == 6.0
    assert number_in(field_of(b"\xd9\xd9\xf7" + cbor2.dumps({"a": [1, 2]}), ("a", "1"), ROOM)) == 2.0


@pytest.mark.parametrize(
    ("found", "text"),
    [("on", "on"), (True, "true"), (2.5, "2.5"), (12, "12"), (10**30, None), ([1], None), ({}, None), (None, None)],
)
def test_the_text_of_a_field(found: object, text: str | None) -> None:
    assert text_in(found) == text


def test_a_payload_that_is_no_text_has_none() -> None:
    assert text_of("grün".encode()) == "grün"
    assert text_of(b"\xff\xfe") is None


HOSTILE = {
    "arrays in arrays": b"[" * 60_000,
    "objects in objects": b'{"a":' * 10_000,
    "CBOR arrays in arrays": b"\x81" * 60_000,
    "a CBOR array said to be endless": b"\x9b" + b"\x7f" + b"\xff" * 7,
    "a CBOR text said to be endless": b"\x81\x7b" + b"\x7f" + b"\xff" * 7,
    "a regular expression": b"\x81\xd8\x23\x79" + struct.pack(">H", 60_000) + b"(a|b)*" * 10_000,
    "keys of one hash": b"\xb9\x13\x88"
    + b"".join(b"\xc2\x4a" + (place * (2**61 - 1)).to_bytes(10, "big") + b"\0" for place in range(1, 5001)),
    "a bignum": b"\x81\xc2\x59\xff\x00" + b"\xff" * 0xFF00,
    "a decimal": b"\x81\xc4\x82\x1a\x3b\x9a\xca\x00\x01",
    "a self that holds itself": b"\xd8\x1c\x81\xd8\x1d\x00",
    "half a float": b"\x81\xfb\x00",
    "an infinity": b"\x81\xf9\x7c\x00",
    "not a number": b"\x81\xf9\x7e\x00",
    "a JSON number out of range": b"[1e999]",
    "no UTF-8": b'["\xff"]',
    "nothing": b"",
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_payloads_have_no_number(payload: bytes) -> None:
    assert number_in(field_of(payload, ("0",), ROOM)) is None


def test_a_payload_too_long_is_not_even_read() -> None:
    payload = b'{"a": 1, "b": "' + b"x" * 100 + b'"}'
    assert number_in(field_of(payload, ("a",), len(payload))) == 1.0
    assert field_of(payload, ("a",), len(payload) - 1) is None


@given(st.binary(max_size=60), st.lists(st.sampled_from(["a", "0", "1"]), max_size=3))
def test_any_bytes_are_a_finite_number_or_none(payload: bytes, path: list[str]) -> None:
    for number in (number_of(payload), number_in(field_of(payload, tuple(path), ROOM))):
        assert number is None or -(2.0**127) < number < 2.0**127
    text_in(field_of(payload, tuple(path), ROOM))


def test_a_payload_many_ask_about_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_apart = []

    def from_json(payload: bytes) -> object:
        taken_apart.append(payload)
        return {"a": 1, "b": {"c": 2}}

    monkeypatch.setattr(payload_values, "_from_json", from_json)
    payload, other = b'{"a": 1, "b": {"c": 2}}', bytes(bytearray(b'{"a": 1, "b": {"c": 2}}'))
    for one in (payload, payload, other, other, payload):
        assert number_in(field_of(one, ("a",), 100)) == 1.0
        assert number_in(field_of(one, ("b", "c"), 100)) == 2.0
    assert len(taken_apart) == 3
