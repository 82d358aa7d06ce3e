"""A log of clients' connections, packet by packet, for `log.level = "debug"`.

It stands between a transport and its connection and has a small parser of its own, so that it costs nothing where it is
off.  It keeps the beginning of each packet for a moment.  Payloads, passwords and wills are never shown, and long names
are cut.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Protocol

from sterna.broker.session.outbox import Transport
from sterna.mqtt import packets, wire
from sterna.mqtt.packets import MQTT_5
from sterna.vocabulary.errors import ProtocolError

HEAD_BYTES = 1024
"""Of a packet, which is as much as is looked at."""
SHOWN_CHARACTERS = 200
FILTERS_SHOWN = 5

_NAMES = [
    "CONTROL", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
]  # fmt: skip
_CONNACK, _SUBACK, _UNSUBACK = 2, 9, 11
_ACKNOWLEDGEMENTS = (packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP)

log = logging.getLogger("sterna.packets")


class ClientConnection(Protocol):
    """The server of one client."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...
    def fail(self, code: int, reason: str) -> None: ...
    def charge(self, elsewhere: int) -> None:
        """The transport holds so many bytes of it that are not whole yet; they count until the client is let in."""


def is_wanted() -> bool:
    return log.isEnabledFor(logging.DEBUG)


class PacketLog:
    """One connection's."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: As its CONNECT says.
        self.client: str | None = None
        self.version = 0
        self.received = _Stream(self, "packet received")
        self.sent = _Stream(self, "packet sent")


class _Stream:
    """One direction of it."""

    def __init__(self, owner: PacketLog, event: str) -> None:
        self._owner = owner
        self._event = event
        self._begun = bytearray()
        self._skip = 0
        #: Bytes that were not looked at may have ended anywhere: nobody can tell any more where a packet begins.
        self._is_lost = False

    def feed(self, data: bytes) -> None:
        if self._is_lost or not is_wanted():
            self._is_lost = True
            self._begun.clear()
            return
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._begun += data[skipped:]
        while self._take():
            pass

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
        self._say(head, body, size)
        return True

    def _say(self, head: bytes, body: int, size: int) -> None:
        owner = self._owner
        fields: dict[str, Any] = {"packet": _NAMES[head[0] >> 4], "size": size}
        with suppress(ProtocolError, IndexError):  # it is cut off, or wrong: the connection reports that
            _describe(fields, head, body, owner)
        log.debug(self._event, extra={**fields, "client": owner.client, "address": owner.address})


def _describe(fields: dict[str, Any], head: bytes, body: int, owner: PacketLog) -> None:
    """Add what there is to say of a packet; it may break off anywhere."""
    kind, end = head[0] >> 4, len(head)
    if kind == packets.PUBLISH:
        _describe_publish(fields, head, body)
    elif kind == packets.CONNECT:
        _describe_connect(fields, head, body, owner)
    elif kind in (packets.SUBSCRIBE, packets.UNSUBSCRIBE):
        _describe_request(fields, head, body, owner)
    elif kind in (_SUBACK, _UNSUBACK):
        fields["packet_id"], place = wire.read_two(head, body, end)
        codes = head[_after_properties(head, place, owner.version) :][: FILTERS_SHOWN + 1]
        fields["codes"] = ", ".join(f"0x{code:02x}" for code in codes[:FILTERS_SHOWN])
        fields["codes"] += ", ..." if len(codes) > FILTERS_SHOWN else ""
    elif kind in _ACKNOWLEDGEMENTS:
        fields["packet_id"], place = wire.read_two(head, body, end)
        fields["code"] = f"0x{head[place] if place < end else 0:02x}"
    elif kind == _CONNACK:
        fields |= {"code": f"0x{head[body + 1]:02x}", "session_present": bool(head[body] & 1)}
    elif end > body:
        fields["code"] = f"0x{head[body]:02x}"


def _describe_publish(fields: dict[str, Any], head: bytes, body: int) -> None:
    qos = head[0] >> 1 & 3
    length, place = wire.read_two(head, body, len(head))
    fields |= {"topic": _cut(head[place : place + length]), "qos": qos, "retain": bool(head[0] & 1)}
    if qos:
        fields["dup"] = bool(head[0] & 8)
        fields["packet_id"] = wire.read_two(head, place + length, len(head))[0]


def _describe_connect(fields: dict[str, Any], head: bytes, body: int, owner: PacketLog) -> None:
    end = len(head)
    _, place = wire.read_binary(head, body, end)
    fields["version"] = owner.version = head[place] & 0x7F
    fields["keep_alive"], place = wire.read_two(head, place + 2, end)
    length, place = wire.read_two(head, _after_properties(head, place, owner.version), end)
    owner.client = _cut(head[place : place + length])


def _describe_request(fields: dict[str, Any], head: bytes, body: int, owner: PacketLog) -> None:
    """SUBSCRIBE or UNSUBSCRIBE, with the first of their filters."""
    end = len(head)
    fields["packet_id"], place = wire.read_two(head, body, end)
    place = _after_properties(head, place, owner.version)
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


def _after_properties(head: bytes, place: int, version: int) -> int:
    if version != MQTT_5:
        return place
    length, place = wire.remaining_length(head, place, len(head))
    return place + length


def _cut(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}..."


class LoggedTransport:
    """A transport whose writes are logged; everything else is its own."""

    __slots__ = ("_sent", "_write", "abort", "close", "get_write_buffer_size", "pause_reading", "resume_reading")

    def __init__(self, transport: Transport, packet_log: PacketLog) -> None:
        self._sent = packet_log.sent
        self._write = transport.write
        self.close = transport.close
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        self._sent.feed(data)
        self._write(data)


class LoggedConnection:
    """A connection that is fed through a log; everything else is its own."""

    __slots__ = ("_feed", "_received", "charge", "congested", "fail", "lost", "writable")

    def __init__(self, connection: ClientConnection, packet_log: PacketLog) -> None:
        self._received = packet_log.received
        self._feed = connection.feed
        self.lost = connection.lost
        self.congested = connection.congested
        self.writable = connection.writable
        self.fail = connection.fail
        self.charge = connection.charge

    def feed(self, data: bytes) -> None:
        self._received.feed(data)
        self._feed(data)
