"""Retained messages at QoS 0 that wait for room in their subscriber's socket.

They are sent as the subscriber reads, as long as it is connected, and over several turns if they are many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sterna.broker import work_budget
from sterna.broker.broker_state import BrokerState
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.broker.work_budget import Turns
from sterna.mqtt.message import Message


class RetainedBacklog:
    """Messages that wait for a session are in `session.retained_backlog`."""

    __slots__ = ("_counters", "_limits", "_retained", "_send_now", "_turns", "_under_way", "_work_budget")

    def __init__(self, state: BrokerState, turns: Turns, send_now: Callable[[Session, Message, Grant], None]) -> None:
        self._limits = state.limits
        self._retained = state.retained
        self._counters = state.counters
        self._work_budget = state.work_budget
        self._turns = turns
        self._send_now = send_now
        #: Sessions that go on in a later turn.
        self._under_way: set[Session] = set()

    def send(self, session: Session, message: Message, grant: Grant) -> None:
        waiting = session.retained_backlog
        if (waiting is None and not session.outbox.congested) or message.offset < 0:
            self._send_now(session, message, grant)
            return
        if waiting is None:
            waiting = session.retained_backlog = OffsetQueue()
        if len(waiting) < self._limits.queued:
            waiting.push(message.offset, grant)
        else:
            self._counters.dropped("queue-full")

    def add(self, session: Session, found: OffsetQueue[Grant]) -> None:
        """To be sent when there is room; `Delivery.pump` sees to it."""
        if session.retained_backlog is None:
            session.retained_backlog = found if found else None
            return
        for offset, grant in found:
            session.retained_backlog.push(offset, grant)

    def go_on(self, session: Session, waiting: OffsetQueue[Grant]) -> None:
        while waiting and not session.outbox.congested:
            if self._work_budget.spent >= work_budget.TURN:
                if session not in self._under_way:
                    self._under_way.add(session)
                    self._turns.ask(partial(self._in_a_later_turn, session))
                return
            offset, grant = waiting.pop()
            self._work_budget.spent += work_budget.MESSAGE
            message = self._retained.at_offset(offset)  # nothing, if another has taken its place
            if message is not None and session.permissions.may_receive(message.topic):
                self._send_now(session, message, grant)
        if not waiting:
            session.retained_backlog = None

    def _in_a_later_turn(self, session: Session) -> bool:
        self._under_way.discard(session)
        if session.retained_backlog is not None:
            self.go_on(session, session.retained_backlog)
        return True  # it has asked again if there is more
