"""MQTT over WebSocket (section 6 of the standard): binary messages, subprotocol `mqtt`, packets cut anywhere.

The WebSocket rules are the `websockets` library's sans-I/O server; this file carries bytes between it, the socket and
`ClientProtocol`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import cast

from websockets.exceptions import NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sterna.mqtt.reasons import Reason
from sterna.runtime.clients import ClientProtocol, Server

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


class WebSocketClientProtocol(ClientProtocol):
    __slots__ = ("_raw", "_websocket")

    def __init__(self, server: Server, *, anonymous: bool) -> None:
        super().__init__(server, anonymous=anonymous)
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
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            elif isinstance(event, Frame):
                self._frame(event)
        self._send()

    def _handshake(self, request: Request) -> None:
        response = self._websocket.accept(request)
        self._websocket.send_response(response)

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            super().data_received(bytes(frame.data))
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
