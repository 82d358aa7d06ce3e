"""The sockets clients come in through: TCP, TLS, WebSocket over either, Unix."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from contextlib import suppress
from functools import partial

from sterna.runtime.clients import ClientProtocol, Server, server_context
from sterna.runtime.settings import Bind, Listener
from sterna.runtime.websocket import WebSocketClientProtocol
from sterna.vocabulary.errors import ConfigurationError

BACKLOG = 4096


class Listeners:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: list[asyncio.Server] = []
        self._paths: list[str] = []

    async def open(self, listener: Listener) -> Bind:
        """Listen; the address, with the real port where 0 was asked for."""
        loop = asyncio.get_running_loop()
        kind = WebSocketClientProtocol if listener.transport == "websocket" else ClientProtocol
        factory = partial(kind, self._server, anonymous=listener.anonymous)
        context = _context(listener)
        # A client that never gets through TLS is no connection to the broker yet: its time is bounded here.
        handshake_s = self._server.broker.limits.connect_s if context else None
        bind = listener.bind
        try:
            if bind.path:
                _remove_stale_socket(bind.path)
                unix = await loop.create_unix_server(
                    factory, bind.path, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
                )
                self._open.append(unix)
                self._paths.append(bind.path)
                return bind
            server = await loop.create_server(
                factory, bind.host, bind.port, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigurationError(f"cannot listen on {bind}: {reason}; set another [[listener]] bind") from error
        self._open.append(server)
        return Bind(bind.host, server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Take no new connections."""
        for server in self._open:
            server.close()
        for path in self._paths:
            with suppress(FileNotFoundError):
                os.unlink(path)


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
