"""The admin port: HTTP/1.1 for the pages of an `AdminSite`.

A connection carries one request.  The request must be small and in time, or it is refused: a client costs one bounded
buffer for at most `DEADLINE_S`.  A page that is sent events keeps its connection; at most `STREAMS_MAX` do, and one
that does not read misses events instead of filling memory.  Before each event the port looks whether the client may
still read; after a logout, or a reload with other secrets, it may not.

It is built on h11, for reasons and figures that docs/dashboard.md gives.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, cast

import h11

from sterna.runtime.admin.pages import NODE
from sterna.runtime.admin.site import AdminSite, Answer, EventSource, Guard, Request, may_read
from sterna.runtime.config.schema import Bind
from sterna.vocabulary.errors import ConfigurationError

DEADLINE_S = 10.0
"""From accepting a connection to its end, answer included."""
REQUEST_BYTES_MAX = 8 * 1024
"""Request line and headers together."""
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 64
STREAMS_MAX = 32
"""Connections that are sent events, besides."""
STREAM_BYTES_MAX = 512 * 1024
"""Bytes that may wait for a page; while more do, it misses events."""

_ALWAYS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Connection", "close"),
)

log = logging.getLogger(__name__)


class AdminPort:
    """The listening socket and its connections."""

    def __init__(
        self,
        observed: Any,
        guard: Guard | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        site: AdminSite[Any] = NODE,
    ) -> None:
        """`observed` is what `pages` ask: for those of a node, an `Observed`."""
        self.observed = observed
        self.site = site
        self.guard = guard or Guard()
        self.deadline_s = deadline_s
        #: In order of coming.
        self.connections: dict[_Connection, None] = {}
        #: Those of `connections` that are sent events no longer stand there, but here.
        self.streams: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, bind: Bind) -> Bind:
        """Listen; return the address, with the real port if 0 was asked for."""
        loop = asyncio.get_running_loop()
        try:
            if bind.path:
                self._server = await loop.create_unix_server(lambda: _Connection(self), bind.path)
                return bind
            self._server = await loop.create_server(lambda: _Connection(self), bind.host, bind.port)
        except OSError as error:
            raise ConfigurationError(
                f"the admin port cannot listen on {bind}: {os.strerror(error.errno or 0)}; "
                'set another [admin] bind, or "" to switch it off'
            ) from error
        return Bind(bind.host, self._server.sockets[0].getsockname()[1])

    def came(self, connection: _Connection) -> None:
        """Past `CONNECTIONS_MAX` the oldest goes: who asks and reads is done long before, and connections that do
        neither cannot keep others out."""
        self.connections[connection] = None
        if len(self.connections) > CONNECTIONS_MAX:
            oldest = next(iter(self.connections))
            del self.connections[oldest]
            oldest.abort()

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        for connection in (*self.connections, *self.streams):
            connection.abort()
        if self._server:
            await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._request: h11.Request | None = None
        self._asked: Request | None = None
        self._body = b""
        self._has_begun = False
        self._is_answered = False
        #: Referred to here, or the loop might lose it.
        self._answering: asyncio.Task[None] | None = None
        self._events: EventSource | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry
        self._deadline = asyncio.get_running_loop().call_later(self._port.deadline_s, self._too_late)
        self._port.came(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._port.connections.pop(self, None)
        self._port.streams.discard(self)
        if self._events is not None:
            self._events.leave(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._answering is not None:
            return  # Read and forget, so that closing does not reset the connection under the answer.
        self._has_begun = True
        self._http.receive_data(data)
        try:
            self._advance()
        except h11.RemoteProtocolError as error:
            self._reply(Answer(error.error_status_hint, f"{error}\n".encode()))

    def _advance(self) -> None:
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Request):
                self._request = event
                if _size(event) > REQUEST_BYTES_MAX:  # the library bounds only what has not come in whole
                    self._reply(Answer(431, f"at most {REQUEST_BYTES_MAX} bytes of headers\n".encode()))
                    return
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES_MAX:
                    self._reply(Answer(413, f"at most {BODY_BYTES_MAX} bytes\n".encode()))
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request:
                self._answer(self._request)
                return

    def _answer(self, request: h11.Request) -> None:
        target = request.target.decode("latin-1")
        asked = Request(request.method.decode(), target, dict(request.headers), self._body, self._address())
        self._asked = asked
        try:
            said = self._port.site.answer(asked, self._port.observed, self._port.guard)
        except Exception:
            self._reply(_failed(asked))
            return
        if isinstance(said, Answer):
            self._reply(said)
        else:
            self._answering = asyncio.get_running_loop().create_task(self._answer_later(asked, said))

    async def _answer_later(self, asked: Request, coming: Awaitable[Answer]) -> None:
        try:
            said = await coming
        except Exception:
            said = _failed(asked)
        if not self._is_answered and not self._transport.is_closing():
            self._reply(said)

    def _too_late(self) -> None:
        if self._is_answered or not self._has_begun:
            self.abort()
            return
        self._reply(Answer(408, b"the request took too long\n"))
        self._transport.close()

    def _stream(self, said: Answer, source: EventSource) -> None:
        """Send events from now on."""
        if len(self._port.streams) >= STREAMS_MAX:
            self._reply(Answer(503, f"{STREAMS_MAX} pages are open already; close one\n".encode()))
            return
        self._is_answered = True
        self._deadline.cancel()
        self._port.connections.pop(self, None)
        self._port.streams.add(self)
        headers = [("Content-Type", said.content_type), *_ALWAYS, *said.headers]
        self._transport.write(self._http.send(h11.Response(status_code=200, headers=headers)) or b"")
        self.send(said.body)
        self._events = source
        source.join(self)

    def send(self, event: bytes) -> None:
        """One event to a page; none if it has not read those before.  The stream ends if it may read no longer."""
        if self._transport.is_closing():
            return
        if self._asked is not None and not may_read(self._asked, self._port.guard):
            self._end_stream()
        elif self._transport.get_write_buffer_size() < STREAM_BYTES_MAX:
            self._transport.write(self._http.send(h11.Data(data=event)) or b"")

    def _end_stream(self) -> None:
        """A page that has not read what it was sent gets no more of it."""
        if self._transport.get_write_buffer_size():
            self.abort()
            return
        self._transport.write(self._http.send(h11.EndOfMessage()) or b"")
        self._transport.close()

    def _address(self) -> str:
        """Empty on a Unix socket."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def _reply(self, said: Answer) -> None:
        if said.events is not None:
            self._stream(said, said.events)
            return
        self._is_answered = True
        headers = [
            ("Content-Type", said.content_type),
            ("Content-Length", str(len(said.body))),
            *_ALWAYS,
            *said.headers,
        ]
        is_head = self._request is not None and self._request.method == b"HEAD"
        response = h11.Response(status_code=said.status, headers=headers, reason=HTTPStatus(said.status).phrase)
        self._transport.write(self._http.send(response) or b"")
        self._transport.write(self._http.send(h11.Data(data=b"" if is_head else said.body)) or b"")
        if self._transport.can_write_eof():
            self._transport.write_eof()


def _size(request: h11.Request) -> int:
    """Bytes of the request line and the headers."""
    line = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(b": \r\n") for name, value in request.headers)


def _failed(asked: Request) -> Answer:
    """A fault in a statistic must not take the loop down with it."""
    log.exception("admin request failed", extra={"target": asked.target})
    return Answer(500, b"no answer to that; see the log\n")
