"""The sockets clients come in through: TCP, TLS, WebSocket over either, Unix.

A client that does not get through TLS never becomes a connection of the broker's: it is counted and logged here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from sterna.runtime.clients import ClientProtocol, Server, server_context
from sterna.runtime.settings import Bind, Listener
from sterna.runtime.websocket import WebSocketClientProtocol
from sterna.vocabulary.errors import ConfigurationError

BACKLOG = 4096
ACCEPT_AGAIN_S = 1.0
"""How long to wait when a connection cannot be accepted, most likely for want of file descriptors."""
FAILURES_LOGGED_MAX = 10
FAILURES_PERIOD_S = 60.0
"""So many failed handshakes are logged in such a time; all of them are counted."""

log = logging.getLogger(__name__)


class Listeners:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: list[asyncio.Server | SecureDoor] = []
        self._paths: list[str] = []
        self._failures = HandshakeFailures()

    async def open(self, listener: Listener) -> Bind:
        """Listen; the address, with the real port where 0 was asked for."""
        loop = asyncio.get_running_loop()
        factory = _factory(listener, self._server)
        context = _context(listener)
        bind = listener.bind
        try:
            if bind.path:
                _remove_stale_socket(bind.path)
            if context is not None:
                port = await self._open_secure(bind, factory, context)
            elif bind.path:
                self._open.append(await loop.create_unix_server(factory, bind.path, backlog=BACKLOG))
            else:
                server = await loop.create_server(factory, bind.host, bind.port, backlog=BACKLOG)
                self._open.append(server)
                port = server.sockets[0].getsockname()[1]
        except OSError as error:
            known = error.errno is not None and error.errno > 0  # a name that cannot be resolved has a number below 0
            reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
            raise ConfigurationError(f"cannot listen on {bind}: {reason}; set another [[listener]] bind") from error
        if bind.path:
            self._paths.append(bind.path)
            return bind
        return Bind(bind.host, port)

    async def _open_secure(self, bind: Bind, factory: Callable[[], ClientProtocol], context: ssl.SSLContext) -> int:
        sockets = [_unix_socket(bind.path)] if bind.path else await _sockets(bind.host, bind.port)
        self._open += [SecureDoor(opened, factory, context, self._server, self._failures) for opened in sockets]
        return 0 if bind.path else int(sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Take no new connections."""
        for server in self._open:
            server.close()
        for path in self._paths:
            with suppress(FileNotFoundError):
                os.unlink(path)


class SecureDoor:
    """A socket whose clients have to get through TLS first.

    Accepting them here, instead of leaving it to the loop's own server, is how we hear of handshakes that fail.
    """

    def __init__(
        self,
        opened: socket.socket,
        factory: Callable[[], ClientProtocol],
        context: ssl.SSLContext,
        server: Server,
        failures: HandshakeFailures,
    ) -> None:
        opened.setblocking(False)
        self._factory = factory
        self._context = context
        self._server = server
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept(opened))
        #: Referred to here, or the loop might lose them in mid-handshake.
        self._handshakes: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        self._accepting.cancel()

    async def _accept(self, opened: socket.socket) -> None:
        with opened:
            while True:
                try:
                    client, address = await self._loop.sock_accept(opened)
                except OSError as error:
                    log.warning("cannot accept a connection", extra={"reason": str(error)})
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                handshake = self._loop.create_task(self._let_in(client, address))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)

    async def _let_in(self, client: socket.socket, address: Any) -> None:
        # A client that never gets through TLS is no connection to the broker yet: its time is bounded here.
        broker = self._server.broker
        try:
            await self._loop.connect_accepted_socket(
                self._factory, client, ssl=self._context, ssl_handshake_timeout=broker.limits.connect_s
            )
        except OSError as error:
            broker.counters.refused("tls-handshake")
            self._failures.report(address, error, self._loop.time())


class HandshakeFailures:
    """Failed handshakes in the log: the first few of each minute, so that nobody can fill the disk with them."""

    def __init__(self) -> None:
        self._period_began = 0.0
        self._logged = 0
        self._left_out = 0

    def report(self, address: Any, error: OSError, now: float) -> None:
        if now - self._period_began >= FAILURES_PERIOD_S:
            self._period_began = now
            self._logged = 0
        if self._logged >= FAILURES_LOGGED_MAX:
            self._left_out += 1
            return
        self._logged += 1
        shown = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
        fields: dict[str, Any] = {"address": shown, "reason": _reason(error)}
        if self._left_out:
            fields["not_logged_before"] = self._left_out
            self._left_out = 0
        log.warning("TLS handshake failed", extra=fields)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error) or "the client closed the connection"


async def _sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, as the loop's own server has them."""
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind, flags=flags)
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            opened.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def _unix_socket(path: str) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(path)
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def _factory(listener: Listener, server: Server) -> Callable[[], ClientProtocol]:
    if listener.transport == "websocket":
        origins = listener.allowed_origins
        return partial(WebSocketClientProtocol, server, anonymous=listener.anonymous, allowed_origins=origins)
    return partial(ClientProtocol, server, anonymous=listener.anonymous)


def _context(listener: Listener) -> ssl.SSLContext | None:
    if listener.certificate is None:
        return None
    return server_context(
        str(listener.certificate),
        str(listener.key) if listener.key else None,
        str(listener.client_ca) if listener.client_ca else None,
        required=listener.require_certificate,
    )


def _remove_stale_socket(path: str) -> None:
    """A socket file that nobody answers was left by a node that was killed."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    finally:
        probe.close()
