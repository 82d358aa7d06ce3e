"""Ends windows that are over, as many a turn as the work budget allows: all may end at the full hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sterna.broker import work_budget
from sterna.broker.work_budget import Turns, WorkBudget

if TYPE_CHECKING:
    from sterna.broker.expressions.computation import Computation


class WindowTimerHost(Protocol):
    work_budget: WorkBudget
    turns: Turns


class WindowTimer:
    __slots__ = ("_end", "_waiting")

    def __init__(self, end: Callable[[Computation, int], int]) -> None:
        """`end`: the window of this expression that was over at this microsecond; how many bytes came of it."""
        self._end = end
        self._waiting: deque[tuple[Computation, int]] = deque()

    def add(self, broker: WindowTimerHost, computation: Computation, due_us: int) -> None:
        """Now, if this turn has not done enough; else in a later one."""
        self._waiting.append((computation, due_us))
        if len(self._waiting) == 1 and not self._go_on(broker.work_budget):
            broker.turns.ask(lambda: self._go_on(broker.work_budget))

    def _go_on(self, spent: WorkBudget) -> bool:
        while self._waiting:
            if spent.spent >= work_budget.TURN:
                return False
            # The size of the result tells best how much there was to sum up.
            spent.spent += work_budget.FILTER + self._end(*self._waiting.popleft())
        return True
