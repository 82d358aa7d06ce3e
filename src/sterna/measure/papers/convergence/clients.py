"""Clients that hold out: a publisher and a subscriber at every node, at QoS 1, through the death of nodes.

A message counts once its publisher was told that it is safe.  Each of these is due to every subscriber,
in spite of all failures in between; what arrives more than once is allowed at QoS 1.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.sites import NodePlace
from sterna.measure.load.clients import AsyncClient

FILTER = "steady/#"
ARRIVAL_S = 30.0


class SteadyClients:
    """`start`; after a node came back `comfort`; `finish`, then ask what was lost."""

    def __init__(self, places: dict[str, NodePlace], interval_s: float) -> None:
        self._places = places
        self._interval_s = interval_s
        self.safe: dict[bytes, None] = {}
        self._heard: dict[str, set[bytes]] = {name: set() for name in places}
        self._subscribers: dict[str, AsyncClient] = {}
        self._publishers: dict[str, AsyncClient] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}
        self._number = 0
        #: Connections of subscribers that broke though their node lived.
        self.interrupted = 0
        self._finishing = False
        self._complete = asyncio.Event()

    @property
    def delivered(self) -> int:
        return sum(len(self.safe.keys() & heard) for heard in self._heard.values())

    @property
    def lost(self) -> int:
        return len(self.safe) * len(self._heard) - self.delivered

    def missing(self) -> dict[str, int]:
        """Lost messages, by the way they had to go: "publisher's node -> subscriber's node"."""
        counted: dict[str, int] = {}
        for name, heard in self._heard.items():
            for payload in self.safe.keys() - heard:
                way = f"{payload.split()[1].decode()} -> {name}"
                counted[way] = counted.get(way, 0) + 1
        return dict(sorted(counted.items()))

    async def start(self) -> None:
        for name in self._places:
            await self._subscribe(name)
        for name in self._places:
            self._publishing[name] = asyncio.create_task(self._publish(name))

    async def _subscribe(self, name: str) -> None:
        place = self._places[name]
        client = AsyncClient(f"subscriber-{name}", lambda _topic, payload: self._hear(name, payload))
        await client.connect(place.clients, place.host, clean=False)
        self._subscribers[name] = client
        await client.subscribe(FILTER, 1)

    def _hear(self, name: str, payload: bytes) -> None:
        self._heard[name].add(payload)
        if self._finishing:
            self._look()

    def _look(self) -> None:
        if not self.lost:
            self._complete.set()

    async def _publish(self, name: str) -> None:
        place = self._places[name]
        client = self._publishers[name] = AsyncClient(f"publisher-{name}")
        with suppress(ConnectionError):  # its node is killed, perhaps at this very moment
            await client.connect(place.clients, place.host)
            while not self._finishing:
                self._number += 1
                payload = f"{self._number} {name}".encode()
                await client.publish(f"steady/{name}", payload, 1)
                self.safe[payload] = None
                await asyncio.sleep(self._interval_s)

    async def give_up(self, name: str) -> None:
        """The node is dead; where nobody says so, its clients find out here."""
        await self._publishers[name].vanish()
        await self._subscribers[name].vanish()

    async def comfort(self, name: str) -> None:
        """The node is back: its clients connect again, the subscriber to the session it had."""
        await self._publishing[name]
        await self._subscribers[name].vanish()
        await self._publishers[name].vanish()
        await self._subscribe(name)
        self._publishing[name] = asyncio.create_task(self._publish(name))

    async def finish(self) -> None:
        """Publish no more; wait until everything has arrived, or cannot be hoped for any more."""
        early = [name for name, task in self._publishing.items() if task.done()]
        if early:
            raise MeasurementError(f"nodes that were not killed have lost their publisher: {', '.join(early)}")
        self._finishing = True
        await asyncio.gather(*self._publishing.values())
        await self._revive()
        self._complete.clear()
        self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                await self._complete.wait()

    async def _revive(self) -> None:
        """A subscriber whose node lived but let it go has its messages waiting in its session."""
        for name, client in list(self._subscribers.items()):
            if not client.is_connected:
                self.interrupted += 1
                await client.vanish()
                await self._subscribe(name)

    async def leave(self) -> None:
        for task in self._publishing.values():
            task.cancel()
        for client in (*self._publishers.values(), *self._subscribers.values()):
            await client.vanish()
