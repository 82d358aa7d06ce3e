"""Bundles of connections on asyncio transports: those this node dials, and those that others dial.

A connection is a link of its own unless its first bytes say that it belongs to a bundle.  An incomplete bundle counts
as one handshake, from its first connection on: the limits of handshakes on number and time hold for it, and the links
report why it was refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, cast

from sterna.overlay.bundle import PREAMBLE_BYTES, BrokenBundle, Bundle, Preamble, may_be_preamble
from sterna.overlay.channel import Channel
from sterna.overlay.link import LinkTransport
from sterna.runtime.links.connections import (
    OUTPUT_BYTES,
    LingeringTransport,
    LinkProtocol,
    LinkServer,
    certified_names,
    shown,
)

UNSENT_BYTES = 128 * 1024
"""Bytes that the kernel takes for one connection beyond those it can send: else slow ones would seem idle."""

OpenChannel = Callable[[LinkTransport, str], Channel]


class BundledConnections:
    """The counterpart of `LinkProtocol` for several connections: a channel, and `gone` when it is over."""

    def __init__(self, server: LinkServer, count: int, forget: Callable[[], object] | None = None) -> None:
        """`forget` is called when the bundle is over."""
        self._server = server
        self._forget = forget
        self._peer: Any = None
        #: Whom the certificates of all its connections name.
        self._certified: frozenset[str] | None = None
        self.bundle = Bundle(count)
        self.channel: Channel | None = None
        self.gone = asyncio.Event()

    @property
    def host(self) -> str:
        """The machine at the other end, as the first connection found it; empty if that is gone already."""
        return str(self._peer[0]) if self._peer else ""

    def join(self, index: int, count: int, raw: asyncio.Transport) -> None:
        raw.set_write_buffer_limits(high=OUTPUT_BYTES // self.bundle.count)
        with suppress(AttributeError, OSError):  # not every system has it
            raw.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        names = certified_names(raw)
        self._certified = names if self._certified is None else self._certified & names
        if self.channel is not None:
            self.channel.certified = self._certified
        self._peer = self._peer or raw.get_extra_info("peername")
        self.bundle.join(index, count, LingeringTransport(raw))

    def open(self, open_channel: OpenChannel) -> None:
        if not self.gone.is_set():
            self._server.broker.at(monotonic())
            self.channel = open_channel(self.bundle, shown(self._peer))
            self.channel.certified = self._certified or frozenset()
            self._server.after_work()

    def end(self, reason: str) -> None:
        """The other side does not keep to the protocol."""
        if self.channel is None:
            self.bundle.abort()
        else:
            self.channel.abandon("link broken" if self.channel.is_open else "link refused", reason)

    # -- told by the connections --

    def heard(self, index: int, data: bytes) -> None:
        """HOT, where there are bundles."""
        channel = self.channel
        if channel is not None and channel.is_closed:
            return
        self._server.broker.at(monotonic())
        believed = channel is None or channel.is_open or channel.is_dialled
        try:
            passed = self.bundle.feed(index, data, believed=believed)
        except BrokenBundle as error:
            self.end(str(error))
        else:
            if passed and channel is not None:
                channel.feed(passed)
        self._server.after_work()

    def lost(self, index: int) -> None:
        if not self.bundle.lost(index) or self.gone.is_set():
            return
        self.gone.set()
        self.bundle.abort()
        if self._forget is not None:
            self._forget()
        if self.channel is not None:
            self._server.broker.at(monotonic())
            self.channel.lost()
            self._server.after_work()

    def congested(self, index: int) -> None:
        if self.bundle.congested(index) and self.channel is not None:
            self.channel.congested()

    def writable(self, index: int) -> None:
        if self.bundle.writable(index) and self.channel is not None:
            self._server.broker.at(monotonic())
            self.channel.writable()
            self._server.after_work()


class MemberProtocol(asyncio.Protocol):
    """One connection of a bundle."""

    def __init__(self, connections: BundledConnections, preamble: Preamble) -> None:
        self._connections = connections
        self._preamble = preamble
        self._index = preamble.index

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of those that we make."""
        raw = cast(asyncio.Transport, transport)
        try:
            self._connections.join(self._index, self._preamble.count, raw)
        except BrokenBundle:  # another was lost before this one stood
            # Not in this turn: uvloop would leave the maker of the connection waiting for it.
            asyncio.get_running_loop().call_soon(raw.abort)
        else:
            raw.write(self._preamble.encode())

    def data_received(self, data: bytes) -> None:
        self._connections.heard(self._index, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._connections.lost(self._index)

    def pause_writing(self) -> None:
        self._connections.congested(self._index)

    def resume_writing(self) -> None:
        self._connections.writable(self._index)


class Newcomer(LinkProtocol):
    """Somebody who connected to us and has not said yet what it is; a silent one is a handshake that takes long."""

    def __init__(self, server: LinkServer, accept: OpenChannel, gathering: dict[bytes, BundledConnections]) -> None:
        super().__init__(server, accept)
        self._gathering = gathering
        self._said = b""

    def data_received(self, data: bytes) -> None:
        self._said += data
        channel, transport = self.channel, self.transport
        if channel is None or transport is None or channel.is_closed:
            return
        if not may_be_preamble(self._said):
            self._go_alone(channel, transport)
        elif len(self._said) >= PREAMBLE_BYTES:
            self._server.broker.at(monotonic())
            try:
                self._join(Preamble.decode(self._said), channel, transport)
            except BrokenBundle as error:
                channel.refuse(str(error), answer=False)
            self._server.after_work()

    def _go_alone(self, channel: Channel, transport: LingeringTransport) -> None:
        """From now on nobody looks at the bytes before the channel does."""
        alone = LinkProtocol(self._server, self._open_channel)
        alone.channel = channel
        transport.raw.set_protocol(alone)
        alone.data_received(self._said)

    def _join(self, preamble: Preamble, channel: Channel, transport: LingeringTransport) -> None:
        """Be one of several, which have a channel together; that of this connection alone is not needed."""
        name, count = preamble.name, preamble.count
        connections = self._gathering.get(name)
        if connections is None:
            connections = BundledConnections(self._server, count, partial(self._gathering.pop, name, None))
            self._gathering[name] = connections
        try:
            connections.join(preamble.index, count, transport.raw)
        except BrokenBundle as error:
            channel.abandon()
            connections.end(str(error))
            return
        transport.release()
        channel.abandon()
        transport.raw.set_protocol(MemberProtocol(connections, preamble))
        if connections.channel is None:
            connections.open(self._open_channel)
        if connections.bundle.is_complete:
            del self._gathering[name]
        connections.heard(preamble.index, self._said[PREAMBLE_BYTES:])
