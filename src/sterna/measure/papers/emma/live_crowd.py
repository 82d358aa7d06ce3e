"""Plain clients behind a gateway, and the books of what they are owed.

A subscriber is owed every message whose publication began after its SUBACK and was acknowledged before it began to
leave.  Half of the publishers publish at QoS 1, the others at QoS 2; subscriptions are at QoS 2.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean
from typing import Final

from sterna.measure.errors import MeasurementError
from sterna.measure.load.clients import AsyncClient
from sterna.measure.papers.emma.playbooks import Crowd
from sterna.measure.papers.emma.records import TopicSecond, TownAccount

CONNECT_S: Final = 600.0
"""A gateway gets so long to be there."""
OWED_S: Final = 60.0
"""Messages that are owed have so long to come once a client leaves."""
LOOK_S: Final = 0.05


class TownBooks:
    """Of a whole run."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._begun: defaultdict[str, dict[bytes, float]] = defaultdict(dict)
        """Topic: when the publication of each message began."""
        self._acknowledged: dict[bytes, float] = {}
        self._heard: defaultdict[tuple[int, str, str, str], list[float]] = defaultdict(list)
        self._counts = Counter[str]()
        self._bytes = 0
        self.problems: list[str] = []

    def now(self) -> float:
        return time.monotonic() - self._began

    def begins(self, topic: str, message: bytes) -> None:
        self._begun[topic][message] = self.now()

    def acknowledged(self, message: bytes) -> None:
        self._acknowledged[message] = self.now()
        self._counts["published"] += 1
        self._bytes += len(message)

    def heard(self, topic: str, subscriber: str, message: bytes) -> None:
        at_s = self.now()
        publisher = message.split(b" ", 1)[0].decode()
        self._heard[int(at_s), topic, publisher, subscriber].append(1000 * (at_s - self._begun[topic][message]))
        self._counts["delivered"] += 1
        self._bytes += len(message)

    def owed(self, topic: str, since: float, until: float) -> set[bytes]:
        late = float("inf")
        return {
            message
            for message, begun in self._begun[topic].items()
            if begun > since and self._acknowledged.get(message, late) < until
        }

    def settled(self, lost: int, twice: int) -> None:
        self._counts.update(lost=lost, twice=twice)

    def disconnected(self, client: str) -> None:
        self._counts["disconnected"] += 1
        self.problems.append(f"{client} lost its connection after {self.now():.1f} s")

    def account(self) -> TownAccount:
        return TownAccount(**self._counts)

    def traffic(self) -> tuple[int, int]:
        """Messages that clients published and that they were given, and their bytes."""
        return self._counts["published"] + self._counts["delivered"], self._bytes

    def second(self, number: int) -> list[TopicSecond]:
        """Of messages that came in that second."""
        keys = [key for key in self._heard if key[0] == number]
        found = [TopicSecond(*key[1:], fmean(self._heard[key]), len(self._heard[key])) for key in sorted(keys)]
        for key in keys:
            del self._heard[key]
        return found


class _CrowdSubscriber:
    def __init__(self, name: str, gateway: str, topic: str, books: TownBooks) -> None:
        self.client = AsyncClient(name, self._on_message)
        self._gateway = gateway
        self._topic = topic
        self._books = books
        self._given = Counter[bytes]()
        self._since = 0.0
        self._owed: set[bytes] = set()
        """Known once it leaves."""
        self._has_all = asyncio.Event()

    async def come(self, path: str) -> None:
        await self.client.connect_to_path(path)
        await self.client.subscribe(self._topic, 2)
        self._since = self._books.now()

    async def settle(self) -> None:
        """Wait for what is owed."""
        self._owed = self._books.owed(self._topic, self._since, self._books.now()) - self._given.keys()
        if self._owed:
            self._has_all.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_all.wait(), OWED_S)
        twice = sum(count > 1 for message, count in self._given.items() if b" 2 " in message)
        self._books.settled(len(self._owed), twice)

    def _on_message(self, topic: str, payload: bytes) -> None:
        self._given[payload] += 1
        self._owed.discard(payload)
        if not self._owed:
            self._has_all.set()
        self._books.heard(topic, self._gateway, payload)


class _CrowdPublisher:
    def __init__(self, name: str, gateway: str, topic: str, qos: int, every_s: float, books: TownBooks) -> None:
        self.client = AsyncClient(name)
        self._words = f"{gateway} {name}"
        self._topic = topic
        self._qos = qos
        self._every_s = every_s
        self._books = books

    async def publish_until(self, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            message = f"{self._words} {self._qos} {number}".encode()
            self._books.begins(self._topic, message)
            began = self._books.now()
            try:
                await self.client.publish(self._topic, message, self._qos)
            except (ConnectionError, MeasurementError) as error:
                self._books.problems.append(str(error))
                return
            self._books.acknowledged(message)
            rest = self._every_s - (self._books.now() - began)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(rest, 0.001))


class LiveCrowd:
    """The clients behind one gateway."""

    def __init__(self, gateway: str, crowd: Crowd, books: TownBooks) -> None:
        topic, every_s = crowd.topic, 1 / crowd.per_s
        self._books = books
        self._is_there, self._over = asyncio.Event(), asyncio.Event()
        self._subscribers = [
            _CrowdSubscriber(f"{gateway}/s{number}", gateway, topic, books) for number in range(crowd.subscribers)
        ]
        self._publishers = [
            _CrowdPublisher(f"{gateway}/p{number}", gateway, topic, 1 + number % 2, every_s, books)
            for number in range(crowd.publishers)
        ]
        self._publishing: list[asyncio.Task[None]] = []

    @property
    def _clients(self) -> list[AsyncClient]:
        return [one.client for one in self._subscribers] + [one.client for one in self._publishers]

    async def come(self, path: str, is_there: Callable[[], None]) -> None:
        """`is_there` raises if the gateway is not running."""
        async with asyncio.timeout(CONNECT_S):
            await self._connected(path, is_there)
            for one in self._subscribers:
                await one.come(path)
            for publisher in self._publishers:
                await publisher.client.connect_to_path(path)
        self._publishing = [asyncio.create_task(one.publish_until(self._over)) for one in self._publishers]
        self._is_there.set()

    async def _connected(self, path: str, is_there: Callable[[], None]) -> None:
        while True:
            is_there()
            with suppress(OSError):
                _, writer = await asyncio.open_unix_connection(path)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(LOOK_S)

    async def leave(self) -> None:
        """Nobody leaves before it has come, and has what it is owed."""
        await self._is_there.wait()
        self._over.set()
        await asyncio.gather(*self._publishing)
        await asyncio.gather(*(one.settle() for one in self._subscribers))
        for client in self._clients:
            if not client.is_connected:
                self._books.disconnected(client.name)
            await client.leave()
        await asyncio.sleep(0)  # sockets close with the next turn of the loop
