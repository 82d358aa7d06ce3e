"""The control line: one MQTT connection to some node, dialled again for as long as the process lives.

Nodes are tried in the order of the list, and the next one when a connection ends.  Words said while there is no
connection are dropped: what matters is said again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from sterna.mqtt.client_line import ClientLine, ConnectAccepted, ConnectRefused, Denied, PublishReceived
from sterna.runtime.config.schema import Bind
from sterna.vocabulary.errors import ProtocolError

log = logging.getLogger("sterna.control")

KEEP_ALIVE_S = 20
GATEWAY_KEEP_ALIVE_S = 60
"""Gateways are many and say little.  One that loses its node asks at once whether that of its control line is there."""
ANSWER_S = 5.0
PAUSE_S = 0.2
PAUSE_MAX_S = 5.0
PACKET_BYTES_MAX = 1024 * 1024
UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""A node that takes nothing is left for the next one."""


@dataclass(frozen=True, slots=True)
class ControlAccount:
    """How a participant presents itself to nodes."""

    client_id: str
    nodes: Sequence[str]
    user: str | None = None
    password: bytes | None = None
    tls: ssl.SSLContext | None = None


class ControlLine:
    def __init__(
        self,
        account: ControlAccount,
        filters: Sequence[bytes],
        came: Callable[[bytes, bytes], None],
        boot: int,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        """`came` is told topic and payload of every message."""
        self._account = account
        self._keep_alive_s = keep_alive_s
        self._filters = list(filters)
        self._came = came
        #: Two lives of a participant are two clients, so that a node does not take one for the other.
        self._client_id = f"{account.client_id}-{boot % 2**32:08x}"
        self._turn = 0
        self._protocol: _Protocol | None = None
        self._task: asyncio.Task[None] | None = None
        self.connections = 0
        self.dropped = 0
        self.sent = self.sent_bytes = self.received = self.received_bytes = 0
        self.trouble = "not connected yet"
        """Empty while the line is up."""

    @property
    def node(self) -> str:
        """Where it is connected, or about to be."""
        return self._account.nodes[self._turn % len(self._account.nodes)]

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._protocol is not None:
            self._protocol.close()
            await asyncio.sleep(0)

    def say(self, topic: bytes, payload: bytes) -> None:
        if self._protocol is None or not self._protocol.line.is_open:
            self.dropped += 1
            return
        self.sent += 1
        self.sent_bytes += len(payload) + len(topic)
        self._protocol.write(self._protocol.line.publish(topic, payload))

    def hear(self, topic_filter: bytes) -> None:
        """One more filter, from now on."""
        if topic_filter not in self._filters:
            self._filters.append(topic_filter)
            if self._protocol is not None and self._protocol.line.is_open:
                self._protocol.write(self._protocol.line.subscribe(topic_filter))

    def doubt(self) -> None:
        """Something suggests that the node is gone: it has to answer now."""
        if self._protocol is not None:
            self._protocol.ask_for_life()

    async def _keep(self) -> None:
        pause = PAUSE_S
        while True:
            before = self.connections
            reason = await self._connect_once()
            if reason != self.trouble:
                log.warning("control line is down", extra={"node": self.node, "reason": reason})
            self.trouble = reason
            self._turn += 1
            pause = PAUSE_S if self.connections > before else min(2 * pause, PAUSE_MAX_S)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _connect_once(self) -> str:
        """Until it ends, and why it did."""
        bind, account = Bind.parse(self.node), self._account
        loop = asyncio.get_running_loop()
        line = ClientLine(
            self._client_id,
            keep_alive_s=self._keep_alive_s,
            packet_bytes=PACKET_BYTES_MAX,
            user=account.user,
            password=account.password,
        )
        protocol = _Protocol(self, line)
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.create_connection(lambda: protocol, bind.host, bind.port, ssl=account.tls)
                await protocol.accepted.wait()
        except (OSError, TimeoutError) as error:
            protocol.close()
            return protocol.reason or str(error) or "no answer"
        if protocol.reason:
            return protocol.reason
        self._protocol = protocol
        try:
            await protocol.live(self._keep_alive_s / 2)
        finally:
            self._protocol = None
            protocol.close()
        return protocol.reason

    # -- what the connection says --

    def is_up(self, protocol: _Protocol) -> None:
        self.connections += 1
        self.trouble = ""
        self._protocol = protocol
        protocol.write(protocol.line.subscribe(*self._filters))
        log.info("control line is up", extra={"node": self.node})

    def message(self, event: PublishReceived) -> None:
        self.received += 1
        self.received_bytes += len(event.payload) + len(event.topic)
        try:
            self._came(event.topic, event.payload)
        except Exception:
            log.exception("a control word was not understood")


class _Protocol(asyncio.Protocol):
    def __init__(self, owner: ControlLine, line: ClientLine) -> None:
        self._owner = owner
        self.line = line
        self.reason = ""
        self.accepted = asyncio.Event()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._received = 0
        """Times that something came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self.line.hello)

    def data_received(self, data: bytes) -> None:
        self._received += 1
        try:
            for event in self.line.feed(data):
                if isinstance(event, PublishReceived):
                    self._owner.message(event)
                elif isinstance(event, ConnectAccepted):
                    self.accepted.set()
                    self._owner.is_up(self)
                elif isinstance(event, ConnectRefused):
                    self._end(f"the node refuses: {event.reason}")
                elif isinstance(event, Denied):
                    named = ", ".join(one.decode() for one in event.filters)
                    self._end(f"the node denies {named}: name this user in its table [adaptation]")
        except ProtocolError as error:
            self._end(f"not MQTT: {error.reason}")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the node closed the connection")

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._end("the node takes nothing")

    async def live(self, pause_s: float) -> None:
        received = 0
        while not self._ended.is_set():
            try:
                await asyncio.wait_for(self._ended.wait(), pause_s)
            except TimeoutError:
                self._must_have_answered(received)
                received = self._received
                self.write(self.line.ping())

    def ask_for_life(self) -> None:
        self.write(self.line.ping())
        asyncio.get_running_loop().call_later(ANSWER_S, self._must_have_answered, self._received)

    def _must_have_answered(self, before: int) -> None:
        if self._received == before:
            self._end("the node is silent")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.accepted.set()
        self._ended.set()
        self.line.is_open = False
