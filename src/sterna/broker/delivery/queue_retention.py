"""Removes queued messages that the journal no longer has, and counts and reports each session's loss.

A node may hold a million sessions and many millions of waiting messages, so this is done in steps of bounded work with
other work between them.  A session whose turn has not come yet loses nothing by waiting: a message that it finds gone
is counted then.
"""

from __future__ import annotations

from sterna.broker.broker_state import BrokerState
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.broker.session.shares import SharedSubscription

#: Work in one step: a queue costs 1, and each of its pieces that messages are dropped from, or looked up in what is
#: retained, costs PIECE_WORK.
STEP_WORK = 1024
PIECE_WORK = 256


class Sweep:
    __slots__ = ("_delivery", "_dropped", "_first_offset", "_left", "_log", "_looked_up", "_reports", "_state", "steps")

    def __init__(self, state: BrokerState, delivery: Delivery, log: SessionLog, reports: OperatorReports) -> None:
        self._state = state
        self._delivery = delivery
        self._log = log
        self._reports = reports
        self._first_offset = 0
        #: Whose turn has not come, the next one last.
        self._left: list[Session | SharedSubscription] = []
        #: Messages that the one whose turn it is has lost so far.
        self._dropped = 0
        self._looked_up = False
        self.steps = 0

    def begin(self, first_offset: int) -> None:
        """The journal dropped everything below `first_offset`."""
        if self._dropped:
            self._tell(self._left[-1])
        self._first_offset = first_offset
        self._left = [*self._state.routes.shares(), *self._state.sessions.values()]

    def step(self) -> bool:
        """Do some of it; True if there is more to do."""
        self.steps += bool(self._left)
        work = 0
        while self._left and work < STEP_WORK:
            waiting = self._left[-1]
            self._looked_up = False
            dropped, more = self._drop(waiting)
            self._dropped += dropped
            work += PIECE_WORK if self._looked_up else 1
            if not more:
                if self._dropped:
                    self._tell(waiting)
                self._left.pop()
        return bool(self._left)

    def _drop(self, waiting: Session | SharedSubscription) -> tuple[int, bool]:
        if not waiting.queue:
            return 0, False
        return waiting.queue.drop_below(self._first_offset, unless=self._is_retained)

    def _is_retained(self, offset: int) -> bool:
        self._looked_up = True
        return self._state.retained.at_offset(offset) is not None

    def _tell(self, waiting: Session | SharedSubscription) -> None:
        dropped, self._dropped = self._dropped, 0
        self._delivery.retention_took(waiting, dropped)
        if isinstance(waiting, SharedSubscription):
            self._reports.report("retention dropped waiting messages", share=waiting.key.decode(), messages=dropped)
            return
        waiting.dropped_by_retention += dropped
        if self._state.sessions.get(waiting.client_id) is waiting:  # it may have ended between two steps
            self._log.touched(waiting)
        self._reports.report("retention dropped waiting messages", client=waiting.name(), messages=dropped)
