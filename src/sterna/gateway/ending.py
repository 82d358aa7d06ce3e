"""Ends a session that its client wanted to end with its connection, and that the gateway had kept for longer.

In MQTT 5 the last DISCONNECT does it.  In 3.1.1, or when there was no node to say it to, it takes one more connection
that begins a clean session under the same name and leaves at once.  Until that is done, a client of the same name has
to wait: it would be the one to be cleaned away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sterna.gateway.connecting import Wish, goodbye
from sterna.gateway.framing import packet_end
from sterna.gateway.upstream import Phase, Upstream
from sterna.mqtt.server_packets import decode_connack
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.gateway.gateway import Gateway

ATTEMPTS_MAX = 8


class Ending:
    def __init__(self, gateway: Gateway, wish: Wish, server: str | None, address: str) -> None:
        self.address = address
        self._gateway = gateway
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
        gateway = self._gateway
        server = gateway.servers.choose(self._server, self._attempt, gateway.now)
        self._upstream = Upstream(gateway, self, server)

    def opened(self, upstream: Upstream) -> None:
        upstream.greet(self._wish.connect(clean=True, expiry_s=0, window=0))

    def said(self, upstream: Upstream, data: bytes) -> None:
        try:
            body, stop = packet_end(data, 0, self._gateway.limits.packet_bytes)
            if not body:
                upstream.incoming.keep(data, stop)
                return
            if data[0] >> 4 != 2 or upstream.phase != Phase.GREETING:
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
        gateway = self._gateway
        if not self._is_first:
            self._attempt += 1
            if upstream.greeted and upstream.hello and not upstream.spoken:
                gateway.servers.is_plain(upstream.server, gateway.now)
            if self._attempt >= ATTEMPTS_MAX:
                gateway.report("session left behind", self._wish, reason=reason)
                self._done(ended=False)
                return
        self._is_first = False
        gateway.later(gateway.servers.pause(self._server, self._attempt) if self._attempt else 0.0, self._dial)

    def crowded(self, upstream: Upstream, full: bool) -> None:
        """A CONNECT and a DISCONNECT fit anywhere."""

    def _done(self, *, ended: bool) -> None:
        gateway = self._gateway
        if ended:
            gateway.counters.sessions_ended += 1
        else:
            gateway.counters.sessions_left += 1
        gateway.endings.pop(self._wish.client_id, None)
        for act in self._after:
            act()
