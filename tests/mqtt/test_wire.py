"""The primitive types of MQTT: what is written can be read, and what cannot be right is refused, never guessed at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import properties as standard
from sterna.mqtt import wire
from sterna.vocabulary.errors import ProtocolError

Reader = Callable[[bytes, int, int], tuple[object, int]]
READERS: dict[str, Reader] = {
    "byte": wire.read_byte,
    "two": wire.read_two,
    "four": wire.read_four,
    "variable": wire.read_variable,
    "binary": wire.read_binary,
    "text": wire.read_text,
}
readers = pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())


@readers
@given(data=st.binary(max_size=12), position=st.integers(0, 12), end=st.integers(0, 12))
def test_a_reader_answers_or_refuses_and_never_reads_past_the_end(
    reader: Reader, data: bytes, position: int, end: int
) -> None:
    end = min(end, len(data))
    position = min(position, end)
    outcomes: list[object] = []
    # Bytes behind the end must not matter.
    for following in (b"", b"\x00" * 8, b"\xff" * 8):
        try:
            value, stop = reader(data[:end] + following, position, end)
        except ProtocolError as error:
            outcomes.append((error.code, error.reason))
        else:
            assert position < stop <= end
            outcomes.append((value, stop))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_variable_byte_integers_are_those_of_the_standards_table(value: int, encoded: bytes) -> None:
    assert wire.variable(value) == encoded
    assert wire.read_variable(encoded, 0, len(encoded)) == (value, len(encoded))


@given(st.integers(0, wire.VARIABLE_INTEGER_MAX))
def test_a_variable_byte_integer_survives_the_way_there_and_back(value: int) -> None:
    encoded = wire.variable(value)
    assert encoded == standard.varint(value)
    assert wire.read_variable(b"?" + encoded + b"?", 1, 1 + len(encoded)) == (value, 1 + len(encoded))


@pytest.mark.parametrize("data", [b"\x80\x00", b"\xff\x80\x00", b"\x80\x80\x80\x00"])
def test_a_variable_byte_integer_longer_than_needed_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="longer than needed") as caught:
        wire.read_variable(data, 0, len(data))
    assert caught.value.code == 0x81


def test_a_variable_byte_integer_of_five_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="five bytes"):
        wire.read_variable(b"\x80\x80\x80\x80\x01", 0, 5)


@given(st.integers(0, 0xFFFF), st.binary(max_size=300))
def test_two_byte_integers_and_binary_data_survive_the_way_there_and_back(number: int, data: bytes) -> None:
    assert wire.read_two(wire.two(number), 0, 2) == (number, 2)
    assert wire.read_binary(wire.binary(data), 0, len(data) + 2) == (data, len(data) + 2)


@given(st.text(max_size=40).filter(lambda text: "\0" not in text))
def test_any_text_without_nul_is_text(text: str) -> None:
    encoded = standard.text(text)
    assert wire.read_text(encoded, 0, len(encoded)) == (text.encode(), len(encoded))


@pytest.mark.parametrize(
    "raw",
    [b"a\0b", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\xaf", b"\xe2\x82", b"\xff", b"\xf4\x90\x80\x80"],
    ids=["U+0000", "high surrogate", "low surrogate", "overlong", "cut short", "no UTF-8 at all", "beyond Unicode"],
)
def test_what_is_no_text_is_malformed(raw: bytes) -> None:
    data = wire.binary(raw)
    with pytest.raises(ProtocolError) as caught:
        wire.read_text(data, 0, len(data))
    assert caught.value.code == 0x81
