"""The listening sockets for clients: TCP, TLS, WebSocket over either, Unix.

A client that fails the TLS handshake never reaches the broker: it is counted and logged here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from sterna.broker.access.identity import Entrance
from sterna.runtime.config.networks import Networks, is_among, networks
from sterna.runtime.config.process_tables import ListenerTable
from sterna.runtime.config.schema import Bind
from sterna.runtime.listeners.client_protocol import AcceptedSocket, ClientProtocol, Server
from sterna.runtime.listeners.proxy_header import BadProxyHeader, read_header
from sterna.runtime.listeners.socket_quota import host_of
from sterna.runtime.listeners.websocket import WebSocketClientProtocol
from sterna.runtime.process_view import ListenerCounters
from sterna.runtime.tls import digest_of, expires_at, server_context
from sterna.vocabulary.errors import ConfigurationError

ACCEPT_AGAIN_S = 1.0
"""How long to wait when a connection cannot be accepted, most likely for want of file descriptors."""
PORTS_OF_ANYBODY = 1024
"""From here on no privilege is needed to listen, unless the system is told otherwise."""
FAILURES_LOGGED_MAX = 10
FAILURES_PERIOD_S = 60.0
"""So many failed handshakes are logged in such a time; all of them are counted."""
_PLAIN, _DISTRUSTED = "the client does not speak TLS", "the client does not accept the certificate of this listener"
_MEANINGS = {
    "HTTP_REQUEST": _PLAIN,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "SSLV3_ALERT_BAD_CERTIFICATE": _DISTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _DISTRUSTED,
    "TLSV1_ALERT_UNKNOWN_CA": _DISTRUSTED,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows none, and the listener has require_certificate",
    "CERTIFICATE_VERIFY_FAILED": "no authority in client_ca has issued the client's certificate, or it has expired",
    "UNSUPPORTED_PROTOCOL": "the client's TLS is too old",
}
"""OpenSSL's reasons that say little to those who read the log."""

log = logging.getLogger(__name__)

#: The client whose handshake is under way, for what runs on behalf of its task.
_in_handshake: ContextVar[socket.socket | None] = ContextVar("_in_handshake", default=None)


class ListenerState(NamedTuple):
    """Settings of a listener that may be changed while it is open."""

    listener: ListenerTable
    context: ssl.SSLContext | None
    authority: str
    """Digest of `client_ca`."""
    certificate: str
    """Digest of certificate and key."""
    expires_at: float | None = None
    """Second of the wall clock at which the certificate expires."""
    proxies: Networks = ()


def prepared(listener: ListenerTable) -> ListenerState:
    """Files read and checked.  May raise OSError, of which ssl.SSLError is one."""
    proxies = networks(listener.proxies)
    if listener.certificate is None:
        return ListenerState(listener, None, "", "", None, proxies)
    ca = listener.client_ca
    context = server_context(
        str(listener.certificate),
        str(listener.key) if listener.key else None,
        str(ca) if ca else None,
        required=listener.require_certificate,
    )
    context.sslobject_class = _Telling
    certificate = digest_of(listener.certificate, listener.key)
    return ListenerState(listener, context, digest_of(ca), certificate, expires_at(listener.certificate), proxies)


class Threshold:
    """One listener: what newcomers meet, as it is set now."""

    def __init__(self, settings: ListenerState, server: Server) -> None:
        self._server = server
        self.entrance = Entrance()
        self.counters = ListenerCounters()
        #: Where it listens; with the real port where 0 was asked for.
        self.address = settings.listener.bind
        self.apply(settings)

    def apply(self, settings: ListenerState) -> None:
        self.settings = settings
        self.entrance.anonymous = settings.listener.anonymous
        self.entrance.authority = settings.authority

    def protocol(self, accepted: AcceptedSocket | None = None) -> ClientProtocol:
        """A protocol that serves a socket."""
        listener = self.settings.listener
        if listener.transport == "websocket":
            origins = listener.allowed_origins
            return WebSocketClientProtocol(self._server, self.entrance, self.counters, origins, accepted)
        return ClientProtocol(self._server, self.entrance, self.counters, accepted)

    def may_become(self, listener: ListenerTable) -> bool:
        """Without opening another socket."""
        mine = self.settings.listener
        return _kind(mine) == _kind(listener)


def _kind(listener: ListenerTable) -> tuple[object, ...]:
    """Of its socket, which stays as it is while it is open."""
    return listener.bind, listener.transport, listener.is_secure, bool(listener.proxies)


