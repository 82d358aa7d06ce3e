"""MQTT over WebSocket (section 6 of the standard): binary messages, subprotocol `mqtt`, packets cut anywhere.

The WebSocket rules are the `websockets` library's sans-I/O server; this file carries bytes between it, the socket and
`ClientProtocol`.  A browser says which page it acts for (Origin, RFC 6454); pages of other hosts are refused unless
they are allowed, so that no page can use its reader's browser to reach a node the reader can reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from time import monotonic
from typing import cast
from urllib.parse import urlsplit

from websockets.exceptions import InvalidOrigin, NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sterna.broker.access.identity import Entrance
from sterna.mqtt.reasons import Reason
from sterna.runtime.listeners.client_protocol import AcceptedSocket, ClientProtocol, Server
from sterna.runtime.process_view import ListenerCounters

# The library's own account of each connection lacks the client's address; `_fail` gives ours.
_silent = logging.getLogger("sterna.websocket")
_silent.setLevel(logging.CRITICAL + 1)

#: Beyond the largest MQTT packet, what one WebSocket message may hold: clients may put several packets into one.
MESSAGE_MARGIN_BYTES = 1024 * 1024


def _select_mqtt(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    for name in offered:
        if name in ("mqtt", "mqttv3.1"):
            return name
    raise NegotiationError("the client does not offer the subprotocol mqtt")  # [MQTT-6.0.0-3]


def foreign_origin(request: Request, allowed: tuple[str, ...]) -> str | None:
    """The origin that may not connect; None if there is nothing against it.

    Without a list, a page of the host that is being connected to may, whatever its port: the node serves no pages, so
    the page comes from another server there.  No Origin at all: no browser.
    """
    origins = request.headers.get_all("Origin")
    if not origins or "*" in allowed:
        return None
    origin = origins[0].lower()
    if len(origins) == 1 and (origin in {one.lower() for one in allowed} if allowed else _is_of_host(origin, request)):
        return None
    return ", ".join(origins)


def _is_of_host(origin: str, request: Request) -> bool:
    try:
        page, node = urlsplit(origin).hostname, urlsplit(f"//{request.headers['Host']}").hostname
    except (KeyError, ValueError, LookupError):
        return False
    return page is not None and page == node


class _ForeignOrigin(InvalidOrigin):
    def __str__(self) -> str:
        return f"{super().__str__()}; if its pages may connect, add it to allowed_origins of this [[listener]]"


class WebSocketClientProtocol(ClientProtocol):
    __slots__ = ("_allowed_origins", "_raw", "_websocket")

    def __init__(
        self,
        server: Server,
        entrance: Entrance,
        counters: ListenerCounters,
        allowed_origins: tuple[str, ...] = (),
        accepted: AcceptedSocket | None = None,
    ) -> None:
        """`allowed_origins`: the pages that may connect; "*" is all of them, none those of the same host."""
        super().__init__(server, entrance, counters, accepted)
        self._allowed_origins = allowed_origins
        self._websocket = ServerProtocol(
            select_subprotocol=_select_mqtt,
            max_size=server.broker.limits.packet_bytes + MESSAGE_MARGIN_BYTES,
            logger=_silent,
        )
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        transport = cast(asyncio.Transport, transport)
        self._raw = transport
        self._accept(transport, _WebSocketTransport(self._websocket, transport))

    def data_received(self, data: bytes) -> None:
        websocket = self._websocket
        websocket.receive_data(data)
        parts: list[bytes] = []
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            elif isinstance(event, Frame):
                self._frame(event, parts)
        if parts:
            super().data_received(b"".join(parts))  # in one piece: it is one turn's work
        if self._connection is not None:
            self._connection.charge(len(websocket.reader.buffer))
        self._send()

    def _handshake(self, request: Request) -> None:
        websocket = self._websocket
        foreign = foreign_origin(request, self._allowed_origins)
        if foreign is None:
            websocket.send_response(websocket.accept(request))
            return
        websocket.handshake_exc = _ForeignOrigin(foreign)
        websocket.send_response(websocket.reject(HTTPStatus.FORBIDDEN, "this origin may not connect here\n"))

    def _frame(self, frame: Frame, parts: list[bytes]) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            parts.append(bytes(frame.data))
        elif frame.opcode == Opcode.TEXT:
            self._websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")  # [MQTT-6.0.0-1]
            self._fail("a text frame")

    def _send(self) -> None:
        assert self._raw is not None
        for data in self._websocket.data_to_send():
            if data:
                self._raw.write(data)
        if self._raw.get_write_buffer_size() > 2 * self._server.broker.limits.output_bytes:
            self._raw.abort()  # it asks, by pings for one, and does not read the answers
            return
        error = self._websocket.handshake_exc or self._websocket.parser_exc
        if error is not None:
            self._fail(str(error))
        if error is not None or self._websocket.close_expected():
            self._raw.close()

    def _fail(self, reason: str) -> None:
        if self._connection is not None:
            self._server.broker.at(monotonic())
            self._connection.fail(Reason.PROTOCOL_ERROR, f"WebSocket: {reason}")
            self._server.after_work()

    def connection_lost(self, error: Exception | None) -> None:
        # The broker refers to the transport for a while yet; what was never whole need not wait with it.
        self._websocket.reader.buffer.clear()
        super().connection_lost(error)

    def eof_received(self) -> None:
        self._websocket.receive_eof()


class _WebSocketTransport:
    """A `Transport` that wraps what it is given into binary messages."""

    __slots__ = ("_raw", "_websocket")

    def __init__(self, websocket: ServerProtocol, raw: asyncio.Transport) -> None:
        self._websocket = websocket
        self._raw = raw

    def write(self, data: bytes) -> None:
        if self._websocket.state is OPEN:
            self._websocket.send_binary(data)
            self._send()

    def close(self) -> None:
        if self._websocket.state is OPEN:
            self._websocket.send_close(CloseCode.NORMAL_CLOSURE)
        self._send()  # this, or the close frame of a WebSocket that failed
        self._raw.close()

    def _send(self) -> None:
        for data in self._websocket.data_to_send():
            if data:
                self._raw.write(data)

    def abort(self) -> None:
        self._raw.abort()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()
