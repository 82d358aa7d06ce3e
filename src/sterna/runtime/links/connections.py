"""One connection to another node on an asyncio transport.  It decides nothing; a `Channel` gets the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, cast

from sterna.overlay.channel import Channel
from sterna.overlay.dialling import Reachability
from sterna.overlay.link import LinkTransport

LINGER_S = 1.0
"""How long the other side has to read our last words before the connection is cut."""
OUTPUT_BYTES = 512 * 1024
"""Bytes the transports of a link hold before it keeps the rest to itself."""


class Clocked(Protocol):
    def at(self, now: float) -> object:
        """It is this late."""


class LinkServer(Protocol):
    """The node around links, as far as they need it."""

    @property
    def broker(self) -> Clocked: ...
    def after_work(self) -> None:
        """Something was fed to the links: see that what came of it goes out."""


class LinkedNode(Reachability, Protocol):
    """The network of the node, as far as links need it."""

    def accept(self, transport: LinkTransport, address: str) -> Channel: ...
    def dialled(self, transport: LinkTransport, address: str) -> Channel: ...


class LinkProtocol(asyncio.Protocol):
    """One connection, dialled by this node or by another.  `gone` is set when it is over."""

    def __init__(self, server: LinkServer, open_channel: Callable[[LinkTransport, str], Channel]) -> None:
        self._server = server
        self._open_channel = open_channel
        self.transport: LingeringTransport | None = None
        self.channel: Channel | None = None
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        raw = cast(asyncio.Transport, transport)
        raw.set_write_buffer_limits(high=OUTPUT_BYTES)
        self._server.broker.at(monotonic())
        self.transport = LingeringTransport(raw)
        self.channel = self._open_channel(self.transport, shown(raw.get_extra_info("peername")))
        self.channel.certified = certified_names(raw)
        self._server.after_work()

    def data_received(self, data: bytes) -> None:
        """HOT."""
        self._server.broker.at(monotonic())
        if self.channel is not None:
            self.channel.feed(data)
        self._server.after_work()

    def connection_lost(self, _error: Exception | None) -> None:
        self.gone.set()
        self._server.broker.at(monotonic())
        if self.channel is not None:
            self.channel.lost()
        self._server.after_work()

    def pause_writing(self) -> None:
        if self.channel is not None:
            self.channel.congested()

    def resume_writing(self) -> None:
        self._server.broker.at(monotonic())
        if self.channel is not None:
            self.channel.writable()
        self._server.after_work()


class LingeringTransport:
    """A transport whose `close` lets the peer read our last words even if it is in the middle of sending.

    Closing a socket with unread input resets the connection, and the words are lost.  So we only say that no more
    will come, read on without looking, and cut the connection if the peer does not close it soon.
    """

    __slots__ = ("abort", "get_write_buffer_size", "pause_reading", "raw", "resume_reading", "write")

    def __init__(self, raw: asyncio.Transport) -> None:
        self.raw = raw
        self.write = raw.write
        self.abort: Callable[[], None] = raw.abort
        self.pause_reading = raw.pause_reading
        self.resume_reading = raw.resume_reading
        self.get_write_buffer_size = raw.get_write_buffer_size

    def release(self) -> None:
        """Somebody else has the connection now: giving this up no longer ends it."""
        self.abort = lambda: None

    def close(self) -> None:
        raw = self.raw
        asyncio.get_running_loop().call_later(LINGER_S, raw.abort)
        if raw.is_closing() or not raw.can_write_eof():
            raw.close()
        else:
            raw.write_eof()


def certified_names(raw: asyncio.Transport) -> frozenset[str]:
    """Whom the certificate of the other end names: its common name and its DNS names; nobody without TLS."""
    return names_in(raw.get_extra_info("peercert"))


def names_in(certificate: Any) -> frozenset[str]:
    """Of a certificate as the module `ssl` tells it."""
    if not certificate:
        return frozenset()
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return frozenset([*common, *others])


def shown(address: Any) -> str:
    """The name of a socket's other end, for people."""
    if not isinstance(address, tuple):
        return "unknown"
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
