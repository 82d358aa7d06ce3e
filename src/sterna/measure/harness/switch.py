"""A switch between tunnel devices that holds every packet for as long as its way is meant to take.

Packets of one way keep their order in spite of the jitter: to be overtaken would be another experiment.
"""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections.abc import Callable
from random import Random

PACKET_BYTES_MAX = 2048

Delay = Callable[[int, int], float]
"""Seconds from one place to another, by number; asked for every packet."""


class Distances:
    """Seconds between pairs of places, one way, plus or minus a jitter; what is not named is no distance.

    May be changed while packets are under way.
    """

    def __init__(self, jitter_s: float, rng: Random) -> None:
        self._ways: dict[tuple[int, int], float] = {}
        self._jitter_s = jitter_s
        self._rng = rng

    def put(self, source: int, target: int, there_s: float, back_s: float | None = None) -> None:
        self._ways[source, target] = there_s
        self._ways[target, source] = there_s if back_s is None else back_s

    def __call__(self, source: int, target: int) -> float:
        way = self._ways.get((source, target), 0.0)
        return max(0.0, way + self._rng.uniform(-self._jitter_s, self._jitter_s)) if way else 0.0


class Switch(threading.Thread):
    """Passes IPv4 packets between tunnel devices; the last byte of an address says which device it is at, from 1."""

    def __init__(self, devices: list[int], delay: Delay) -> None:
        super().__init__(name="switch", daemon=True)
        self._devices = devices
        self._delay = delay
        self._held: list[tuple[float, int, int, bytes]] = []
        #: When the last packet of each way is let go.
        self._last: dict[tuple[int, int], float] = {}
        self._count = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            wait = max(0.0, min(0.1, self._held[0][0] - now)) if self._held else 0.1
            for device in select.select(self._devices, (), (), wait)[0]:
                self._take(self._devices.index(device))
            self._release(time.monotonic())

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _take(self, source: int) -> None:
        try:
            packet = os.read(self._devices[source], PACKET_BYTES_MAX)
        except (BlockingIOError, OSError):
            return
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        target = packet[19] - 1
        if 0 <= target < len(self._devices) and target != source:
            self._count += 1
            way = source, target
            due = max(time.monotonic() + self._delay(*way), self._last.get(way, 0.0))
            self._last[way] = due
            heapq.heappush(self._held, (due, self._count, target, packet))

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._held)
            try:
                os.write(self._devices[target], packet)
            except OSError:
                continue  # Its device is full or gone: lost, as on any network.
