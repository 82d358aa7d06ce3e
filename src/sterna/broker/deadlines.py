"""One heap of deadlines: keep-alives, will delays, session expiry and connect time-outs.

A deadline that has come is handed back to its owner, who checks whether it still applies and may ask again; that keeps
every message off the heap (a client that talks all day costs one entry per keep-alive).  A deadline of something that
has ended is cancelled: it lets go of its action at once, so that clients that come and go cannot fill the memory with
what they leave behind.  The heap never holds more cancelled deadlines than others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Deadline:
    """An action at an instant; none any more once that has come, or is cancelled."""

    __slots__ = ("action", "instant")

    def __init__(self, instant: float, action: Callable[[], None]) -> None:
        self.instant = instant
        self.action: Callable[[], None] | None = action


class Deadlines:
    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        # Ties are broken by age: deadlines do not compare, and equal instants must fire in the order they were asked.
        self._order = 0
        #: How many of the heap are cancelled.
        self._cancelled = 0

    def __len__(self) -> int:
        """Entries in the heap, cancelled ones included."""
        return len(self._heap)

    def at(self, instant: float, action: Callable[[], None]) -> None:
        """One that is never cancelled."""
        self.replace(None, instant, action)

    def replace(self, old: Deadline | None, instant: float, action: Callable[[], None]) -> Deadline:
        """One that can be cancelled, and cancels the old one, if there is one."""
        self.cancel(old)
        self._order += 1
        deadline = Deadline(instant, action)
        heapq.heappush(self._heap, (instant, self._order, deadline))
        return deadline

    def cancel(self, deadline: Deadline | None) -> None:
        """It is no longer wanted.  Safe to call when it has come already."""
        if deadline is None or deadline.action is None:
            return
        deadline.action = None
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float | None:
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            deadline = heapq.heappop(self._heap)[2]
            action = deadline.action
            if action is None:
                self._cancelled -= 1
                continue
            deadline.action = None
            action()
