"""One heap of deadlines: keep-alives, will delays, session expiry and connect time-outs.

Nothing is ever cancelled.  A deadline that has come is handed back to its owner, who checks whether it still applies
and may ask again; that keeps every message off the heap (a client that talks all day costs one entry per keep-alive).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Deadlines:
    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        # Ties are broken by age: callables do not compare, and equal instants must fire in the order they were asked.
        self._order = 0

    def at(self, instant: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (instant, self._order, action))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
