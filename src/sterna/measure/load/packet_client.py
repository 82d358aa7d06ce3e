"""The packets of every asyncio client here, MQTT 3.1.1 or 5: it subscribes, takes messages at any QoS and answers them.

It shares no packet code with the broker.
"""

from __future__ import annotations

import asyncio
from struct import pack

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets

ANSWER_S = 30.0
PACKET_ID_MAX = 0xFFFF
PUBLISH, DISCONNECT = 3, 14
"""Kinds of packets."""


class PacketClient:
    """A connection is opened by those that inherit; `_listen` reads it to its end."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self._version = version
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        #: Identifiers at QoS 2 whose message was taken and that may come again.
        self._unreleased: set[int] = set()
        self._packet_id = 0

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        packet_id = self._next_id()
        answer = await self._ask(packet_id, self._subscription(packet_id, topic_filter, qos))
        if answer[-1] != qos:
            raise MeasurementError(f"{self.name} may not subscribe to {topic_filter}: SUBACK {answer.hex()}")

    def _subscription(self, packet_id: int, topic_filter: str, qos: int) -> bytes:
        packet = packets.subscribe(packet_id, [topic_filter], qos)
        return packet if self._version == 4 else with_properties(packet, 2)

    def _heard(self, topic: str, payload: bytes, qos: int, again: bool) -> None:
        """A message came; `again`: marked as sent before."""

    def _dismissed(self, body: bytes) -> None:
        """The broker sent DISCONNECT."""

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % PACKET_ID_MAX + 1
        return self._packet_id

    async def _ask(self, packet_id: int, packet: bytes) -> bytes:
        """The body of the answer."""
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
        if self._writer is None:
            raise ConnectionResetError(f"{self.name} has no connection")
        self._writer.write(packet)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Until the broker sends DISCONNECT; a connection that ends otherwise raises."""
        while True:
            header, body = await read_packet(reader)
            kind = header >> 4
            if kind == PUBLISH:
                self._message(header, body)
            elif kind == packets.PUBREL >> 4:
                self._unreleased.discard(int.from_bytes(body[:2], "big"))
                self._send(pack(">BB", packets.PUBCOMP, 2) + body[:2])
            elif kind == DISCONNECT:
                self._dismissed(body)
                return
            elif len(body) >= 2:
                answer = self._waiting.get(int.from_bytes(body[:2], "big"))
                if answer is not None and not answer.done():
                    answer.set_result(body)

    def _message(self, header: int, body: bytes) -> None:
        qos = header >> 1 & 3
        end = 2 + int.from_bytes(body[:2], "big")
        start = end + (2 if qos else 0)
        packet_id = int.from_bytes(body[end:start], "big")
        if self._version == 5:
            length, start = variable(body, start)
            start += length
        if qos < 2 or packet_id not in self._unreleased:
            self._heard(body[2:end].decode(), body[start:], qos, bool(header & 8))
        if qos == 1:
            self._send(packets.acknowledgements(packets.PUBACK, [packet_id]))
        elif qos == 2:
            self._unreleased.add(packet_id)
            self._send(packets.acknowledgements(packets.PUBREC, [packet_id]))


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """First byte and body."""
    header = (await reader.readexactly(1))[0]
    length, shift = 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return header, await reader.readexactly(length)


def with_properties(packet: bytes, after: int, properties: bytes = b"") -> bytes:
    """The same packet with properties after so many bytes of its body."""
    body = packet[2:]
    body = body[:after] + bytes((len(properties),)) + properties + body[after:]
    if len(body) > packets.SMALL:
        raise MeasurementError("a client identifier or a filter is too long for this client")
    return bytes((packet[0], len(body))) + body


def variable(data: bytes, place: int) -> tuple[int, int]:
    """A variable byte integer and the place after it."""
    value, shift = 0, 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
