"""A network coordinate: a place in a space in which distances are round trips.

The round trip between two nodes can be estimated from their coordinates, also where nobody has measured it.  The height
is the part of a round trip that every way from a node has in common, its access link.  The adjustment is what estimates
of this node are off by on average; it matters between hosts that are near each other.

`overlay/vivaldi.py` says how a coordinate is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import dist

DIMENSIONS = 4
"""Of coordinates in the datagrams of the spanning tree, and by default everywhere."""
DIMENSIONS_MAX = 8
ERROR_MAX = 1.5
"""The error of a coordinate that knows nothing; relative, as all of them."""
FAR_S = 10.0
"""No round trip and no coordinate is taken that is longer than this."""
HEIGHT_LEAST_S = 1e-5


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Seconds, but for the error, which is a part of the distance."""

    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    height: float = HEIGHT_LEAST_S
    error: float = ERROR_MAX
    adjustment: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Not of too many dimensions or none, not NaN, not infinite, not from another planet."""
        # A comparison with NaN is false.
        for at in self.vector:
            if not -FAR_S <= at <= FAR_S:
                return False
        return (
            0 < len(self.vector) <= DIMENSIONS_MAX
            and 0.0 <= self.height <= FAR_S
            and 0.0 <= self.error <= ERROR_MAX
            and -FAR_S <= self.adjustment <= FAR_S
        )

    def fits(self, dimensions: int) -> bool:
        """It can be used beside sound coordinates of so many dimensions."""
        return len(self.vector) == dimensions and self.is_sound

    def distance_s(self, other: Coordinate) -> float:
        """The estimated round trip.  Adjustments count only as long as something is left."""
        raw = self.raw_distance_s(other)
        adjusted = raw + self.adjustment + other.adjustment
        return adjusted if adjusted > 0.0 else raw

    def raw_distance_s(self, other: Coordinate) -> float:
        """The estimate without adjustments: the one that springs pull at."""
        return dist(self.vector, other.vector) + self.height + other.height
