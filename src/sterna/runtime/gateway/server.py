"""A gateway on this machine: event loop, listeners, connections to nodes, and the order of start and stop.

It decides nothing that a client or a node could notice.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import uvloop

import sterna.gateway.client
from sterna import __version__
from sterna.gateway.gateway import Gateway
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GATEWAY_LIMITS_TOLD, GatewayLimits
from sterna.gateway.upstream import Upstream
from sterna.runtime.adaptation.gateway_measuring import GatewayMeasuring
from sterna.runtime.admin.port import CONNECTIONS_MAX, AdminPort
from sterna.runtime.admin.reloading import AdminAndLog
from sterna.runtime.admin.site import guard
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.toml_source import Place
from sterna.runtime.gateway.pages import GATEWAY
from sterna.runtime.gateway.settings import GatewayConfiguration, UpstreamTable, outward_context
from sterna.runtime.hangups import hold_back_hangups
from sterna.runtime.links.connections import LingeringTransport
from sterna.runtime.listeners.listeners import Listeners
from sterna.runtime.listeners.socket_quota import Descriptors, SocketQuota, divided
from sterna.runtime.logs import configure
from sterna.runtime.process_setup import allow_many_sockets, outdated_modules
from sterna.runtime.reloading import (
    ADMIN_AND_LOG,
    PreparedLimits,
    PreparedListeners,
    ReloadedPart,
    Reloader,
    ReloadOutcome,
    Swap,
    limits_reloaded,
    needing_restart,
)
from sterna.runtime.reports import Reports
from sterna.runtime.service_manager import ServiceManager
from sterna.runtime.tls import expires_at
from sterna.vocabulary.errors import SternaError

log = logging.getLogger("sterna.gateway")

FAREWELL_S = 3.0
"""How long stopping waits for clients to go and for sessions to be ended."""
FAREWELL_LOOK_S = 0.05
FILES = 64
"""Descriptors for listening sockets and everything else that is not a client's."""
LOG_LOOK_S = 10.0
"""How often to look whether something was left out of the log."""


#: The settings that a reload puts in place.  The rest of the configuration waits for a restart.
RELOADED: tuple[Place, ...] = (
    *ADMIN_AND_LOG,
    ("upstream", "ca"),
    ("upstream", "certificate"),
    ("upstream", "key"),
    ("upstream", "check_names"),
)


