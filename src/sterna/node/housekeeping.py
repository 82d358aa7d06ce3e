"""The work of a node that has no occasion but time: clocks, statistics, held-back records, retention.

The world calls `round` every ROUND_S seconds.
"""

from __future__ import annotations

from typing import Final

from sterna.node.node import Node

ROUND_S: Final = 1.0
TIDY_EVERY: Final = 10
"""Rounds between two looks at the journal's retention."""


class Housekeeping:
    def __init__(self, node: Node, sys_interval_s: float, now: float) -> None:
        """`sys_interval_s`: how often the `$SYS` topics are published; 0: never."""
        self._node = node
        self._sys_interval_s = sys_interval_s
        self._next_sys = now
        self._rounds = 0

    def round(self, now: float, wall: float) -> bool:
        """Read the clocks; True if there is something to send."""
        node = self._node
        node.broker.tell_time(now, wall)
        self._rounds += 1
        is_sys_due = self._sys_interval_s > 0 and now >= self._next_sys
        if is_sys_due:
            node.sys_tree.update(node.broker.statistics())
            self._next_sys = now + self._sys_interval_s
        return node.journal.let_records_be_written() or is_sys_due

    @property
    def is_tidying_due(self) -> bool:
        """In this round?  In the first, too."""
        return self._rounds % TIDY_EVERY == 1
