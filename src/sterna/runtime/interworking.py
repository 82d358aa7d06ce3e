"""The attachment to a foreign broker on this machine: its connections, timers and certificates.  It decides nothing."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

from sterna.interworking.attachment import Attachment
from sterna.interworking.foreign_line import ForeignLine
from sterna.node.companions import Companions
from sterna.node.foreign_session import ForeignSession
from sterna.node.node import Node
from sterna.node.relay_keeper import RelayKeeper, proxy_of
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import InterworkingTable
from sterna.runtime.links.connections import LingeringTransport
from sterna.runtime.proxy import ProxyWorld
from sterna.runtime.tls import expires_at

LONE_NETWORK = "alone"
"""Stands for the name of the network where there is none."""


class ForeignProtocol(asyncio.Protocol):
    """One connection to the foreign broker."""

    def __init__(self, world: Interworking, line: ForeignLine) -> None:
        self._world = world
        self._line = line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, only alike.
        raw = cast(asyncio.Transport, transport)
        raw.set_write_buffer_limits(high=self._world.output_bytes)
        self._world.work(lambda: self._line.connected(LingeringTransport(raw)))

    def data_received(self, data: bytes) -> None:
        """HOT."""
        self._world.begin()
        self._line.feed(data)
        self._world.after_work()

    def connection_lost(self, error: Exception | None) -> None:
        self._world.work(lambda: self._line.lost(_reason(error) if error else "the broker closed the connection"))

    def pause_writing(self) -> None:
        self._line.congested()

    def resume_writing(self) -> None:
        self._world.work(self._line.writable)


class Interworking:
    """The world of one attachment."""

    def __init__(
        self,
        table: InterworkingTable,
        network: str,
        node_name: str,
        node: Node,
        report: Callable[[str, dict[str, Any]], None],
        after_work: Callable[[], None],
        sockets: int,
    ) -> None:
        """`sockets`: how many relayed clients may be open."""
        self._table = table
        self._broker = node.broker
        self._context = tls_context(table)
        #: Of the one that the broker is shown; it stays until the node is started again.
        self.certificate_expires_at = (
            expires_at(table.certificate) if table.tls and table.certificate is not None else None
        )
        self.report = report
        self.after_work = after_work
        self.output_bytes = node.broker.limits.output_bytes
        password = table.password_file.read_bytes().strip() if table.password_file is not None else None
        self.relay: ProxyWorld | None = None
        """The relayed clients, in proxy mode."""
        proxy = None
        if table.mode == "proxy":
            keeper = RelayKeeper(node.broker, report)
            proxy = proxy_of(table, keeper)
            limits = node.broker.limits
            self.relay = ProxyWorld(
                table,
                node_name,
                limits,
                proxy,
                keeper,
                self._context,
                report,
                self.begin,
                after_work,
                sockets,
                Companions(node.broker, node_name, self._version) if table.extras else None,
            )
        self.attachment = Attachment(
            table,
            network or LONE_NETWORK,
            node_name,
            table.broker,
            self,
            ForeignSession(node.broker, node_name, table.in_doubt),
            random.SystemRandom(),
            table.user.encode() if table.user is not None else None,
            password,
            proxy,
        )
        #: Referred to here, or the loop might lose them while they dial.
        self._dialling: set[asyncio.Task[None]] = set()

    def _version(self) -> int:
        """Of MQTT, as the foreign broker speaks it; 0 as long as nobody knows."""
        abilities = self.attachment.abilities
        return abilities.version if abilities is not None else 0

    def prepare(self) -> None:
        """Before the first client comes."""
        self._loop = asyncio.get_running_loop()
        if self.relay is not None:
            self.relay.start()

    def start(self) -> None:
        self.work(self.attachment.start)

    def stop(self) -> None:
        if self.relay is not None:
            self.relay.stop()
        self.work(self.attachment.stop)
        for task in list(self._dialling):
            task.cancel()

    def begin(self) -> None:
        """HOT.  A piece of work begins now."""
        self._broker.at(time.monotonic())

    def work(self, piece: Callable[[], None]) -> None:
        self.begin()
        piece()
        self.after_work()

    # -- what the core asks of its world --

    @property
    def now(self) -> float:
        return self._broker.now

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.Handle:
        if seconds <= 0:
            return self._loop.call_soon(self.work, act)
        return self._loop.call_later(seconds, self.work, act)

    def dial(self, line: ForeignLine) -> None:
        task = self._loop.create_task(self._connect(line))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _connect(self, line: ForeignLine) -> None:
        bind = Bind.parse(self._table.broker)
        seconds = self._table.answer_s
        try:
            async with asyncio.timeout(seconds):
                await self._loop.create_connection(
                    lambda: ForeignProtocol(self, line), bind.host, bind.port, ssl=self._context
                )
        except TimeoutError:
            self.work(lambda: line.lost(f"{bind} did not answer within {seconds:g} s: is the address right?"))
        except (OSError, ssl.CertificateError) as error:
            reason = _reason(error)
            self.work(lambda: line.lost(reason))


def tls_context(table: InterworkingTable) -> ssl.SSLContext | None:
    """How the broker is spoken to; None: without TLS."""
    if not table.tls:
        return None
    context = ssl.create_default_context(cafile=str(table.ca) if table.ca is not None else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = table.check_names
    if table.certificate is not None:
        context.load_cert_chain(table.certificate, table.key)
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not believed ({error.verify_message}): check ca and check_names"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}): does the broker speak TLS on this port?"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there: is the broker running?"
    return str(error) or type(error).__name__
