"""Reading and writing the primitive types of MQTT (section 1.5 of the standard).

Readers take `(data, position, end)` and return `(value, next position)`; they never read past `end`, and anything
that does not fit is a `ProtocolError` with the reason code the peer must be told.
"""

from __future__ import annotations

from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

VARIABLE_INTEGER_MAX = 268_435_455


def malformed(what: str) -> ProtocolError:
    return ProtocolError(Reason.MALFORMED_PACKET, what)


def read_byte(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position >= end:
        raise malformed("packet ends inside a byte field")
    return data[position], position + 1


def read_two(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position + 2 > end:
        raise malformed("packet ends inside a two-byte integer")
    return data[position] << 8 | data[position + 1], position + 2


def read_four(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position + 4 > end:
        raise malformed("packet ends inside a four-byte integer")
    return int.from_bytes(data[position : position + 4], "big"), position + 4


def read_variable(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A variable byte integer inside a packet: one to four bytes, in its shortest form [MQTT-1.5.5-1]."""
    value = shift = 0
    while True:
        if position >= end:
            raise malformed("packet ends inside a variable byte integer")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise malformed("variable byte integer is longer than needed")
            return value, position
        shift += 7
        if shift > 21:
            raise malformed("variable byte integer of five bytes")


def remaining_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The length of a packet and where its body starts; (0, 0) if more bytes are needed to tell [MQTT-1.5.5]."""
    value = shift = 0
    for place in range(position, min(position + 4, end)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    if end - position >= 4:
        raise malformed("remaining length of five bytes")
    return 0, 0


def read_binary(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    length, position = read_two(data, position, end)
    if position + length > end:
        raise malformed("packet ends inside binary data")
    return data[position : position + length], position + length


def read_text(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    """A UTF-8 string, left encoded but known to be valid: no surrogates, no U+0000 [MQTT-1.5.4-1, -2]."""
    raw, position = read_binary(data, position, end)
    check_text(raw)
    return raw, position


def check_text(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise malformed("text is not valid UTF-8") from None
    if b"\0" in raw:
        raise malformed("text contains U+0000")


def variable(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    assert value <= VARIABLE_INTEGER_MAX, "larger than MQTT can say"
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def two(value: int) -> bytes:
    return value.to_bytes(2, "big")


def binary(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value
