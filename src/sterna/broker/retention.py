"""After the journal was trimmed: queues forget what is gone, and each session's loss is counted and told.

A node may hold a million sessions and many millions of waiting messages, so this is done in steps of bounded work with
other work between them.  A session whose turn has not come loses nothing by it: what it finds gone is counted then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.broker.session import Session
from sterna.broker.shares import Share

if TYPE_CHECKING:
    from sterna.broker.broker import Broker

#: Work in one step: a queue costs 1, and each of its pieces that messages are dropped from, or looked up in what is
#: retained, costs PIECE_WORK.
STEP_WORK = 1024
PIECE_WORK = 256


class Sweep:
    __slots__ = ("_broker", "_dropped", "_first_offset", "_left", "_looked_up", "steps")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._first_offset = 0
        #: Whose turn has not come, the next one last.
        self._left: list[Session | Share] = []
        #: What the one whose turn it is has lost so far.
        self._dropped = 0
        self._looked_up = False
        self.steps = 0

    def begin(self, first_offset: int) -> None:
        """The journal dropped everything below `first_offset`."""
        if self._dropped:
            self._tell(self._left[-1])
        self._first_offset = first_offset
        self._left = [*self._broker.routes.shares(), *self._broker.sessions.values()]

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

    def _drop(self, waiting: Session | Share) -> tuple[int, bool]:
        if not waiting.queue:
            return 0, False
        return waiting.queue.drop_below(self._first_offset, unless=self._is_retained)

    def _is_retained(self, offset: int) -> bool:
        self._looked_up = True
        return self._broker.retained.at_offset(offset) is not None

    def _tell(self, waiting: Session | Share) -> None:
        dropped, self._dropped = self._dropped, 0
        self._broker.delivery.retention_took(waiting, dropped)
        if isinstance(waiting, Share):
            self._broker.report("retention dropped waiting messages", share=waiting.key.decode(), messages=dropped)
            return
        waiting.dropped_by_retention += dropped
        if self._broker.sessions.get(waiting.client_id) is waiting:  # it may have ended between two steps
            self._broker.log.touched(waiting)
        self._broker.report("retention dropped waiting messages", client=waiting.name(), messages=dropped)
