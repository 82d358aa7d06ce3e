"""MQTT 3.1.1 clients, many in one loop: connect, subscribe, publish at any QoS, count what comes.

A client does not connect again by itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.load.packet_client import PacketClient

CONNECT_S = 10.0

OnMessage = Callable[[str, bytes], None]


class AsyncClient(PacketClient):
    def __init__(self, name: str, on_message: OnMessage | None = None) -> None:
        super().__init__(name, version=4)
        self._on_message = on_message
        self._reading: asyncio.Task[None] | None = None

    async def connect(
        self, port: int, host: str = "127.0.0.1", *, clean: bool = True, made: socket.socket | None = None
    ) -> None:
        """`made` is the socket to do it with, if it has to be a certain one."""
        async with asyncio.timeout(CONNECT_S):
            if made is None:
                reader, writer = await asyncio.open_connection(host, port)
            else:
                made.setblocking(False)
                await asyncio.get_running_loop().sock_connect(made, (host, port))
                reader, writer = await asyncio.open_connection(sock=made)
            await self._introduce(reader, writer, clean=clean)

    async def connect_to_path(self, path: str, *, clean: bool = True) -> None:
        """Over a Unix socket."""
        async with asyncio.timeout(CONNECT_S):
            await self._introduce(*await asyncio.open_unix_connection(path), clean=clean)

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, clean: bool) -> None:
        self._writer = writer
        writer.write(packets.connect(self.name, clean=clean))
        try:
            answer = await reader.readexactly(4)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError(f"{self.name} was hung up on before CONNACK") from None
        if answer[:2] != b"\x20\x02" or answer[3]:
            raise MeasurementError(f"{self.name} was not let in: CONNACK {answer.hex()}")
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def is_connected(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Returns when the broker has taken the message over; at QoS 0, at once."""
        if not qos:
            self._send(packets.publish(topic, payload))
            return
        packet_id = self._next_id()
        await self._ask(packet_id, packets.publish(topic, payload, qos, packet_id))
        if qos == 2:
            await self._ask(packet_id, packets.acknowledgements(packets.PUBREL, [packet_id]))

    async def leave(self) -> None:
        if self._writer is None:
            return
        self._writer.write(b"\xe0\x00")
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await self._writer.drain()
        await self.vanish()

    async def vanish(self) -> None:
        """Without a word."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            # Not closed in good order: that would wait for a node which may be dead.
            self._writer.transport.abort()

    def _send(self, packet: bytes) -> None:
        if not self.is_connected:
            raise ConnectionResetError(f"{self.name} has no connection")
        super()._send(packet)

    def _heard(self, topic: str, payload: bytes, qos: int, again: bool) -> None:
        if self._on_message is not None:
            self._on_message(topic, payload)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._listen(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError(f"{self.name} lost its connection"))
