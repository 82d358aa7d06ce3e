"""Ends a session that its client wanted to end with its connection, and that the gateway had kept for longer.

In MQTT 5 the last DISCONNECT does it.  In 3.1.1, or when there was no node to say it to, it takes one more connection
that begins a clean session under the same name and leaves at once.  Until that is done, a client of the same name has
to wait: it would be the one to be cleaned away.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.gateway.connecting import Wish, goodbye
from sterna.gateway.context import GatewayContext
from sterna.gateway.upstream import Upstream, UpstreamPhase
from sterna.mqtt.framing import packet_end
from sterna.mqtt.server_packets import decode_connack
from sterna.vocabulary.errors import ProtocolError

ATTEMPTS_MAX = 8


class Ending:
    def __init__(
        self, context: GatewayContext, wish: Wish, server: str | None, address: str, forget: Callable[[bytes], object]
    ) -> None:
        self.address = address
        self._context = context
        #: Called with the name of the client when this is over.
        self._forget = forget
        self._wish = wish.without_will()
        self._server = server
        self._attempt = 0
        self._after: list[Callable[[], None]] = []
        self._upstream: Upstream | None = None
        #: The connection that ends next is the client's own.
        self._is_first = False

    def begin(self, predecessor: Upstream | None) -> None:
        """`predecessor`: the client's connection, which has to end first, with its own DISCONNECT."""
        if predecessor is None or predecessor.transport is None:
            self._dial()
        else:
            self._upstream = predecessor
            self._is_first = True
            predecessor.part(goodbye(self._wish.version, 0, 0), self)

    def then(self, act: Callable[[], None]) -> None:
        self._after.append(act)

    def _dial(self) -> None:
        context = self._context
        server = context.servers.choose(self._server, self._attempt, context.now)
        self._upstream = Upstream(context, self, server)

    def opened(self, upstream: Upstream) -> None:
        upstream.greet(self._wish.connect(clean=True, expiry_s=0, window=0))

    def said(self, upstream: Upstream, data: bytes) -> None:
        try:
            body, stop = packet_end(data, 0, self._context.limits.packet_bytes)
            if not body:
                upstream.incoming.keep(data, stop)
                return
            if data[0] >> 4 != 2 or upstream.phase != UpstreamPhase.GREETING:
                raise ProtocolError(0x82, "something else than CONNACK")
            welcome = decode_connack(data, body, stop, self._wish.version)
        except ProtocolError as error:
            upstream.abort()
            self.broken(upstream, error.reason)
            return
        if welcome.code:
            upstream.abort()
            self.broken(upstream, f"refused with 0x{welcome.code:02x}")
        else:
            upstream.live()
            self._upstream = None
            upstream.part(goodbye(self._wish.version, 0, 0), self)
            self._done(ended=True)

    def broken(self, upstream: Upstream, reason: str) -> None:
        if upstream is not self._upstream:
            return
        self._upstream = None
        context = self._context
        if not self._is_first:
            self._attempt += 1
            if upstream.greeted and upstream.hello and not upstream.spoken:
                context.servers.is_plain(upstream.server, context.now)
            if self._attempt >= ATTEMPTS_MAX:
                context.report("session left behind", self._wish, reason=reason)
                self._done(ended=False)
                return
        self._is_first = False
        context.later(context.servers.pause(self._server, self._attempt) if self._attempt else 0.0, self._dial)

    def crowded(self, upstream: Upstream, full: bool) -> None:
        """A CONNECT and a DISCONNECT fit anywhere."""

    def _done(self, *, ended: bool) -> None:
        context = self._context
        if ended:
            context.counters.sessions_ended += 1
        else:
            context.counters.sessions_left += 1
        self._forget(self._wish.client_id)
        for act in self._after:
            act()


class SessionEndings:
    """Sessions being ended, by the name of their client."""

    __slots__ = ("_by_name", "_context")

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._by_name: dict[bytes, Ending] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, client_id: bytes) -> Ending | None:
        return self._by_name.get(client_id)

    def end(self, wish: Wish, server: str | None, predecessor: Upstream | None, address: str) -> Ending:
        known = self._by_name.get(wish.client_id)
        if known is not None:
            if predecessor is not None:
                predecessor.abort()
            return known
        ending = Ending(self._context, wish, server, address, self._forget)
        self._by_name[wish.client_id] = ending
        ending.begin(predecessor)
        return ending

    def _forget(self, client_id: bytes) -> None:
        self._by_name.pop(client_id, None)
