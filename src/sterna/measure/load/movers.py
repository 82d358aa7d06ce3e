"""A subscriber that goes where it is sent, MQTT 3.1.1 or 5, and notes everything it hears.

It keeps what MQTT has a client keep of a session (identifiers of QoS 2 not released yet), follows a Server Reference,
and without one goes to the address it was given for this case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import pack
from typing import NamedTuple

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.load.packet_client import ANSWER_S, PacketClient, read_packet, variable, with_properties

RETRY_S = 0.05
EXPIRY_S = 3600
SERVER_REFERENCE = 0x1C
MOVED = (0x9C, 0x9D)
"""Use another server, server moved."""

Address = tuple[str, int]
OpenConnection = Callable[[Address], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class HeardMessage(NamedTuple):
    at: float
    topic: str
    payload: bytes
    qos: int
    again: bool
    """Marked as sent before."""
    via: Address


class ClientArrival(NamedTuple):
    """It was let in somewhere."""

    at: float
    where: Address
    present: bool
    """It found its session there."""


class MovingClient(PacketClient):
    """`start`, `subscribe`, and it follows until `leave`; `heard` and `arrivals` tell the story."""

    def __init__(self, name: str, version: int, open_: OpenConnection, *, elsewhere: Address | None = None) -> None:
        super().__init__(name, version)
        self._open = open_
        self._filters: dict[str, int] = {}
        #: Where to go when a connection ends without a word.
        self.elsewhere = elsewhere
        self.heard: list[HeardMessage] = []
        self.arrivals: list[ClientArrival] = []
        self._where: Address = ("", 0)
        self._living: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._reference: Address | None = None

    async def start(self, where: Address) -> None:
        self._where = where
        reader = await self._connect()
        self._living = asyncio.create_task(self._live(reader))

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._filters[topic_filter] = qos
        await super().subscribe(topic_filter, qos)

    async def arrives(self, where: Address, within_s: float) -> float | None:
        """When it was let in there; None: not in this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    for arrival in self.arrivals:
                        if arrival.where == where:
                            return arrival.at
                    self._news.clear()
                    await self._news.wait()
        return None

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    async def arrives_again(self, before: int) -> None:
        """Until it has been let in more often than before."""
        while len(self.arrivals) <= before:
            self._news.clear()
            await self._news.wait()

    def go(self, where: Address) -> None:
        """There, at once and without a word to where it is."""
        self._reference = where
        if self._writer is not None:
            self._writer.transport.abort()

    async def hears(self, messages: int) -> None:
        """Until it has heard so many different ones."""
        different: set[bytes] = set()
        seen = 0
        while True:
            different.update(heard.payload for heard in self.heard[seen:])
            seen = len(self.heard)
            if len(different) >= messages:
                return
            self._news.clear()
            await self._news.wait()

    async def hears_nothing_for(self, quiet_s: float) -> None:
        """Until nothing has come for so long: repetitions may follow what they repeat."""
        while True:
            self._news.clear()
            try:
                async with asyncio.timeout(quiet_s):
                    await self._news.wait()
            except TimeoutError:
                return

    async def leave(self) -> None:
        """For good: nothing is to wait for it anywhere."""
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
        if self._writer is not None:
            with suppress(OSError):
                if self._version == 5:
                    self._writer.write(b"\xe0\x07\x00\x05\x11" + pack(">I", 0))
                else:
                    self._writer.write(b"\xe0\x00")
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
            self._writer = None

    async def forget(self) -> None:
        """Leave, and end the session, which MQTT 3.1.1 does by beginning another."""
        await self.leave()
        if self._version == 4:
            with suppress(OSError, EOFError, MeasurementError, TimeoutError):
                await self._connect(clean=True)
            await self.leave()

    # -- its life --

    async def _live(self, reader: asyncio.StreamReader) -> None:
        while True:
            with suppress(asyncio.IncompleteReadError, OSError):
                await self._listen(reader)
            if self._writer is not None:
                self._writer.transport.abort()
                self._writer = None
            self._where = self._reference or self.elsewhere or self._where
            self._reference = None
            while True:
                try:
                    reader = await self._connect()
                    if not self.arrivals[-1].present:
                        self._subscribe_again()
                    break
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    await asyncio.sleep(RETRY_S)
                    self._where = self._reference or self._where

    def _subscribe_again(self) -> None:
        """Its session is gone: it says again what it wants."""
        self._unreleased.clear()
        for topic_filter, qos in self._filters.items():
            self._send(self._subscription(self._next_id(), topic_filter, qos))

    async def _connect(self, *, clean: bool = False) -> asyncio.StreamReader:
        async with asyncio.timeout(ANSWER_S):
            where = self._where
            reader, writer = await self._open(where)
            try:
                writer.write(_connect(self.name, self._version, clean))
                header, body = await read_packet(reader)
                if header != 0x20 or body[1]:
                    if header == 0x20 and body[1] in MOVED:
                        self._reference = _server_reference(body[2:])
                    raise ConnectionRefusedError(f"{self.name} was not let in: {header:02x} {body.hex()}")
            except BaseException:
                writer.transport.abort()
                raise
        self._writer = writer
        self.arrivals.append(ClientArrival(time.time(), where, bool(body[0] & 1)))
        self._news.set()
        return reader

    def _dismissed(self, body: bytes) -> None:
        self._reference = _server_reference(body[1:]) if body and body[0] in MOVED else None

    def _heard(self, topic: str, payload: bytes, qos: int, again: bool) -> None:
        self.heard.append(HeardMessage(time.time(), topic, payload, qos, again, self._where))
        self._news.set()


# -- packets --


def _connect(name: str, version: int, clean: bool) -> bytes:
    plain = packets.connect(name, clean=clean)
    if version == 4:
        return plain
    expiry = b"\x11" + pack(">I", EXPIRY_S)
    # The protocol's version is the seventh byte of the body; properties follow the keep-alive.
    packet = bytearray(with_properties(plain, 10, expiry))
    packet[8] = 5
    return bytes(packet)


def _server_reference(data: bytes) -> Address | None:
    """Where the properties at the beginning of this send us; only strings come before a Server Reference here."""
    if not data:
        return None
    length, place = variable(data, 0)
    end = place + length
    while place < end:
        kind, size = data[place], _property_bytes(data, place)
        if kind == SERVER_REFERENCE:
            host, _, port = data[place + 3 : place + size].decode().split()[0].rpartition(":")
            return host.strip("[]"), int(port)
        place += size
    return None


_FIXED = {0x11: 5, 0x13: 3, 0x21: 3, 0x22: 3, 0x24: 2, 0x25: 2, 0x27: 5, 0x28: 2, 0x29: 2, 0x2A: 2}
"""Sizes of properties of CONNACK and DISCONNECT that are numbers, with their identifier."""


def _property_bytes(data: bytes, place: int) -> int:
    kind = data[place]
    if kind in _FIXED:
        return _FIXED[kind]
    size = 3 + int.from_bytes(data[place + 1 : place + 3], "big")
    if kind == 0x26:  # a user property is two strings
        size += 2 + int.from_bytes(data[place + size : place + size + 2], "big")
    return size
