"""Clients that hold out: a publisher and a subscriber at every node, at QoS 1, through the death of nodes.

A message counts once its publisher was told that it is safe.  Each of these is due to every subscriber, whatever
happened in between; what arrives more than once is allowed at QoS 1.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from sterna.experiments.clients import Client
from sterna.experiments.errors import ExperimentError
from sterna.experiments.sites import Place

FILTER = "steady/#"
ARRIVAL_S = 30.0


class SteadyClients:
    """`start`; after a node came back `comfort`; `finish`, then ask what was lost."""

    def __init__(self, places: dict[str, Place], interval_s: float) -> None:
        self._places = places
        self._interval_s = interval_s
        self.safe: dict[bytes, None] = {}
        self._heard: dict[str, set[bytes]] = {name: set() for name in places}
        self._subscribers: dict[str, Client] = {}
        self._publishers: dict[str, Client] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}
        self._number = 0

    @property
    def delivered(self) -> int:
        return sum(len(self.safe.keys() & heard) for heard in self._heard.values())

    @property
    def lost(self) -> int:
        return len(self.safe) * len(self._heard) - self.delivered

    async def start(self) -> None:
        for name in self._places:
            await self._subscribe(name)
        for name in self._places:
            self._publishing[name] = asyncio.create_task(self._publish(name))

    async def _subscribe(self, name: str) -> None:
        place, heard = self._places[name], self._heard[name]
        client = Client(f"subscriber-{name}", lambda _topic, payload: heard.add(payload))
        await client.connect(place.clients, place.host, clean=False)
        self._subscribers[name] = client
        await client.subscribe(FILTER, 1)

    async def _publish(self, name: str) -> None:
        place = self._places[name]
        client = self._publishers[name] = Client(f"publisher-{name}")
        await client.connect(place.clients, place.host)
        with suppress(ConnectionError):
            while True:
                self._number += 1
                payload = f"{self._number} {name}".encode()
                await client.publish(f"steady/{name}", payload, 1)
                self.safe[payload] = None
                await asyncio.sleep(self._interval_s)


    async def comfort(self, name: str) -> None:
        """The node is back: its clients connect again, the subscriber to the session it had."""
        await self._publishing[name]
        await self._subscribers[name].vanish()
        await self._publishers[name].vanish()
        await self._subscribe(name)
        self._publishing[name] = asyncio.create_task(self._publish(name))

    async def finish(self) -> None:
        """Publish no more; wait until everything has arrived, or cannot be hoped for any more."""
        for task in self._publishing.values():
            if task.done() and (error := task.exception()) is not None:
                raise ExperimentError(f"a publisher failed: {error}") from error
            task.cancel()
        await asyncio.gather(*self._publishing.values(), return_exceptions=True)
        deadline = time.monotonic() + ARRIVAL_S
        while self.lost and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def leave(self) -> None:
        for task in self._publishing.values():
            task.cancel()
        for client in (*self._publishers.values(), *self._subscribers.values()):
            await client.vanish()