def run_gateway(configuration: GatewayConfiguration, reread: Callable[[], GatewayConfiguration] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the process's exit status.  `reread` reads the configuration again."""
    hold_back_hangups()
    configure(configuration.log.level, configuration.log.format)
    # A client behind a gateway takes two descriptors: its own connection, and the one to its node.
    descriptors = divided(allow_many_sockets() // 2, FILES + CONNECTIONS_MAX)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(GatewayServer(configuration, descriptors, reread or (lambda: configuration)).run())
    except SternaError as error:
        log.error("cannot run", extra={"reason": str(error)})
        return 1


class NodeProtocol(asyncio.Protocol):
    """One connection to a node."""

    def __init__(self, server: GatewayServer, upstream: Upstream) -> None:
        self._gateway = server.gateway
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        raw = cast(asyncio.Transport, transport)
        raw.set_write_buffer_limits(high=self._gateway.limits.output_bytes)
        self._gateway.at(time.monotonic())
        self._upstream.connected(LingeringTransport(raw))

    def data_received(self, data: bytes) -> None:
        """HOT."""
        self._gateway.at(time.monotonic())
        self._upstream.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._gateway.at(time.monotonic())
        self._upstream.lost(str(error) if error else "connection closed")

    def pause_writing(self) -> None:
        self._upstream.congested()

    def resume_writing(self) -> None:
        self._gateway.at(time.monotonic())
        self._upstream.writable()


def _outward(upstream: UpstreamTable) -> tuple[ssl.SSLContext | None, float | None]:
    """How nodes are spoken to, and when the certificate that they are shown expires."""
    return outward_context(upstream), expires_at(upstream.certificate) if upstream.certificate is not None else None


class GatewayServer:
    """The world of one gateway."""

    def __init__(
        self, configuration: GatewayConfiguration, descriptors: Descriptors, reread: Callable[[], GatewayConfiguration]
    ) -> None:
        self._configuration = configuration
        self._reports = Reports(log)
        self._context, self._context_expires_at = _outward(configuration.upstream)
        rng = random.SystemRandom()
        nodes, control = list(configuration.upstream.nodes), configuration.upstream.control
        servers = Servers(
            nodes, configuration.patience, rng, control=control, references=configuration.upstream.references
        )
        self.gateway = Gateway(
            configuration.gateway.name,
            servers,
            replace(configuration.limits),
            configuration.patience,
            self,
            rng,
            time.monotonic(),
        )
        #: Client sockets that are open, those included that were told goodbye.
        self.sockets = SocketQuota(descriptors.sockets, self.gateway.limits, self.gateway.counters.refused)
        self._listeners = Listeners(self, descriptors.backlog)
        self._admin = AdminPort(self, guard(configuration.admin), site=GATEWAY)
        self._admin_and_log = AdminAndLog(configuration, self._admin)
        self._service_manager = ServiceManager()
        self._reloader = Reloader(reread, self._prepare, self._service_manager)
        self.measuring = self._new_measuring(servers)
        self._stopping = asyncio.Event()
        self._serving = False
        #: Referred to here, or the loop might lose them while they dial.
        self._dialling: set[asyncio.Task[None]] = set()

    def _new_measuring(self, servers: Servers) -> GatewayMeasuring | None:
        configuration = self._configuration
        if not configuration.adaptation.network:
            return None
        return GatewayMeasuring(
            configuration.gateway.name,
            configuration.adaptation,
            configuration.measuring,
            configuration.coordinates.settings(),
            configuration.adaptation.remember,
            servers.prefer,
        )

    # -- what client connections need --

    @property
    def broker(self) -> Gateway:
        return self.gateway

    def after_work(self) -> None:
        """A gateway has written everything already."""

    # -- start and stop --

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        if outdated := outdated_modules():
            log.warning(
                "compiled modules are older than their sources; run: make compiled", extra={"modules": outdated}
            )
        settings = self._configuration
        log.info(
            "gateway starting",
            extra={
                "version": __version__,
                "compiled": sterna.gateway.client.__file__.endswith(".so"),
                "gateway": settings.gateway.name,
                "nodes": ",".join(settings.upstream.nodes),
            },
        )
        for listener in settings.listeners:
            address = await self._listeners.open(listener)
            log.info("listening", extra={"address": str(address), "transport": listener.transport})
        if settings.admin.bind is not None:
            address = await self._admin.start(settings.admin.bind)
            log.info("admin port", extra={"address": f"http://{address}"})
        if self.measuring is not None:
            await self.measuring.start()
        self._serving = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        self._service_manager.ready()
        tasks = [self._loop.create_task(work) for work in (self._reloader.heed_hangups(), self._keep_log())]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        self._service_manager.stopping()
        await self._stop()
        self._service_manager.close()
        return 0

    @property
    def certificates(self) -> dict[str, float]:
        found = self._listeners.certificates()
        if self._context_expires_at is not None:
            found["upstream"] = self._context_expires_at
        return found

    async def reload(self) -> ReloadOutcome:
        return await self._reloader.reload()

    def _prepare(self, new: GatewayConfiguration) -> Swap:
        """Certificates are for handshakes to come: clients and nodes that are connected stay."""
        old = self._configuration
        listeners = PreparedListeners(self._listeners, new.listeners)
        admin_and_log = self._admin_and_log.prepare(new)
        context, context_expires_at = _outward(new.upstream)
        limits = PreparedLimits(self.gateway.limits, new.limits, GATEWAY_LIMITS_TOLD)
        reloaded = (*RELOADED, *limits_reloaded(GatewayLimits, GATEWAY_LIMITS_TOLD))
        needs_restart = [*listeners.needs_restart, *needing_restart(old, new, reloaded)]

        def swap() -> ReloadOutcome:
            parts = [limits.apply(), *listeners.apply()]
            self.gateway.context.unauthenticated.most = self.gateway.limits.unauthenticated_bytes
            self._context, self._context_expires_at = context, context_expires_at
            parts += [ReloadedPart("certificates for nodes", context is not None), *admin_and_log()]
            return ReloadOutcome(parts, 0, needs_restart)

        return swap

    async def _stop(self) -> None:
        log.info("gateway stopping")
        self._serving = False
        await self._listeners.close()
        self.gateway.at(time.monotonic())
        self.gateway.stop()
        for _ in range(int(FAREWELL_S / FAREWELL_LOOK_S)):
            if not self.sockets.open and not self.gateway.endings:
                break
            await asyncio.sleep(FAREWELL_LOOK_S)
        for task in list(self._dialling):
            task.cancel()
        if self.measuring is not None:
            await self.measuring.stop()
        await self._admin.stop()
        log.info("gateway stopped")

    def measuring_view(self) -> dict[str, Any] | None:
        return self.measuring.view() if self.measuring is not None else None

    def why_not_ready(self) -> str | None:
        return None if self._serving else "starting or stopping"

    # -- what the gateway asks of its world --

    def dial(self, server: str, upstream: Upstream) -> None:
        task = self._loop.create_task(self._connect(server, upstream))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _connect(self, server: str, upstream: Upstream) -> None:
        bind = Bind.parse(server)
        try:
            async with asyncio.timeout(self._configuration.patience.handshake_s):
                await self._loop.create_connection(
                    lambda: NodeProtocol(self, upstream), bind.host, bind.port, ssl=self._context
                )
        except (OSError, TimeoutError) as error:
            self.gateway.at(time.monotonic())
            upstream.failed(str(error) or type(error).__name__)

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        self.gateway.at(time.monotonic())
        act()

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self._reports.report(event, fields)
        if event == "node lost" and self.measuring is not None:
            self.measuring.hurry()

    async def _keep_log(self) -> None:
        while True:
            self._reports.turn_over(time.monotonic())
            await asyncio.sleep(LOG_LOOK_S)