class Listeners:
    def __init__(self, server: Server, backlog: int, *, shared: bool = False) -> None:
        """`shared`: other processes of this user listen on the same ports."""
        self._server = server
        self._backlog = backlog
        self._shared = shared
        self._thresholds: list[Threshold] = []
        self._open: list[asyncio.Server | ListeningDoor] = []
        self._paths: list[str] = []
        self._failures = HandshakeFailures()

    async def open(self, listener: ListenerTable) -> Bind:
        """Listen; the address, with the real port where 0 was asked for."""
        loop = asyncio.get_running_loop()
        threshold = Threshold(prepared(listener), self._server)
        factory = threshold.protocol
        bind = listener.bind
        try:
            if bind.path:
                _remove_stale_socket(bind.path)
            if listener.is_secure or listener.proxies:
                port = await self._open_door(bind, threshold)
            elif bind.path:
                self._open.append(await loop.create_unix_server(factory, bind.path, backlog=self._backlog))
            else:
                server = await loop.create_server(
                    factory, bind.host, bind.port, backlog=self._backlog, reuse_port=self._shared
                )
                self._open.append(server)
                port = server.sockets[0].getsockname()[1]
        except OSError as error:
            known = error.errno is not None and error.errno > 0  # a name that cannot be resolved has a number below 0
            reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
            fix = "set another [[listener]] bind"
            if error.errno == errno.EACCES and 0 < bind.port < PORTS_OF_ANYBODY:
                fix += f", or give the node CAP_NET_BIND_SERVICE, which ports below {PORTS_OF_ANYBODY} need"
            raise ConfigurationError(f"cannot listen on {bind}: {reason}; {fix}") from error
        self._thresholds.append(threshold)
        if bind.path:
            self._paths.append(bind.path)
        else:
            threshold.address = Bind(bind.host, port)
        return threshold.address

    def certificates(self) -> dict[str, float]:
        """Address -> when its certificate expires."""
        every = ((threshold.address, threshold.settings.expires_at) for threshold in self._thresholds)
        return {str(address): expires for address, expires in every if expires is not None}

    def counters(self) -> dict[str, ListenerCounters]:
        """Address -> connections."""
        return {str(threshold.address): threshold.counters for threshold in self._thresholds}

    async def _open_door(self, bind: Bind, threshold: Threshold) -> int:
        backlog = self._backlog
        if bind.path:
            sockets = [_unix_socket(bind.path, backlog)]
        else:
            sockets = await _sockets(bind.host, bind.port, backlog, shared=self._shared)
        self._open += [ListeningDoor(opened, threshold, self._server, self._failures) for opened in sockets]
        return 0 if bind.path else int(sockets[0].getsockname()[1])

    def prepare(self, listeners: Sequence[ListenerTable]) -> list[tuple[Threshold, ListenerState]]:
        """The open listeners that go on under these settings, everything read and checked.  May raise OSError."""
        left = list(listeners)
        found: list[tuple[Threshold, ListenerState]] = []
        for threshold in self._thresholds:
            match = next((listener for listener in left if threshold.may_become(listener)), None)
            if match is not None:
                left.remove(match)
                found.append((threshold, prepared(match)))
        return found

    def unmatched(self, prepared: list[tuple[Threshold, ListenerState]]) -> list[Threshold]:
        """Those that stay as they are."""
        matched = [threshold for threshold, _ in prepared]
        return [threshold for threshold in self._thresholds if threshold not in matched]

    async def close(self) -> None:
        """Take no new connections."""
        for server in self._open:
            server.close()
        for path in self._paths:
            with suppress(FileNotFoundError):
                os.unlink(path)


class ListeningDoor:
    """A socket whose clients have to get through TLS first, or whose proxies say first who their clients are.

    Accepting them here, instead of leaving it to the loop's own server, is how we hear of handshakes that fail.
    """

    def __init__(
        self,
        opened: socket.socket,
        threshold: Threshold,
        server: Server,
        failures: HandshakeFailures,
    ) -> None:
        opened.setblocking(False)
        self._threshold = threshold
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
                # A client in the middle of its handshake is none of the broker's yet, but holds a descriptor.
                if not self._server.sockets.take(host_of(address)):
                    client.close()
                    continue
                handshake = self._loop.create_task(self._let_in(client, address))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)

    async def _let_in(self, client: socket.socket, address: Any) -> None:
        # A client that never gets through TLS is no connection to the broker yet: its time is bounded here.
        broker, settings = self._server.broker, self._threshold.settings
        accepted = AcceptedSocket(host_of(address))
        _in_handshake.set(client)
        try:
            if settings.listener.proxies:
                accepted = await self._introduced(client, accepted, settings)
            await self._loop.connect_accepted_socket(
                partial(self._threshold.protocol, accepted),
                client,
                ssl=settings.context,
                ssl_handshake_timeout=broker.limits.connect_s if settings.context is not None else None,
            )
        except OSError as error:
            self._server.sockets.give_back(accepted.host)
            self._threshold.counters.failed += 1
            client.close()
            broker.counters.refused("proxy-header" if isinstance(error, BadProxyHeader) else "tls-handshake")
            self._failures.report(address, error, self._loop.time())

    async def _introduced(self, client: socket.socket, by: AcceptedSocket, settings: ListenerState) -> AcceptedSocket:
        """The socket as its client's, whom the proxy names.  May raise OSError."""
        if by.host and not is_among(settings.proxies, by.host):
            raise BadProxyHeader("not one of the listener's proxies")
        address = await read_header(client, self._server.broker.limits.connect_s)
        if address is None:
            return by
        if not self._server.sockets.take(address[0]):
            raise BadProxyHeader(f"too many connections of {address[0]}")
        self._server.sockets.give_back(by.host)
        return AcceptedSocket(address[0], address)


class _Telling(ssl.SSLObject):
    """One client's TLS, which tells it why the handshake fails.

    TLS leaves an alert to be sent then, and the loop drops it with the connection.
    """

    _outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            client = _in_handshake.get()
            if client is not None:
                with suppress(OSError):
                    client.send(self._outgoing.read())  # a few bytes, and all before them have left
            raise

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *words: Any, **more: Any) -> _Telling:
        made: _Telling = super()._create(incoming, outgoing, *words, **more)  # type: ignore[misc]
        made._outgoing = outgoing
        return made


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
        words = error.reason.lower().replace("_", " ")
        return f"{words}: {_MEANINGS[error.reason]}" if error.reason in _MEANINGS else words
    return error.strerror or str(error) or "the client closed the connection"


async def _sockets(host: str, port: int, backlog: int, *, shared: bool) -> list[socket.socket]:
    """One for each address of the host, as the loop's own server has them."""
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind, flags=flags)
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            opened.append(socket.create_server(address, family=family, backlog=backlog, reuse_port=shared))
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def _unix_socket(path: str, backlog: int) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(path)
        opened.listen(backlog)
    except OSError:
        opened.close()
        raise
    return opened


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
