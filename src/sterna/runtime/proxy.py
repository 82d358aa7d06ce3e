"""Proxy mode on this machine: the listeners whose clients are relayed, and their connections to the foreign broker.

It decides nothing.  Clients are fed to a watched gateway; what they publish is witnessed by the attachment.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

from sterna.broker.limits import Limits
from sterna.gateway.extended_client import RelayBroker
from sterna.gateway.kept_publications import RelayJournal
from sterna.gateway.settings import GatewayLimits
from sterna.gateway.upstream import Upstream
from sterna.gateway.watched import WatchedGateway
from sterna.interworking.proxy.proxy import Proxy
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import InterworkingTable
from sterna.runtime.links.connections import LingeringTransport
from sterna.runtime.listeners.socket_quota import SocketQuota


class RelayProtocol(asyncio.Protocol):
    """One client's connection to the foreign broker."""

    def __init__(self, world: ProxyWorld, upstream: Upstream) -> None:
        self._world = world
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        raw = cast(asyncio.Transport, transport)
        raw.set_write_buffer_limits(high=self._world.broker.limits.output_bytes)
        self._world.work(lambda: self._upstream.connected(LingeringTransport(raw)))

    def data_received(self, data: bytes) -> None:
        """HOT."""
        self._world.begin()
        self._upstream.feed(data)
        self._world.after_work()

    def connection_lost(self, error: Exception | None) -> None:
        self._world.work(lambda: self._upstream.lost(str(error) if error else "the broker closed the connection"))

    def pause_writing(self) -> None:
        self._upstream.congested()

    def resume_writing(self) -> None:
        self._world.work(self._upstream.writable)


class ProxyWorld:
    """The world of the relayed clients; `broker` is what listeners serve them with."""

    def __init__(
        self,
        table: InterworkingTable,
        node_name: str,
        limits: Limits,
        proxy: Proxy,
        keeper: RelayJournal,
        context: ssl.SSLContext | None,
        report: Callable[[str, dict[str, Any]], None],
        begin: Callable[[], None],
        after_work: Callable[[], None],
        sockets: int,
        host: RelayBroker | None = None,
    ) -> None:
        """`begin` and `after_work` frame a piece of work of the node; `sockets`: how many clients may be open;
        `host`: the node's own broker, if it serves them too."""
        self._table = table
        self._context = context
        self.report = report
        self._begin = begin
        self.after_work = after_work
        self.broker = WatchedGateway(
            node_name,
            table.broker,
            limits_of(limits),
            self,
            proxy,
            keeper,
            random.SystemRandom(),
            time.monotonic,
            host,
        )
        self.sockets = SocketQuota(sockets, self.broker.limits, self.broker.counters.refused)
        #: Referred to here, or the loop might lose them while they dial.
        self._dialling: set[asyncio.Task[None]] = set()
        proxy.door = self.broker

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self.work(self.broker.stop)
        for task in list(self._dialling):
            task.cancel()

    def begin(self) -> None:
        """HOT.  A piece of work begins now."""
        self.broker.at(time.monotonic())
        self._begin()

    def work(self, piece: Callable[[], None]) -> None:
        self.begin()
        piece()
        self.after_work()

    # -- what the gateway asks --

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self.work, act)

    def dial(self, _server: str, upstream: Upstream) -> None:
        task = self._loop.create_task(self._connect(upstream))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _connect(self, upstream: Upstream) -> None:
        bind = Bind.parse(self._table.broker)
        try:
            async with asyncio.timeout(self._table.answer_s):
                await self._loop.create_connection(
                    lambda: RelayProtocol(self, upstream), bind.host, bind.port, ssl=self._context
                )
        except (OSError, TimeoutError, ssl.CertificateError) as error:
            reason = str(error) or type(error).__name__
            self.work(lambda: upstream.failed(reason))


def limits_of(limits: Limits) -> GatewayLimits:
    """Those of the node, as far as they mean the same for relayed clients."""
    return GatewayLimits(
        packet_bytes=limits.packet_bytes,
        connect_bytes=limits.connect_bytes,
        unauthenticated_bytes=limits.unauthenticated_bytes,
        connections=limits.connections,
        connections_per_address=limits.connections_per_address,
        connect_s=limits.connect_s,
        output_bytes=limits.output_bytes,
        user_properties=limits.user_properties,
    )
