"""The work budget: how much work one turn of the loop may do for one client, and whose work continues next.

All work that a client can make expensive (matching, subscribing, looking through retained messages) is counted as it is
done.  Work that has used up its turn goes to the end of a line; each later turn continues with the first in line, so no
client waits for more than one such piece.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from sterna.broker.clock import BrokerClock
from sterna.broker.deadlines import Deadlines

# One unit is one entry of a tree or dict looked at: about a quarter of a microsecond, interpreted.

#: The budget of one client in one turn: some two milliseconds.
TURN: Final = 8192
#: One packet of any kind but the QoS 0 publications that go straight through.
PACKET: Final = 16
#: One filter subscribed to or unsubscribed from.
FILTER: Final = 64
#: One expression checked, besides the others it is held against; if misspelt it is compared with all words.
EXPRESSION: Final = 2048
#: Finding the recipients of a topic for the first time, besides the branches looked at; and each one found.
ROUTE: Final = 32
RECIPIENT: Final = 4
#: One look for retained messages, and each message sent outside the fan-out.
LOOK: Final = 4
MESSAGE: Final = 32
#: One message taken by one expression.
COMPUTATION: Final = 16


class WorkBudget:
    """The cost of the current turn so far."""

    __slots__ = ("spent", "turn")

    def __init__(self) -> None:
        self.spent = 0
        #: When the turn began: each begins with the world telling the time.
        self.turn = 0.0

    def begin(self, turn: float) -> None:
        self.turn = turn
        self.spent = 0


class Turns:
    """Work that goes on in later turns, in line."""

    __slots__ = ("_asked", "_clock", "_deadlines", "_line", "_work_budget")

    def __init__(self, clock: BrokerClock, deadlines: Deadlines, work_budget: WorkBudget) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._work_budget = work_budget
        self._line: deque[Callable[[], bool]] = deque()
        self._asked = False

    def __len__(self) -> int:
        return len(self._line)

    def ask(self, work: Callable[[], bool]) -> None:
        """Have `work` called, once a turn, until it says that it is done."""
        self._line.append(work)
        self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            # Not before the world has told the time again: other clients are heard in between.
            self._deadlines.at(math.nextafter(self._clock.now, math.inf), self._take)

    def _take(self) -> None:
        self._asked = False
        work = self._line.popleft()
        self._work_budget.begin(self._clock.now)
        try:
            if not work():
                self._line.append(work)
        finally:
            if self._line:  # an error in this one does not stop the others
                self._ask()
