"""Durations counted by size, in buckets that are the same at every node: those of many nodes can be added up."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets."""


class Histogram:
    """To observe a duration costs a search in a short table."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        #: By bucket; the last one is for what is above all bounds.
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and number of all at or below it, as Prometheus wants them."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found
