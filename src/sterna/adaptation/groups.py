"""Latency groups: nodes whose round trips fall between the same two bounds count as equally near.

Bounds rise exponentially, and a round trip equal to a bound belongs to the group below it.  Everything beyond the last
bound is one more group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class LatencyGroups:
    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self._bounds_s = [bound / 1000 for bound in bounds_ms]

    def of(self, round_trip_s: float) -> int:
        """The number of its group, 0 for the nearest."""
        return bisect_left(self._bounds_s, round_trip_s)
