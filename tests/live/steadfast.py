"""An MQTT client that keeps its side of every promise across connections, however they end.

What it sent and was not told the end of it sends again, in order; what it has taken at QoS 2 and was not told to
release it recognises.  It never blocks: `pump` moves whatever can be moved now.  It also keeps the books: what was
acknowledged to it, and what it was given.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from struct import pack
from typing import NamedTuple

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 9, 11, 13, 14
_DUP = 0x08
_NOT_FOUND = 0x92
"""The other side has finished with this packet identifier: what an answer to a repetition may say."""


class Sent(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


class Given(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass
class Outgoing:
    message: Sent
    was_sent: bool = False
    is_received: bool = False
    """PUBREC came: from here on it is PUBREL that is repeated."""


@dataclass
class Steadfast:
    client_id: str
    version: int = 4
    window: int = 20
    receive_maximum: int = 65535
    """How many unacknowledged messages it takes; told to the node in MQTT 5 only."""
    may_be_forgotten: bool = False
    """Its session may be lost on the other side; it then goes on as if it had found it."""

    given: list[Given] = field(default_factory=list)
    acknowledged: int = 0
    """Publications the node has taken responsibility for."""
    subscriptions: dict[str, int] = field(default_factory=dict)
    """As confirmed by the node."""
    connections: int = 0

    def __post_init__(self) -> None:
        self._socket: socket.socket | None = None
        self._welcome = False
        self._has_session = False
        self._in = b""
        self._out = b""
        self._waiting: deque[Sent] = deque()
        self._outgoing: dict[int, Outgoing] = {}
        self._unreleased: set[int] = set()
        self._next_packet_id = 1
        self._request: tuple[int, str, int | None] | None = None
        self._pings = 0

    # -- what the test asks of it --

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self._waiting.append(Sent(topic, payload, qos, retain))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._ask(topic_filter, qos)

    def unsubscribe(self, topic_filter: str) -> None:
        self._ask(topic_filter, None)

    def _ask(self, topic_filter: str, qos: int | None) -> None:
        assert self._request is None, "one request at a time"
        self._request = (self._take_packet_id(), topic_filter, qos)
        if self._welcome:
            self._send_request()

    def ping(self) -> None:
        """Afterwards `is_idle` says, among the rest, that everything the node had to say before was heard."""
        if self._welcome:
            self._pings += 1
            self._out += b"\xc0\x00"

    @property
    def is_connected(self) -> bool:
        return self._welcome

    @property
    def is_asking(self) -> bool:
        return self._request is not None

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Nothing it began is unfinished."""
        return not (self._waiting or self._outgoing or self._request or self._pings or self._unreleased)

    def connect(self, address: tuple[str, int] | str) -> None:
        """To a host and port, or to the path of a Unix socket."""
        self.vanish()
        try:
            self._socket = _connected(address)
        except OSError:
            return
        self._socket.setblocking(False)
        expiry = b"\x11\xff\xff\xff\xff\x21" + pack(">H", self.receive_maximum)
        properties = bytes((len(expiry),)) + expiry if self.version == 5 else b""
        self._out = _packet(0x10, _text("MQTT") + bytes((self.version, 0, 0, 0)) + properties + _text(self.client_id))

    def leave(self) -> None:
        """Say goodbye; the session stays."""
        if self._welcome:
            self._out += b"\xe0\x00"
            self.pump()
        self.vanish()

    def vanish(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._welcome = False
        self._in = self._out = b""
        self._pings = 0

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    # -- bytes --

    def pump(self) -> None:
        """Read what is there, answer it, and write as much as the socket takes."""
        if self._socket is None:
            return
        try:
            with suppress(BlockingIOError):
                while data := self._socket.recv(1 << 16):
                    self._in += data
                self._take()
                self.vanish()  # the node closed the connection
                return
            self._take()
            if self._welcome:
                self._begin_more()
            if self._out and self._socket is not None:
                with suppress(BlockingIOError):
                    self._out = self._out[self._socket.send(self._out) :]
        except OSError:
            self.vanish()

    def _take(self) -> None:
        """Deal with all whole packets that have come."""
        position = 0
        data = self._in
        while len(data) - position >= 2:
            length, shift, body = 0, 0, position + 1
            while body < len(data) and body < position + 5:
                length |= (data[body] & 0x7F) << shift
                shift += 7
                body += 1
                if data[body - 1] < 0x80:
                    break
            else:
                break
            if body + length > len(data):
                break
            self._packet(data[position], data[body : body + length])
            position = body + length
        self._in = data[position:]

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == CONNACK:
            self._on_connack(body)
        elif kind == PUBLISH:
            self._on_publish(first, body)
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            packet_id, code = int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0
            assert code < 0x80 or code == _NOT_FOUND, f"{self.client_id}: packet type {kind} with code 0x{code:02x}"
            self._on_acknowledgement(kind, packet_id)
        elif kind in (SUBACK, UNSUBACK):
            self._on_confirmation(kind, body)
        elif kind == PINGRESP:
            self._pings -= 1
        else:
            assert kind == DISCONNECT, f"{self.client_id}: packet type {kind}"

    # -- a new connection --

    def _on_connack(self, body: bytes) -> None:
        assert body[1] == 0, f"{self.client_id}: refused with 0x{body[1]:02x}"
        present = bool(body[0] & 1)
        assert present or not self._has_session or self.may_be_forgotten, f"{self.client_id}: its session is gone"
        self._has_session = True
        self._welcome = True
        self.connections += 1
        for packet_id, outgoing in self._outgoing.items():
            if outgoing.is_received:
                self._out += _acknowledgement(PUBREL, packet_id)
            elif outgoing.was_sent:
                self._send(packet_id, outgoing)
        if self._request is not None:
            self._send_request()

    # -- publishing --

    def _begin_more(self) -> None:
        while self._waiting and len(self._outgoing) < self.window:
            packet_id = self._take_packet_id()
            outgoing = self._outgoing[packet_id] = Outgoing(self._waiting.popleft())
            self._send(packet_id, outgoing)

    def _send(self, packet_id: int, outgoing: Outgoing) -> None:
        message = outgoing.message
        first = 0x30 | message.qos << 1 | message.retain | (_DUP if outgoing.was_sent else 0)
        properties = b"\0" if self.version == 5 else b""
        self._out += _packet(first, _text(message.topic) + pack(">H", packet_id) + properties + message.payload)
        outgoing.was_sent = True

    def _take_packet_id(self) -> int:
        packet_id = self._next_packet_id
        while packet_id in self._outgoing or (self._request and self._request[0] == packet_id):
            packet_id = packet_id % 65535 + 1
        self._next_packet_id = packet_id % 65535 + 1
        return packet_id

    def _on_acknowledgement(self, kind: int, packet_id: int) -> None:
        outgoing = self._outgoing.get(packet_id)
        if kind == PUBREL:
            self._unreleased.discard(packet_id)
            self._out += _acknowledgement(PUBCOMP, packet_id)
        elif outgoing is None:
            assert kind != PUBACK, f"{self.client_id}: PUBACK for a message that was acknowledged before"
        elif kind == PUBACK:
            assert outgoing.message.qos == 1
            self.acknowledged += 1
            del self._outgoing[packet_id]
        elif kind == PUBREC:
            assert outgoing.message.qos == 2
            self.acknowledged += not outgoing.is_received
            outgoing.is_received = True
            self._out += _acknowledgement(PUBREL, packet_id)
        else:
            assert outgoing.is_received, f"{self.client_id}: PUBCOMP before PUBREC"
            del self._outgoing[packet_id]

    # -- receiving --

    def _on_publish(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        end = 2 + int.from_bytes(body[:2], "big")
        packet_id = int.from_bytes(body[end : end + 2], "big") if qos else 0
        start = end + (2 if qos else 0)
        if self.version == 5:
            assert body[start] < 0x80
            start += 1 + body[start]
        given = Given(body[2:end].decode(), body[start:], qos, bool(first & 1))
        if qos == 1:
            self._out += _acknowledgement(PUBACK, packet_id)
        elif qos == 2:
            self._out += _acknowledgement(PUBREC, packet_id)
            if packet_id in self._unreleased:
                assert first & _DUP, f"{self.client_id}: packet identifier {packet_id} used again before its release"
                return
            self._unreleased.add(packet_id)
            assert len(self._unreleased) <= self.receive_maximum or self.version == 4
        self.given.append(given)

    # -- subscribing --

    def _send_request(self) -> None:
        assert self._request is not None
        packet_id, topic_filter, qos = self._request
        properties = b"\0" if self.version == 5 else b""
        options = b"" if qos is None else bytes((qos,))
        first = 0xA2 if qos is None else 0x82
        self._out += _packet(first, pack(">H", packet_id) + properties + _text(topic_filter) + options)

    def _on_confirmation(self, kind: int, body: bytes) -> None:
        assert self._request is not None
        packet_id, topic_filter, qos = self._request
        assert (packet_id, kind) == (int.from_bytes(body[:2], "big"), UNSUBACK if qos is None else SUBACK)
        self._request = None
        if qos is None:
            self.subscriptions.pop(topic_filter, None)
        else:
            assert body[-1] == qos, f"{self.client_id}: granted 0x{body[-1]:02x}"
            self.subscriptions[topic_filter] = qos


def _connected(address: tuple[str, int] | str) -> socket.socket:
    if isinstance(address, tuple):
        found = socket.create_connection(address, 60)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(address)
    except OSError:
        found.close()
        raise
    return found


def _acknowledgement(kind: int, packet_id: int) -> bytes:
    return pack(">BBH", kind << 4 | (2 if kind == PUBREL else 0), 2, packet_id)


def _text(text: str) -> bytes:
    return pack(">H", len(text)) + text.encode()


def _packet(first: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    return bytes((first, *encoded, length)) + body
