"""Starts a streaming query again when Spark gave up on its start for no reason of the query's own.

Spark starts a process for a Python source and waits ten seconds for it; no setting changes that.  On a busy machine
ten seconds may be too short, and the query ends before its first batch.  The query continues from its checkpoint, so a
user would simply start it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

TRIES = 12
AGAIN_S = 2.0
"""Before the second try; twice as long before each further one, ..."""
AGAIN_MAX_S = 16.0
"""... up to this: four minutes in all."""

T = TypeVar("T")

_IN_VAIN = "Python worker failed to connect back"


def with_more_tries(run: Callable[[], T], tell: Callable[[str], None]) -> T:
    """`run` begins a query, and comes back or fails when it has ended."""
    for tried in range(1, TRIES):
        try:
            return run()
        except PySparkException as error:
            if _IN_VAIN not in str(error):
                raise
        pause_s = min(AGAIN_S * 2 ** (tried - 1), AGAIN_MAX_S)
        tell(f"Spark gave up waiting for a process it had started: the machine is busy; again in {pause_s:g} s")
        time.sleep(pause_s)
    return run()
