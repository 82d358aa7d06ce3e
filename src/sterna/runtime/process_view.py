"""A process's own condition, for /metrics: its build, how long things take, and when its certificates expire.

Observing a duration costs a search in a short table.  Histograms have fixed buckets, so that those of many nodes can be
added up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

LAG_EVERY_S: Final = 0.25
"""How often the lag of the event loop is sampled."""

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of a duration."""


class Histogram:
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


@dataclass(slots=True)
class Timings:
    """Durations since the process started."""

    journal_write: Histogram = field(default_factory=Histogram)
    """Writing a group to the journal, sync included."""
    commit: Histogram = field(default_factory=Histogram)
    """From handing a group to the journal to the end of delivering and acknowledging what it holds."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """How much later than asked for the event loop calls back."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    version: str
    python: str
    compiled: bool
    timings: Timings
    certificates: dict[str, float]
    """Address of a listener -> second of the wall clock at which its certificate expires."""


class LoopLag:
    """Samples how late the event loop is."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ask_again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask_again(self) -> None:
        due = monotonic() + LAG_EVERY_S
        self._timer = asyncio.get_running_loop().call_later(LAG_EVERY_S, self._called, due)

    def _called(self, due: float) -> None:
        self._histogram.observe(max(0.0, monotonic() - due))
        self._ask_again()
