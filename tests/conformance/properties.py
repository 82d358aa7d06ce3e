"""MQTT 5 properties as typed dictionaries, and the primitive data types of section 1.5.

Written from the standard alone: nothing here comes from `sterna.mqtt`, so that the two cannot share a mistake.
"""

from __future__ import annotations

from typing import Any, TypedDict, cast


class Properties(TypedDict, total=False):
    """Section 2.2.2.2, every property by its name; the two that may repeat are lists."""

    payload_format: int
    message_expiry: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_id: list[int]
    session_expiry: int
    assigned_client_id: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_property: list[tuple[str, str]]
    maximum_packet_size: int
    wildcard_available: int
    subscription_id_available: int
    shared_available: int


# name -> identifier, type of the value (an int is the width of an unsigned integer in bytes)
_TABLE: dict[str, tuple[int, int | str]] = {
    "payload_format": (0x01, 1),
    "message_expiry": (0x02, 4),
    "content_type": (0x03, "text"),
    "response_topic": (0x08, "text"),
    "correlation_data": (0x09, "data"),
    "subscription_id": (0x0B, "varint"),
    "session_expiry": (0x11, 4),
    "assigned_client_id": (0x12, "text"),
    "server_keep_alive": (0x13, 2),
    "authentication_method": (0x15, "text"),
    "authentication_data": (0x16, "data"),
    "request_problem_information": (0x17, 1),
    "will_delay": (0x18, 4),
    "request_response_information": (0x19, 1),
    "response_information": (0x1A, "text"),
    "server_reference": (0x1C, "text"),
    "reason_string": (0x1F, "text"),
    "receive_maximum": (0x21, 2),
    "topic_alias_maximum": (0x22, 2),
    "topic_alias": (0x23, 2),
    "maximum_qos": (0x24, 1),
    "retain_available": (0x25, 1),
    "user_property": (0x26, "pair"),
    "maximum_packet_size": (0x27, 4),
    "wildcard_available": (0x28, 1),
    "subscription_id_available": (0x29, 1),
    "shared_available": (0x2A, 1),
}
_BY_IDENTIFIER = {identifier: (name, kind) for name, (identifier, kind) in _TABLE.items()}
_REPEATABLE = {"subscription_id", "user_property"}


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def data(value: bytes) -> bytes:
    return u16(len(value)) + value


def text(value: str) -> bytes:
    return data(value.encode())


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Reader:
    """Takes primitive values off the front of a packet's body; running short is an assertion failure."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    @property
    def empty(self) -> bool:
        return not self._rest

    def take(self, count: int) -> bytes:
        assert len(self._rest) >= count, f"wanted {count} more bytes, found {self._rest!r}"
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._rest))

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def data(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        return self.data().decode()

    def varint(self) -> int:
        value = 0
        for position in range(4):
            byte = self.number(1)
            value |= (byte & 127) << 7 * position
            if byte < 128:
                return value
        raise AssertionError("a variable byte integer of more than four bytes")

    def properties(self) -> Properties:
        block = Reader(self.take(self.varint()))
        found: dict[str, Any] = {}
        while not block.empty:
            name, kind = _BY_IDENTIFIER[block.varint()]
            value = block.value(kind)
            if name in _REPEATABLE:
                found.setdefault(name, []).append(value)
            else:
                assert name not in found, f"the broker repeats {name}"
                found[name] = value
        return cast(Properties, found)

    def value(self, kind: int | str) -> Any:
        if isinstance(kind, int):
            return self.number(kind)
        if kind == "pair":
            return (self.text(), self.text())
        return {"text": self.text, "data": self.data, "varint": self.varint}[kind]()


def encode_properties(properties: Properties) -> bytes:
    """The property length and the properties, in the order they are given."""
    block = b"".join(
        varint(_TABLE[name][0]) + _encode_value(_TABLE[name][1], each)
        for name, value in properties.items()
        for each in (cast(list[Any], value) if name in _REPEATABLE else [value])
    )
    return varint(len(block)) + block


def _encode_value(kind: int | str, value: Any) -> bytes:
    if isinstance(kind, int):
        return int(value).to_bytes(kind, "big")
    if kind == "pair":
        return text(value[0]) + text(value[1])
    if kind == "varint":
        return varint(value)
    return text(value) if kind == "text" else data(value)
