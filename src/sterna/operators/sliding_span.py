"""The values of a sliding span of time, which come one by one and may expire many at once.

Values are grouped into runs, and runs into longer runs, each with the aggregate of its values.  Expired values are
removed by the longest runs that have expired entirely: some dozens of steps for any number of values.  Nothing is
rounded, so after removal the aggregate is exactly that of the values left.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from sterna.operators.aggregates import Removable

#: Values in the shortest runs; and runs in a longer one, of which there are two kinds.
VALUES: Final = 64
RUNS: Final = 16
_KINDS: Final = 2

_NEVER: Final = 1 << 62


class ValueRun:
    __slots__ = ("first_us", "last_us", "runs", "size", "sums", "times", "values")

    def __init__(self, sums: Removable) -> None:
        #: Of all values in it.
        self.sums = sums
        self.size = 0
        self.first_us = _NEVER
        self.last_us = 0
        #: Either runs, or values and when they came.
        self.runs: list[ValueRun] = []
        self.times: array[int] = array("q")
        self.values: array[float] = array("d")

    def add(self, time_us: int, value: float) -> None:
        if not self.size:
            self.first_us = time_us
        self.last_us = time_us
        self.size += 1
        self.times.append(time_us)
        self.values.append(value)
        self.sums.add(value)

    def join(self, runs: list[ValueRun]) -> None:
        self.runs = runs
        self.first_us, self.last_us = runs[0].first_us, runs[-1].last_us
        for run in runs:
            self.size += run.size
            self.sums.merge(run.sums)

    def trim(self, oldest_us: int) -> array[float]:
        """Let go of the values up to then, which are not all; these."""
        count = bisect_right(self.times, oldest_us)
        gone = self.values[:count]
        for value in gone:
            self.sums.remove(value)
        del self.times[:count], self.values[:count]
        self.size -= count
        self.first_us = self.times[0]
        return gone


class SlidingSpan:
    __slots__ = ("_first_us", "_last_us", "_new", "_old", "_open", "_rows", "size", "sums")

    def __init__(self, new: Callable[[], Removable]) -> None:
        """`new`: an aggregate of no values."""
        self._new = new
        self._clear()

    def _clear(self) -> None:
        new = self._new
        #: Of all values that are held, and how many these are.
        self.sums = new()
        self.size = 0
        #: When the oldest one came, and the newest.
        self._first_us = _NEVER
        self._last_us = 0
        #: Oldest first: runs that grow no more, those that are to become longer ones (the longest first), the newest.
        self._old: deque[ValueRun] = deque()
        self._rows: list[list[ValueRun]] = [[] for _ in range(_KINDS)]
        self._open = ValueRun(new())

    def add(self, time_us: int, value: float) -> None:
        if not self.size:
            self._first_us = time_us
        self._last_us = time_us
        self.size += 1
        self.sums.add(value)
        self._open.add(time_us, value)
        if self._open.size >= VALUES:
            full, self._open = self._open, ValueRun(self._new())
            self._put(full, 0)

    def _put(self, run: ValueRun, kind: int) -> None:
        if kind == _KINDS:
            self._old.append(run)
            return
        row = self._rows[kind]
        row.append(run)
        if len(row) == RUNS:
            self._rows[kind] = []
            longer = ValueRun(self._new())
            longer.join(row)
            self._put(longer, kind + 1)

    def forget(self, oldest_us: int) -> None:
        """Values that came at this instant or before are no longer held."""
        if self._first_us <= oldest_us and self._last_us <= oldest_us:
            self._clear()
        while self._first_us <= oldest_us:
            run = self._oldest()
            if run.last_us <= oldest_us:
                self._old.popleft()
                self.size -= run.size
                self.sums.take_out(run.sums)
            elif run.runs:
                self._old.popleft()
                self._old.extendleft(reversed(run.runs))
            else:
                for value in run.trim(oldest_us):
                    self.size -= 1
                    self.sums.remove(value)
            self._first_us = self._oldest().first_us if self.size else _NEVER

    def _oldest(self) -> ValueRun:
        if not self._old:
            for row in reversed(self._rows):
                self._old.extend(row)
                row.clear()
            if not self._old:
                self._old.append(self._open)
                self._open = ValueRun(self._new())
        return self._old[0]

    def items(self) -> list[tuple[int, float]]:
        """When each came, and what it is, oldest first."""
        found: list[tuple[int, float]] = []
        waiting = [self._open]
        for row in self._rows:
            waiting.extend(reversed(row))
        waiting.extend(reversed(self._old))
        while waiting:
            run = waiting.pop()
            waiting.extend(reversed(run.runs))
            found += zip(run.times, run.values, strict=True)
        return found


class Peaks:
    """Of the values of a span those that are greater than all that came after them: the first is the greatest."""

    __slots__ = ("_first", "_times", "_values")

    def __init__(self) -> None:
        self._times: array[int] = array("q")
        self._values: array[float] = array("d")
        #: Values before it are gone; they are thrown out when they are the most.
        self._first = 0

    def __len__(self) -> int:
        return len(self._times) - self._first

    def add(self, time_us: int, value: float) -> None:
        values = self._values
        high = len(values)
        if self._first < high and values[high - 1] <= value:
            low = self._first_not_above(value)
            del self._times[low:], values[low:]
        self._times.append(time_us)
        values.append(value)

    def _first_not_above(self, value: float) -> int:
        """Values fall; most often it is one of the last."""
        values, low, high = self._values, self._first, len(self._values) - 1
        step = 1
        while high - step >= low:
            if values[high - step] > value:
                low = high - step + 1
                break
            high -= step
            step *= 2
        while low < high:
            middle = (low + high) >> 1
            if values[middle] <= value:
                high = middle
            else:
                low = middle + 1
        return low

    def forget(self, oldest_us: int) -> None:
        times = self._times
        if self._first < len(times) and times[self._first] <= oldest_us:
            self._first = bisect_right(times, oldest_us, self._first)
            if 2 * self._first > len(times):
                del times[: self._first], self._values[: self._first]
                self._first = 0

    def greatest(self) -> float | None:
        return self._values[self._first] if len(self) else None

    def items(self) -> list[tuple[int, float]]:
        return list(zip(self._times[self._first :], self._values[self._first :], strict=True))
