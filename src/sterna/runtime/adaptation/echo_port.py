"""Echoes over sockets: the port of a worker that answers pings, and the client of whoever measures.

Both speak UDP, and TCP on the same port number where datagrams are blocked: echoes are of one size, so a stream of them
needs no framing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from sterna.overlay.echoes import ECHO_BYTES
from sterna.runtime.config.schema import Bind, Unusable
from sterna.vocabulary.errors import ConfigurationError

CONNECTIONS_MAX = 256
"""TCP connections an echo port keeps; past this the oldest goes."""
CLIENTS_MAX = 64
"""TCP connections of one who measures."""
DIAL_S = 3.0
TICK_S = 0.05

Answer = Callable[[bytes, str, float], bytes | None]


class EchoPort:
    """`answer` is given a datagram, its source and the time."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._udp: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self.connections: dict[asyncio.Transport, None] = {}

    async def start(self, bind: Bind) -> Bind:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _EchoStream(self), bind.host, bind.port)
            port = self._server.sockets[0].getsockname()[1]
            transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=(bind.host, port))
        except OSError as error:
            raise ConfigurationError(f"the echo port cannot listen on {bind}: {error.strerror}; set another") from error
        self._udp = transport
        return Bind(bind.host, port)

    def answer(self, data: bytes, source: str) -> bytes | None:
        return self._answer(data, source, time.monotonic())

    def stop(self) -> None:
        if self._udp is not None:
            self._udp.close()
        if self._server is not None:
            self._server.close()
        for transport in list(self.connections):
            transport.abort()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, port: EchoPort) -> None:
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._port.answer(data, addr[0])
        if answer is not None:
            self._transport.sendto(answer, addr)


class _EchoStream(asyncio.Protocol):
    def __init__(self, port: EchoPort) -> None:
        self._port = port
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._source = str(peer[0]) if peer else ""
        connections = self._port.connections
        connections[self._transport] = None
        if len(connections) > CONNECTIONS_MAX:
            next(iter(connections)).abort()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= ECHO_BYTES:
            answer = self._port.answer(data[:ECHO_BYTES], self._source)
            if answer is None:
                self._transport.abort()
                return
            self._transport.write(answer)
            data = data[ECHO_BYTES:]
        self._rest = data

    def connection_lost(self, error: Exception | None) -> None:
        self._port.connections.pop(self._transport, None)


class RecentLag:
    """How late this loop runs what is due, lately."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.seconds = max(time.monotonic() - due, 0.0)


class EchoClient:
    """Sends pings and hands on what comes back."""

    def __init__(self, came: Callable[[bytes], None]) -> None:
        self._came = came
        self._sockets: dict[str, asyncio.DatagramTransport] = {}
        self._streams: dict[str, asyncio.Transport] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self.sent_bytes = self.received_bytes = 0

    def came(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self._came(data)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        for family, host in (("4", "0.0.0.0"), ("6", "::")):
            try:
                transport, _ = await loop.create_datagram_endpoint(lambda: _Pongs(self), local_addr=(host, 0))
            except OSError:
                continue  # a machine without this family
            self._sockets[family] = transport

    def send(self, address: str, data: bytes, *, by_tcp: bool) -> None:
        try:
            bind = Bind.parse(address)
        except Unusable:
            return
        self.sent_bytes += len(data)
        if by_tcp:
            self._send_stream(address, bind, data)
            return
        socket = self._sockets.get("6" if ":" in bind.host else "4")
        if socket is not None:
            # A name would be looked up in the loop's own thread: workers are told by address.
            host = "127.0.0.1" if bind.host == "localhost" else bind.host
            try:
                socket.sendto(data, (host, bind.port))
            except (OSError, ValueError):
                return

    def _send_stream(self, address: str, bind: Bind, data: bytes) -> None:
        stream = self._streams.get(address)
        if stream is not None and not stream.is_closing():
            stream.write(data)
        elif address not in self._dialling and len(self._streams) < CLIENTS_MAX:
            # This ping goes nowhere: its round trip would hold that of the handshake.
            task = self._dialling[address] = asyncio.get_running_loop().create_task(self._dial(address, bind))
            task.add_done_callback(lambda _: self._dialling.pop(address, None))

    async def _dial(self, address: str, bind: Bind) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_S):
                transport, _ = await loop.create_connection(lambda: _Back(self, address), bind.host, bind.port)
        except (OSError, TimeoutError):
            return
        self._streams[address] = transport

    def ended(self, address: str) -> None:
        self._streams.pop(address, None)

    def close(self) -> None:
        for task in self._dialling.values():
            task.cancel()
        for transport in (*self._sockets.values(), *self._streams.values()):
            transport.close()


class _Pongs(asyncio.DatagramProtocol):
    def __init__(self, client: EchoClient) -> None:
        self._client = client

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._client.came(data)


class _Back(asyncio.Protocol):
    def __init__(self, client: EchoClient, address: str) -> None:
        self._client = client
        self._address = address
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= ECHO_BYTES:
            self._client.came(data[:ECHO_BYTES])
            data = data[ECHO_BYTES:]
        self._rest = data

    def connection_lost(self, error: Exception | None) -> None:
        self._client.ended(self._address)
