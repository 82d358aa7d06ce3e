"""The search for the limit (section 5.3): double the interval, then divide the last step into twentieths.

The result is the smallest interval that passes.  The next smaller one that was tried is at most a twentieth less, so
the throughput found is at most 5 % below the limit.  Noise may make a longer interval fail where a shorter one passed:
that is told, and then the interval counts above which every one passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sterna.measure.errors import MeasurementError

Method = Literal["twentieths", "bisect"]
Passes = Callable[[float], bool]
"""Whether the system keeps up with this interval between two messages of a publisher, in milliseconds."""

PARTS = 20
DOUBLINGS_MAX = 16
STEP_MAX = 0.05


@dataclass(slots=True)
class SearchResult:
    interval_ms: float
    tried: dict[float, bool] = field(default_factory=dict)
    fine: int = 0
    """Measurements after the doubling."""

    @property
    def is_noisy(self) -> bool:
        """A longer interval failed where a shorter one passed."""
        passed = [interval for interval, passes in self.tried.items() if passes]
        return bool(passed) and any(interval > min(passed) for interval, passes in self.tried.items() if not passes)


def find_limit(passes: Passes, start_ms: float, method: Method = "twentieths") -> SearchResult:
    tried: dict[float, bool] = {}

    def attempt(interval: float) -> bool:
        tried[interval] = passes(interval)
        return tried[interval]

    coarse = _double(attempt, start_ms)
    before = len(tried)
    if method == "bisect":
        _bisect(attempt, coarse)
    else:
        for interval in twentieths(coarse):
            attempt(interval)
    return SearchResult(_smallest_safe(tried), tried, len(tried) - before)


def twentieths(interval_ms: float) -> list[float]:
    """Between this interval and its half, without the two ends."""
    return [interval_ms / 2 + part * interval_ms / (2 * PARTS) for part in range(1, PARTS)]


def _double(attempt: Passes, start_ms: float) -> float:
    """The smallest interval of the row start, 2 start, ... that passes, its half having failed."""
    interval = start_ms
    if attempt(interval):
        for _ in range(DOUBLINGS_MAX):
            if not attempt(interval / 2):
                return interval
            interval /= 2
        raise MeasurementError(f"an interval of {interval:g} ms still passes; the load does not reach the limit")
    for _ in range(DOUBLINGS_MAX):
        interval *= 2
        if attempt(interval):
            return interval
    raise MeasurementError(f"an interval of {interval:g} ms still fails; the system does not keep up with anything")


def _bisect(attempt: Passes, coarse_ms: float) -> None:
    """Among the same twentieths."""
    steps = [coarse_ms / 2, *twentieths(coarse_ms), coarse_ms]
    fails, good = 0, len(steps) - 1
    while good - fails > 1:
        middle = (fails + good) // 2
        if attempt(steps[middle]):
            good = middle
        else:
            fails = middle


def _smallest_safe(tried: dict[float, bool]) -> float:
    """The smallest that passed and above which none failed; the greatest always passed."""
    failed = [interval for interval, passed in tried.items() if not passed]
    floor = max(failed, default=0.0)
    return min(interval for interval, passed in tried.items() if passed and interval > floor)
