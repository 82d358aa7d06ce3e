"""Packets as an operator reads them: found in a stream of bytes, named, with their main fields.

It has a small parser of its own, which looks at the beginning of each packet only and never at a whole message.
Passwords and wills are never shown, payloads only if asked for, and long names are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5
from sterna.vocabulary.errors import ProtocolError

HEAD_BYTES = 1024
"""Of a packet, which is as much as is looked at."""
SHOWN_CHARACTERS = 200
FILTERS_SHOWN = 5
ALIASES_MAX = 65535

_NAMES = [
    "CONTROL", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
]  # fmt: skip
_CONNACK, _SUBACK, _UNSUBACK = 2, 9, 11
_ACKNOWLEDGEMENTS = (packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP)


class PacketSpeaker:
    """One client, as far as its packets tell."""

    __slots__ = ("client", "shows_payload", "version")

    def __init__(self, client: str | None = None, version: int = 0, *, shows_payload: bool = False) -> None:
        #: As its CONNECT says.
        self.client = client
        self.version = version
        self.shows_payload = shows_payload


class PacketDescriber:
    """One direction of a connection, from the beginning of a packet on."""

    def __init__(
        self, speaker: PacketSpeaker, tell: Callable[[dict[str, Any]], None], aliases: dict[int, bytes] | None = None
    ) -> None:
        self._speaker = speaker
        self._tell = tell
        self._aliases = aliases or {}
        self._begun = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._begun += data[skipped:]
        while self._take():
            pass

    def forget(self) -> None:
        """Drop the beginning of a packet."""
        self._begun.clear()

    def _take(self) -> bool:
        """One packet off what has come; False if its beginning is not all there."""
        begun = self._begun
        try:
            length, body = wire.remaining_length(bytes(begun[:5]), 1, min(len(begun), 5))
        except ProtocolError:
            begun.clear()  # no MQTT: the connection says so
            return False
        size = body + length
        if not body or len(begun) < min(size, HEAD_BYTES):
            return False
        head = bytes(begun[: min(size, HEAD_BYTES)])
        self._skip = max(0, size - len(begun))
        del begun[:size]
        fields: dict[str, Any] = {"packet": _NAMES[head[0] >> 4], "size": size}
        with suppress(ProtocolError, IndexError):  # it is cut off, or wrong: the connection reports that
            self._describe(fields, head, body)
        self._tell(fields)
        return True

    def _describe(self, fields: dict[str, Any], head: bytes, body: int) -> None:
        """Add what there is to say of a packet; it may break off anywhere."""
        kind, end, speaker = head[0] >> 4, len(head), self._speaker
        if kind == packets.PUBLISH:
            self._describe_publish(fields, head, body)
        elif kind == packets.CONNECT:
            _describe_connect(fields, head, body, speaker)
        elif kind in (packets.SUBSCRIBE, packets.UNSUBSCRIBE):
            _describe_request(fields, head, body, speaker)
        elif kind in (_SUBACK, _UNSUBACK):
            fields["packet_id"], place = wire.read_two(head, body, end)
            codes = head[_after_properties(head, place, speaker.version) :][: FILTERS_SHOWN + 1]
            fields["codes"] = ", ".join(f"0x{code:02x}" for code in codes[:FILTERS_SHOWN])
            fields["codes"] += ", ..." if len(codes) > FILTERS_SHOWN else ""
        elif kind in _ACKNOWLEDGEMENTS:
            fields["packet_id"], place = wire.read_two(head, body, end)
            fields["code"] = f"0x{head[place] if place < end else 0:02x}"
        elif kind == _CONNACK:
            fields |= {"code": f"0x{head[body + 1]:02x}", "session_present": bool(head[body] & 1)}
        elif end > body:
            fields["code"] = f"0x{head[body]:02x}"

    def _describe_publish(self, fields: dict[str, Any], head: bytes, body: int) -> None:
        qos = head[0] >> 1 & 3
        length, place = wire.read_two(head, body, len(head))
        topic = head[place : place + length]
        place += length
        fields |= {"topic": _cut(topic), "qos": qos, "retain": bool(head[0] & 1)}
        if qos:
            fields["dup"] = bool(head[0] & 8)
            fields["packet_id"], place = wire.read_two(head, place, len(head))
        if self._speaker.version == MQTT_5:
            start = place
            place = _after_properties(head, place, MQTT_5)
            alias = _alias_in(head, wire.remaining_length(head, start, len(head))[1], place)
            if alias is not None:
                if topic and len(self._aliases) < ALIASES_MAX:
                    self._aliases[alias] = topic
                fields["topic"] = _cut(self._aliases.get(alias, topic))
        if self._speaker.shows_payload:
            fields["payload"] = _cut(head[place:])


def _describe_connect(fields: dict[str, Any], head: bytes, body: int, speaker: PacketSpeaker) -> None:
    end = len(head)
    _, place = wire.read_binary(head, body, end)
    fields["version"] = speaker.version = head[place] & 0x7F
    fields["keep_alive"], place = wire.read_two(head, place + 2, end)
    length, place = wire.read_two(head, _after_properties(head, place, speaker.version), end)
    speaker.client = _cut(head[place : place + length])


def _describe_request(fields: dict[str, Any], head: bytes, body: int, speaker: PacketSpeaker) -> None:
    """SUBSCRIBE or UNSUBSCRIBE, with the first of their filters."""
    end = len(head)
    fields["packet_id"], place = wire.read_two(head, body, end)
    place = _after_properties(head, place, speaker.version)
    has_options = head[0] >> 4 == packets.SUBSCRIBE
    shown: list[str] = []
    while place < end and len(shown) < FILTERS_SHOWN:
        length, place = wire.read_two(head, place, end)
        shown.append(_cut(head[place : place + length]))
        place += length
        if has_options and place < end:
            shown[-1] += f" at QoS {head[place] & 3}"
            place += 1
        fields["filters"] = ", ".join(shown) + (", ..." if place < end else "")


def _alias_in(head: bytes, place: int, stop: int) -> int | None:
    """The topic alias among the properties of a PUBLISH."""
    while place < stop:
        identifier, place = wire.read_variable(head, place, stop)
        if identifier == prop.TOPIC_ALIAS:
            return wire.read_two(head, place, stop)[0]
        reader = prop.READERS.get(identifier)
        if reader is None:
            return None
        place = reader(head, place, stop)[1]
    return None


def _after_properties(head: bytes, place: int, version: int) -> int:
    if version != MQTT_5:
        return place
    length, place = wire.remaining_length(head, place, len(head))
    return place + length


def _cut(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}..."
