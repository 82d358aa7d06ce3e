"""Virtual time: what happens when, in one order that depends on the seed alone, and a trace of it.

Nothing here reads a clock.  Each concern (the network, a disk, a client) draws from dice of its own, so that one more
throw in one place does not change all the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

Action = Callable[..., object]


class Trace:
    """Every event as a line of text: hashed always, handed to `sink` where somebody wants to read it."""

    __slots__ = ("_hash", "_sink", "lines")

    def __init__(self, sink: Callable[[str], object] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._sink = sink
        self.lines = 0

    def add(self, line: str) -> None:
        self.lines += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._sink is not None:
            self._sink(line)

    @property
    def digest(self) -> str:
        """Two runs did the same if, and only if, this is the same."""
        return self._hash.hexdigest()


class KernelTimer:
    """Does something once, unless it is cancelled before: the kernel itself cancels nothing."""

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action

    def cancel(self) -> None:
        self._action = None

    def ring(self, *arguments: Any) -> None:
        action, self._action = self._action, None
        if action is not None:
            action(*arguments)


class Kernel:
    """`now` is for reading; the rest of the world asks for things to happen with `at` and `after`."""

    __slots__ = ("_events", "_order", "handled", "now", "seed", "trace")

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        self.trace = trace or Trace()
        #: Events handled so far.
        self.handled = 0
        self._events: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        # Equal instants happen in the order they were asked for; actions themselves do not compare.
        self._order = 0

    def dice(self, concern: str) -> Random:
        """Dice for one concern; asked for twice, they fall the same way twice."""
        return Random(f"{self.seed}/{concern}")

    def at(self, instant: float, action: Action, *arguments: Any) -> None:
        """Have something happen at `instant`, or now if that has passed.  Nothing is ever cancelled."""
        self._order += 1
        heapq.heappush(self._events, (instant if instant > self.now else self.now, self._order, action, arguments))

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        self.at(self.now + seconds, action, *arguments)

    def tell(self, line: str) -> None:
        """A line of the trace, with its instant."""
        self.trace.add(f"{self.now:.6f} {line}")

    def run_until(self, instant: float) -> None:
        """Let everything happen that is due up to and including `instant`."""
        events = self._events
        pop = heapq.heappop
        while events and events[0][0] <= instant:
            self.now, _, action, arguments = pop(events)
            action(*arguments)
            self.handled += 1
        self.now = max(self.now, instant)
