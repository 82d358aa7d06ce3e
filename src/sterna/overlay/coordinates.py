"""Network coordinates (Vivaldi, with height): a place for each node in a space in which distances are round trips.

A node moves its own coordinate a little with every round trip it measures to a node whose coordinate it knows.  Then
the round trip between any two nodes can be estimated, also where nobody has measured it.  The height is the part of a
round trip that every way from a node has in common, its access link.

Dabek, Cox, Kaashoek, Morris, "Vivaldi: a decentralized network coordinate system", 2004; the gravity that keeps all of
them near the origin is Ledlie, Gardner, Seltzer, "Network coordinates in the wild", 2007.  Both as HashiCorp's serf has
them, which also settled when the error is taken (before the move) and that it is relative.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, isfinite
from random import Random

DIMENSIONS = 4
ERROR_MAX = 1.5
"""The error of a coordinate that knows nothing; relative, as all of them."""
FAR_S = 10.0
"""No round trip and no coordinate is taken that is longer than this."""
NEAR_S = 1e-6
"""A shorter round trip counts as this one."""


@dataclass(frozen=True, slots=True)
class VivaldiSettings:
    error_gain: float = 0.25
    """The weight of a new sample in the error (c_e); higher forgets sooner."""
    move_gain: float = 0.25
    """How much of the way to the right distance one sample moves the coordinate (c_c); higher is quicker, shakier."""
    height_least_s: float = 1e-5
    gravity_s: float = 150.0
    """At this distance from the origin the pull back is one second per sample; it falls with the square.  0: none."""


DEFAULT = VivaldiSettings()


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Seconds, but for the error, which is a part of the distance."""

    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    height: float = DEFAULT.height_least_s
    error: float = ERROR_MAX

    @property
    def is_sound(self) -> bool:
        """Not of another dimension, not NaN, not infinite, not from another planet."""
        numbers = (*self.vector, self.height, self.error)
        return (
            len(self.vector) == DIMENSIONS
            and all(isfinite(number) and abs(number) <= FAR_S for number in numbers)
            and self.height >= 0.0
            and 0.0 <= self.error <= ERROR_MAX
        )

    def distance_s(self, other: Coordinate) -> float:
        """The estimated round trip."""
        return _length(_difference(self.vector, other.vector)) + self.height + other.height


class Vivaldi:
    """This node's coordinate, and how it learns."""

    def __init__(self, rng: Random, settings: VivaldiSettings = DEFAULT) -> None:
        self._rng = rng
        self._settings = settings
        self.coordinate = Coordinate(height=settings.height_least_s)
        self.refused = 0
        """Samples that made no sense."""

    def measured(self, other: Coordinate, round_trip_s: float) -> None:
        """A round trip to the node with this coordinate was measured."""
        if not other.is_sound or not isfinite(round_trip_s) or not 0.0 <= round_trip_s <= FAR_S:
            self.refused += 1
            return
        moved = self._pulled(self._moved(other, max(round_trip_s, NEAR_S)))
        # Should sound input ever add up to nonsense, begin again rather than spread it.
        self.coordinate = moved if moved.is_sound else Coordinate(height=self._settings.height_least_s)

    def _moved(self, other: Coordinate, round_trip_s: float) -> Coordinate:
        mine, settings = self.coordinate, self._settings
        distance = mine.distance_s(other)
        wrong = abs(distance - round_trip_s) / round_trip_s
        weight = mine.error / max(mine.error + other.error, NEAR_S)
        gain = settings.error_gain * weight
        error = min(wrong * gain + mine.error * (1 - gain), ERROR_MAX)
        push = settings.move_gain * weight * (round_trip_s - distance)
        return self._pushed(mine, other, push, error)

    def _pulled(self, mine: Coordinate) -> Coordinate:
        if not self._settings.gravity_s:
            return mine
        origin = Coordinate(height=self._settings.height_least_s)
        pull = -((mine.distance_s(origin) / self._settings.gravity_s) ** 2)
        return self._pushed(mine, origin, pull, mine.error)

    def _pushed(self, mine: Coordinate, other: Coordinate, push: float, error: float) -> Coordinate:
        """Away from the other by so much, or towards it if that is negative."""
        way = _difference(mine.vector, other.vector)
        apart = _length(way)
        height = mine.height
        if apart > NEAR_S:
            height = max(self._settings.height_least_s, height + (height + other.height) * push / apart)
        else:
            # All begin at the origin: which way they part is up to chance.
            way = tuple(self._rng.uniform(-1.0, 1.0) for _ in way)
            apart = max(_length(way), NEAR_S)
        vector = tuple(at + push * step / apart for at, step in zip(mine.vector, way, strict=True))
        return Coordinate(vector, height, error)


def _difference(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def _length(vector: tuple[float, ...]) -> float:
    return hypot(*vector)
