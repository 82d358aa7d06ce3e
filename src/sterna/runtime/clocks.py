"""Two clocks read as one: the steady clock, which times everything, and the wall clock, which dates messages.

The server tells the node both every second, and the node uses the difference between them.  If the process stood still
between the two readings, as it may on a busy machine, all messages of that second would be dated too late, and later
messages of other nodes would sort before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TOGETHER_S = 0.0005
TRIES = 10


def both_clocks(
    steady: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
) -> tuple[float, float]:
    """Of a few readings the one that took the least time."""
    closest_s, found = float("inf"), (0.0, 0.0)
    for _ in range(TRIES):
        before, at, after = steady(), wall(), steady()
        if after - before < closest_s:
            closest_s, found = after - before, (before, at)
        if closest_s <= TOGETHER_S:
            break
    return found
