"""A switch between tunnel devices that holds every packet for as long as its way is meant to take.

Packets of one way keep their order in spite of the jitter: to be overtaken would be another experiment.  Packets to a
multicast group go to everybody.  Cables may be slow, and may be cut.
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
MULTICAST = 0xE0
"""The highest bits of a group's address."""

Delay = Callable[[int, int], float]
"""Seconds from one place to another, by number; asked for every packet."""

Tap = Callable[[float, int, int, bytes], None]
"""Shown every packet once as it sets out: when (seconds since 1970), from which place, to which (-1: to all), and its
bytes from the header of IP on.  It runs in the thread of the switch."""


class Cables:
    """The cables between places and the switch: how many bits a second they carry each way (0: any number), which of
    them are cut, and until when they are busy.  May be cut and mended while packets are under way."""

    def __init__(self, bits_per_s: float = 0.0) -> None:
        self._bits_per_s = bits_per_s
        self._busy_until: dict[tuple[str, int], float] = {}
        self._cut: set[int] = set()

    def cut(self, place: int) -> None:
        """Nothing comes from this place or gets there any more, and nobody is told."""
        self._cut.add(place)

    def mend(self, place: int) -> None:
        self._cut.discard(place)

    def are_whole(self, source: int, target: int) -> bool:
        return source not in self._cut and target not in self._cut

    def through(self, source: int, target: int, size: int, now: float) -> float:
        """When a packet that is sent now has passed both cables."""
        for cable in (("up", source), ("down", target)) if self._bits_per_s else ():
            now = max(now, self._busy_until.get(cable, 0.0)) + 8 * size / self._bits_per_s
            self._busy_until[cable] = now
        return now


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

    def __init__(self, devices: list[int], delay: Delay, cables: Cables | None = None, tap: Tap | None = None) -> None:
        super().__init__(name="switch", daemon=True)
        self._tap = tap
        self._devices = devices
        self._delay = delay
        self._cables = cables or Cables()
        self._tap = tap
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
        is_for_all = packet[16] & 0xF0 == MULTICAST
        targets = range(len(self._devices)) if is_for_all else [packet[19] - 1]
        if self._tap is not None:
            self._tap(time.time(), source, -1 if is_for_all else targets[0], packet)
        for target in targets:
            if 0 <= target < len(self._devices) and target != source and self._cables.are_whole(source, target):
                self._hold(source, target, packet)

    def _hold(self, source: int, target: int, packet: bytes) -> None:
        self._count += 1
        way = source, target
        passed = self._cables.through(source, target, len(packet), time.monotonic())
        due = max(passed + self._delay(*way), self._last.get(way, 0.0))
        self._last[way] = due
        heapq.heappush(self._held, (due, self._count, target, packet))

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._held)
            try:
                os.write(self._devices[target], packet)
            except OSError:
                continue  # Its device is full or gone: lost, as on any network.
