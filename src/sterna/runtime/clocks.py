"""Two clocks read as one: the steady one, by which everything is timed, and the wall's, by which messages are dated.

The node is told both every second and goes by the difference in between.  A process that stands still between the two
readings, as it may on a busy machine, would date all messages of that second too late: later ones of other nodes would
seem to come before them.
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
