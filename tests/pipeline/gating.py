"""Kills that are known to fall within a batch: a task of it has read messages, and Spark has not committed it.

The driver is stopped (SIGSTOP) while this is looked up and while the victim dies, so it cannot commit in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driving import Driver
    from .feeding import FeedingNode

ADMIN = '[admin]\nbind = "127.0.0.1:0"\n'
"""Nodes need it: their metrics say how many rows have been read."""
LOOK_S = 3.0
"""For a batch, before there are more messages for one."""


class BatchGate:
    """`gate.kill(driver, victim, publish)` kills within a batch of the query with this checkpoint."""

    def __init__(self, checkpoint: Path, nodes: Iterable[FeedingNode], rows: int) -> None:
        """`rows`: so many are read by tasks of this query alone."""
        self._checkpoint = checkpoint
        self._nodes = list(nodes)
        self._rows = rows
        #: The batches that were hit.
        self.hit: list[int] = []

    def kill(self, driver: Driver, victim: Callable[[], object], publish: Callable[[], None], within_s: float) -> int:
        """The number of the batch that was hit."""
        found: list[int] = []

        def is_hit() -> bool:
            batch = self._batch_that_reads()
            if batch is not None:
                with driver.stopped():
                    if self._newest("commits") < batch:
                        victim()
                        found.append(batch)
            return bool(found)

        driver.wait_until(is_hit, "a batch reads", within_s, publish)
        self.hit += found
        return found[0]

    def _batch_that_reads(self) -> int | None:
        """One that was not hit before, and of which a task has read."""
        until = time.monotonic() + LOOK_S
        seen, before = -1, 0.0
        while time.monotonic() < until:
            batch = self._newest("offsets")
            if batch <= max((self._newest("commits"), *self.hit)):
                time.sleep(0.001)
            elif batch != seen:
                seen, before = batch, self._read()
            elif self._read() - before >= self._rows:
                return batch
        return None

    def _newest(self, kind: str) -> int:
        with suppress(FileNotFoundError):
            numbers = [int(file.name) for file in (self._checkpoint / kind).iterdir() if file.name.isdecimal()]
            return max(numbers, default=-1)
        return -1

    def _read(self) -> float:
        return rows_sent(self._nodes)


def rows_sent(nodes: Iterable[FeedingNode]) -> float:
    return sum(node.metric("sterna_feed_rows_sent_total") for node in nodes)


def kill_while_it_reads(
    driver: Driver, nodes: Sequence[FeedingNode], victim: Callable[[], object], within_s: float
) -> None:
    """For a job without batches: a task has read, and the job has not ended."""
    before = rows_sent(nodes)
    driver.wait_until(lambda: rows_sent(nodes) > before, "a task reads", within_s)
    with driver.stopped():
        victim()
