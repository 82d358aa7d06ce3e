"""Client connections on asyncio transports: the thin layer between a socket and a broker or a gateway.

It decides nothing: bytes in, bytes out, and the two calls of a transport for flow control, pause and resume.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast

from sterna.broker.access.identity import Entrance
from sterna.broker.session.connection import ClientPeer
from sterna.broker.session.outbox import Transport
from sterna.runtime.listeners.packet_log import (
    ClientConnection,
    LoggedConnection,
    PacketLog,
    is_wanted,
    logged_transport,
)
from sterna.runtime.listeners.socket_quota import SocketQuota, host_of
from sterna.runtime.process_view import ListenerCounters


class HostLimits(Protocol):
    @property
    def packet_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def connect_s(self) -> float: ...
    @property
    def connections_per_address(self) -> int: ...


class HostCounters(Protocol):
    def refused(self, reason: str) -> None: ...


class Host(Protocol):
    """The server of all of them."""

    @property
    def limits(self) -> HostLimits: ...
    @property
    def counters(self) -> HostCounters: ...
    def at(self, now: float) -> object:
        """It is this late."""

    def accept(self, transport: Transport, peer: ClientPeer) -> ClientConnection | None:
        """None: it is not taken in, and to be dropped."""


class Server(Protocol):
    """The services of the process around it that a client connection needs."""

    @property
    def broker(self) -> Host: ...
    @property
    def sockets(self) -> SocketQuota: ...
    def after_work(self) -> None:
        """Something was fed to the broker: see that what came of it goes out."""


class AcceptedSocket(NamedTuple):
    host: str
    """Among whose sockets it counts."""
    address: tuple[str, int] | None = None
    """Of the client, where a proxy has told it."""


class ClientProtocol(asyncio.Protocol):
    """One TCP, TLS or Unix connection."""

    __slots__ = ("_address", "_authority", "_connection", "_counters", "_entrance", "_host", "_server")

    def __init__(
        self, server: Server, entrance: Entrance, counters: ListenerCounters, accepted: AcceptedSocket | None = None
    ) -> None:
        """Made before the TLS handshake: it is by the authorities of now that a certificate is checked.  `accepted`:
        somebody else has accepted the socket, and counts it already."""
        self._server = server
        self._entrance = entrance
        self._counters = counters
        self._authority = entrance.authority
        self._connection: ClientConnection | None = None
        self._host = accepted.host if accepted is not None else None
        self._address = accepted.address if accepted is not None else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        transport = cast(asyncio.Transport, transport)
        self._accept(transport, _PoliteTransport(transport))

    def _accept(self, raw: asyncio.Transport, transport: Transport) -> None:
        server = self._server
        if self._host is None:
            host = host_of(raw.get_extra_info("peername"))
            if not server.sockets.take(host):
                raw.abort()
                return
            self._host = host
        self._counters.accepted += 1
        self._counters.open += 1
        raw.set_write_buffer_limits(high=server.broker.limits.output_bytes)
        server.broker.at(monotonic())
        peer = self._peer(raw)
        packet_log = PacketLog(peer.address) if is_wanted() else None
        if packet_log is not None:
            transport = logged_transport(transport, packet_log)
        self._connection = server.broker.accept(transport, peer)
        if self._connection is None:
            raw.abort()
        elif packet_log is not None:
            self._connection = LoggedConnection(self._connection, packet_log)
        server.after_work()

    def _peer(self, transport: asyncio.Transport) -> ClientPeer:
        address: Any = self._address or transport.get_extra_info("peername")
        # An IPv4 or IPv6 address with its port; a Unix socket has neither.
        shown = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
        name = _common_name(transport.get_extra_info("peercert"))
        return ClientPeer(shown, name, self._entrance, self._authority)

    def data_received(self, data: bytes) -> None:
        """HOT."""
        server = self._server
        server.broker.at(monotonic())
        connection = self._connection
        if connection is not None:
            connection.feed(data)
        server.after_work()

    def connection_lost(self, _error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        if self._host is not None:
            self._counters.open -= 1
            self._server.sockets.give_back(self._host)
        if connection is not None:
            self._server.broker.at(monotonic())
            connection.lost()
            self._server.after_work()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.congested()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._server.broker.at(monotonic())
            self._connection.writable()
            self._server.after_work()


class _PoliteTransport:
    """A transport whose `close` lets the client read the last bytes even if it is in the middle of sending.

    Closing a socket that holds unread input makes the kernel reset the connection, and the farewell with its reason
    code is lost.  So we only say that nothing more will come, read on without looking, and leave it to the client to
    close; the broker aborts what lingers.  The other methods are the transport's own, so that they cost no more.
    """

    __slots__ = ("_raw", "abort", "get_write_buffer_size", "pause_reading", "resume_reading", "write")

    def __init__(self, raw: asyncio.Transport) -> None:
        self._raw = raw
        self.write = raw.write
        self.abort = raw.abort
        self.pause_reading = raw.pause_reading
        self.resume_reading = raw.resume_reading
        self.get_write_buffer_size = raw.get_write_buffer_size

    def close(self) -> None:
        raw = self._raw
        if raw.is_closing() or not raw.can_write_eof():
            raw.close()
            return
        raw.write_eof()
        raw.resume_reading()


def _common_name(certificate: Any) -> str | None:
    """The common name of a certificate that TLS has verified."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None
