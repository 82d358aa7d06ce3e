"""How a participant learns its coordinate: Vivaldi, with height, median filter, adjustment and gravity.

A participant moves its own coordinate a little with every round trip it measures to another whose coordinate it knows.
Nobody else's moves.  Input that makes no sense changes nothing and is counted by reason; should sound input ever add up
to nonsense, the coordinate begins again at the origin rather than spread it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from enum import StrEnum
from math import hypot, isfinite
from operator import sub
from random import Random

from sterna.overlay.coordinates import ERROR_MAX, FAR_S, Coordinate
from sterna.overlay.vivaldi_settings import DEFAULT, VivaldiSettings

NEAR_S = 1e-6
"""A shorter round trip counts as this one."""
PEERS_MAX = 128
"""Peers whose last round trips are kept; the one not measured for longest is forgotten."""

Vector = tuple[float, ...]


class RefusedSample(StrEnum):
    """Reasons for which a sample changes nothing."""

    COORDINATE = "coordinate"
    ROUND_TRIP = "round-trip"
    RESET = "reset"
    """Not the sample's fault: the own coordinate had become nonsense and begins again."""


class Vivaldi:
    """The coordinate of one participant."""

    def __init__(
        self, rng: Random, settings: VivaldiSettings = DEFAULT, *, remembered: Coordinate | None = None
    ) -> None:
        self._rng = rng
        self._settings = settings
        self._origin = Coordinate((0.0,) * settings.dimensions, settings.height_least_s)
        self._samples: dict[str, deque[float]] = {}
        self._places: dict[str, Coordinate] = {}
        self._remainders: deque[float] = deque(maxlen=settings.adjustment_window)
        self.coordinate = self._origin
        self.refusals: Counter[RefusedSample] = Counter()
        if remembered is not None:
            self._begin_at(remembered)

    @property
    def refused(self) -> int:
        """Samples that made no sense."""
        return self.refusals[RefusedSample.COORDINATE] + self.refusals[RefusedSample.ROUND_TRIP]

    def measured(self, other: Coordinate, round_trip_s: float, peer: str = "") -> None:
        """A round trip to the participant with this coordinate was measured.  One without a name has no median."""
        if not other.fits(self._settings.dimensions):
            self.refusals[RefusedSample.COORDINATE] += 1
            return
        if not isfinite(round_trip_s) or not 0.0 <= round_trip_s <= FAR_S:
            self.refusals[RefusedSample.ROUND_TRIP] += 1
            return
        round_trip_s = max(round_trip_s, NEAR_S)
        self._learn(other, self._filtered(peer, other, round_trip_s))
        if peer and self._settings.replays:
            for again in self._rng.choices(list(self._places), k=self._settings.replays):
                self._learn(self._places[again], _median(self._samples[again]))

    def _learn(self, other: Coordinate, round_trip_s: float) -> None:
        coordinate = self._pulled(self._adjusted(self._moved(other, round_trip_s), other, round_trip_s))
        if not coordinate.is_sound:
            self.refusals[RefusedSample.RESET] += 1
            self._remainders.clear()
            coordinate = self._origin
        self.coordinate = coordinate

    def _begin_at(self, remembered: Coordinate) -> None:
        least = self._settings.remembered_error
        if not least:
            return
        if not remembered.fits(self._settings.dimensions):
            self.refusals[RefusedSample.COORDINATE] += 1
            return
        height = remembered.height if self._settings.heights else self._settings.height_least_s
        self.coordinate = replace(remembered, height=height, error=max(remembered.error, least), adjustment=0.0)

    def _filtered(self, peer: str, other: Coordinate, round_trip_s: float) -> float:
        if not peer or (self._settings.median_of == 1 and not self._settings.replays):
            return round_trip_s
        samples = self._samples.pop(peer, None)
        if samples is None:
            samples = deque(maxlen=self._settings.median_of)
            if len(self._samples) >= PEERS_MAX:
                oldest = next(iter(self._samples))
                del self._samples[oldest], self._places[oldest]
        samples.append(round_trip_s)
        self._samples[peer], self._places[peer] = samples, other
        return _median(samples)

    def _moved(self, other: Coordinate, round_trip_s: float) -> Coordinate:
        mine, settings = self.coordinate, self._settings
        distance = mine.distance_s(other)
        wrong = abs(distance - round_trip_s) / max(round_trip_s, settings.error_floor_s)
        weight = mine.error / max(mine.error + other.error, NEAR_S)
        gain = settings.error_gain * weight
        error = min(wrong * gain + mine.error * (1 - gain), ERROR_MAX)
        push = settings.move_gain * weight * (round_trip_s - distance)
        return self._pushed(mine, other, push, error)

    def _adjusted(self, mine: Coordinate, other: Coordinate, round_trip_s: float) -> Coordinate:
        window = self._settings.adjustment_window
        if not window:
            return mine
        self._remainders.append(round_trip_s - mine.raw_distance_s(other))
        return replace(mine, adjustment=sum(self._remainders) / (2 * window))

    def _pulled(self, mine: Coordinate) -> Coordinate:
        if not self._settings.gravity_s:
            return mine
        pull = -((mine.raw_distance_s(self._origin) / self._settings.gravity_s) ** 2)
        return self._pushed(mine, self._origin, pull, mine.error)

    def _pushed(self, mine: Coordinate, other: Coordinate, push: float, error: float) -> Coordinate:
        """Away from the other by so much, or towards it if that is negative."""
        way: Vector = tuple(map(sub, mine.vector, other.vector))
        whole = hypot(*way)
        height, settings = mine.height, self._settings
        if whole <= NEAR_S:
            # All begin at the origin: which way they part is up to chance.
            way = tuple(self._rng.uniform(-1.0, 1.0) for _ in way)
            whole = max(hypot(*way), NEAR_S)
        elif settings.heights:
            heights = height + other.height
            if settings.height_step == "whole":
                whole += heights
            height = max(settings.height_least_s, height + heights * push / whole)
        step = push / whole
        vector = tuple([at + step * along for at, along in zip(mine.vector, way, strict=True)])
        return Coordinate(vector, height, error, mine.adjustment)


def _median(samples: deque[float]) -> float:
    return sorted(samples)[len(samples) // 2]
