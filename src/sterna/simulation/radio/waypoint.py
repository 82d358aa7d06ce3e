"""Random waypoint mobility: each station walks straight to a random point of the square, then to another.

The speed is the same for all and constant, without pauses.  Stations begin anywhere in the square with equal
probability, as Castalia places them, and nothing is left out while they gather in the middle.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray


class Waypoints:
    def __init__(self, stations: int, side_m: float, speed_m_s: float, rng: Random) -> None:
        self._dice = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
        self._side_m = side_m
        self._speed = speed_m_s
        self._start = self._dice.uniform(0, side_m, (stations, 2))
        self._target = self._start.copy()
        self._velocity = np.zeros((stations, 2))
        self._begun = np.zeros(stations)
        self._until = np.zeros(stations) if speed_m_s else np.full(stations, np.inf)
        self.legs_m: list[float] = []
        """The lengths of all ways so far."""

    def positions(self, now: float) -> NDArray[np.float64]:
        """At this instant, which is not before that of the last call."""
        for station in np.nonzero(self._until <= now)[0]:
            while self._until[station] <= now:
                self._turn(int(station))
        found: NDArray[np.float64] = self._start + self._velocity * (now - self._begun)[:, None]
        return found

    def _turn(self, station: int) -> None:
        here = self._target[station].copy()
        target = self._dice.uniform(0, self._side_m, 2)
        length = float(np.hypot(*(target - here)))
        self.legs_m.append(length)
        self._start[station] = here
        self._target[station] = target
        self._velocity[station] = (target - here) * (self._speed / length)
        self._begun[station] = self._until[station]
        self._until[station] += length / self._speed
