"""One connection to a node, from dialling to its end.  Its owner decides what is sent on it."""

from __future__ import annotations

from typing import Final, Protocol

from sterna.gateway.context import GatewayContext
from sterna.mqtt import gateway_packets
from sterna.mqtt.framing import Incoming
from sterna.mqtt.gateway_packets import GatewayHello

#: How long a node may take to hang up after DISCONNECT.
PARTING_S = 2.0


class PeerTransport(Protocol):
    """The connection to one peer, as the world gives it to us."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class UpstreamOwner(Protocol):
    """The one that had a node dialled."""

    address: str

    def opened(self, upstream: Upstream) -> None: ...
    def said(self, upstream: Upstream, data: bytes) -> None:
        """Bytes of the node; those of a packet that is not whole come again with more."""

    def broken(self, upstream: Upstream, reason: str) -> None:
        """It is over, and not because the caller ended it."""

    def crowded(self, upstream: Upstream, full: bool) -> None:
        """The node does not take more bytes for now, or does again."""


class UpstreamPhase:
    """Plain numbers rather than an enumeration: compiled, these are constants."""

    DIALLING: Final = 0
    #: Connected, and nothing said but HELLO.
    WAITING: Final = 1
    #: CONNECT is sent.
    GREETING: Final = 2
    LIVE: Final = 3
    #: The last word is said; the node is to hang up.
    PARTING: Final = 4
    OVER: Final = 5


class Upstream:
    __slots__ = (
        "_caller",
        "_context",
        "_timer",
        "greeted",
        "hello",
        "incoming",
        "is_second",
        "live_since",
        "phase",
        "server",
        "spoken",
        "transport",
    )

    def __init__(self, context: GatewayContext, caller: UpstreamOwner, server: str, *, is_second: bool = False) -> None:
        self._context = context
        self._caller = caller
        self.server = server
        #: The client is served through another one until its session has come to this node.
        self.is_second = is_second
        self.phase: int = UpstreamPhase.DIALLING
        self.transport: PeerTransport | None = None
        self.incoming = Incoming()
        #: Does the node know what a gateway is?
        self.hello = context.servers.knows_gateways(server, context.now)
        #: Has it said anything since somebody last looked?
        self.spoken = False
        self.greeted = False
        #: 0 until CONNACK.
        self.live_since = 0.0
        self._timer = context.later(context.patience.handshake_s, self._too_late)
        context.dial(server, self)

    # -- what the world says --

    def connected(self, transport: PeerTransport) -> None:
        if self.phase == UpstreamPhase.OVER:
            transport.abort()
            return
        self.transport = transport
        self.phase = UpstreamPhase.WAITING
        if self.hello:
            hello = GatewayHello(
                self._context.name, gateway_packets.VERSION, self._caller.address, self.is_second, True
            )
            transport.write(gateway_packets.encode(hello))
        self._caller.opened(self)

    def failed(self, reason: str) -> None:
        self._break(reason)

    def feed(self, data: bytes) -> None:
        """HOT."""
        if self.phase < UpstreamPhase.PARTING:
            self.spoken = True
            data = self.incoming.with_more(data)
            if data:
                self._caller.said(self, data)

    def lost(self, reason: str = "connection closed") -> None:
        self._break(reason)

    def congested(self) -> None:
        if self.phase == UpstreamPhase.LIVE:
            self._caller.crowded(self, True)

    def writable(self) -> None:
        if self.phase == UpstreamPhase.LIVE:
            self._caller.crowded(self, False)

    # -- what the caller does --

    def write(self, data: bytes) -> None:
        """HOT."""
        if self.transport is not None:
            self.transport.write(data)

    def greet(self, connect: bytes) -> None:
        self.phase = UpstreamPhase.GREETING
        self.greeted = True
        self._timer.cancel()
        self._timer = self._context.later(self._context.patience.handshake_s, self._too_late)
        self.write(connect)

    def wait(self) -> None:
        """It may take its time: nobody waits for an answer yet."""
        self._timer.cancel()

    def live(self) -> None:
        self.phase = UpstreamPhase.LIVE
        self.live_since = self._context.now
        self._timer.cancel()

    def part(self, last_word: bytes, caller: UpstreamOwner) -> None:
        """Say this, and tell `caller` when the node has hung up."""
        self._caller = caller
        self.phase = UpstreamPhase.PARTING
        self._timer.cancel()
        self._timer = self._context.later(PARTING_S, self._too_late)
        if self.transport is not None:
            self.transport.write(last_word)
            self.transport.close()

    def close(self) -> None:
        """Say what was written, and no more."""
        self._end()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        self._end()
        if self.transport is not None:
            self.transport.abort()

    def _end(self) -> None:
        self.phase = UpstreamPhase.OVER
        self._timer.cancel()

    def _too_late(self) -> None:
        self._break("the node did not answer in time")

    def _break(self, reason: str) -> None:
        if self.phase != UpstreamPhase.OVER:
            self.abort()
            self._caller.broken(self, reason)
