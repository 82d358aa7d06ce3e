"""MQTT 3.1.1 clients of an experiment, many in one loop: connect, subscribe, publish at any QoS, count what comes.

They share no packet code with the broker.  A client does not connect again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from struct import pack

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets

CONNECT_S = 10.0
ANSWER_S = 30.0
PACKET_ID_MAX = 0xFFFF

OnMessage = Callable[[str, bytes], None]


class AsyncClient:
    def __init__(self, name: str, heard: OnMessage | None = None) -> None:
        self.name = name
        self._heard = heard
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._received: set[int] = set()
        self._packet_id = 0

    async def connect(self, port: int, host: str = "127.0.0.1", *, clean: bool = True) -> None:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
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

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        packet_id = self._next_id()
        answer = await self._ask(packet_id, packets.subscribe(packet_id, [topic_filter], qos))
        if answer[4:] != bytes((qos,)):
            raise MeasurementError(f"{self.name} may not subscribe to {topic_filter}: SUBACK {answer.hex()}")

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

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % PACKET_ID_MAX + 1
        return self._packet_id

    async def _ask(self, packet_id: int, packet: bytes) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[packet_id] = answer
        try:
            self._send(packet)
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise MeasurementError(f"{self.name} got no answer within {ANSWER_S:g} s") from None
        finally:
            self._waiting.pop(packet_id, None)

    def _send(self, packet: bytes) -> None:
        if self._writer is None or not self.is_connected:
            raise ConnectionResetError(f"{self.name} has no connection")
        self._writer.write(packet)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                first = await reader.readexactly(2)
                length, shift = first[1] & 0x7F, 7
                head = first
                while head[-1] & 0x80:
                    head += await reader.readexactly(1)
                    length |= (head[-1] & 0x7F) << shift
                    shift += 7
                self._take(first[0], await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError(f"{self.name} lost its connection"))

    def _take(self, header: int, body: bytes) -> None:
        kind = header >> 4
        if kind == 3:
            self._message(header >> 1 & 3, body)
        elif kind == packets.PUBREL >> 4:
            self._received.discard(int.from_bytes(body[:2], "big"))
            self._send(pack(">BB", packets.PUBCOMP, 2) + body[:2])
        elif len(body) >= 2:
            answer = self._waiting.get(int.from_bytes(body[:2], "big"))
            if answer is not None and not answer.done():
                answer.set_result(bytes((header, len(body))) + body)

    def _message(self, qos: int, body: bytes) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        topic, start = body[2:end].decode(), end + (2 if qos else 0)
        packet_id = int.from_bytes(body[end:start], "big")
        if qos == 2:
            self._send(packets.acknowledgements(packets.PUBREC, [packet_id]))
            if packet_id in self._received:
                return
            self._received.add(packet_id)
        if self._heard is not None:
            self._heard(topic, body[start:])
        if qos == 1:
            self._send(packets.acknowledgements(packets.PUBACK, [packet_id]))
