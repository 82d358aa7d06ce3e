"""The order of a turn: after every piece of work a node commits, sends to its clients and sends to other nodes.

Clients are sent to at once, or under load with the rest of a window (`WritePacing`).  Other nodes are sent to when all
clients that were ready in a round of the loop have been heard; what that gives rise to is sent and committed too.  Then
the timers are set for the next deadline and the next write.

The runtime and the simulator both drive their nodes with this class.  It has no clock and no loop: the world lends it
`Timers`, and every timer brings the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from sterna.node.committing import Committing, Step
from sterna.node.node import Node
from sterna.node.write_pacing import WINDOW_S, WritePacing

QUIET_LINKS_S: Final = 0.0005
"""Links that were flushed longer ago than this have little to carry."""


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Timers(Protocol):
    @property
    def soon(self) -> Callable[[Callable[[], None]], object]:
        """Have something done at the end of this round of the loop."""

    def later(self, seconds: float, action: Callable[[float], None]) -> object:
        """After so long; the action is told the time."""

    def at(self, instant: float, action: Callable[[float], None]) -> Cancellable:
        """At this instant, or as soon as possible if it has passed; the action is told the time."""


class Driver:
    def __init__(self, node: Node, committing: Committing, perform: Callable[[Step], None], *, networked: bool) -> None:
        """`perform` begins what `committing` asks for."""
        self._node = node
        self._broker = node.broker
        self._committing = committing
        self._perform = perform
        self._networked = networked
        self._pacing = WritePacing()
        #: A window has begun whose end is awaited.
        self._window = False
        #: Links will be flushed at the end of this round of the loop.
        self._linking = False
        #: When they were last.
        self._linked_at = -math.inf
        self._deadline: Cancellable | None = None
        self._due = math.inf
        self._wake: Cancellable | None = None
        self._wake_at = math.inf

    def begin(self, timers: Timers) -> None:
        """To be called before anything else."""
        self._timers = timers

    def after_work(self) -> None:
        """HOT.  Send what the last piece of work gave rise to: now, or, under load, with the rest of its window."""
        if not self._pacing.gathering:
            self.send()

    def send(self) -> None:
        """HOT."""
        broker = self._broker
        if broker.commitments.pending:
            self._commit()
        self._pacing.sent(broker.flush(), broker.now)
        if self._networked and not self._linking:
            # Clients are heard one after the other; what they say to other nodes goes out when all that were ready
            # in this round of the loop have been heard, in one batch.  Where little is said nobody else will have
            # been ready, and another round of the loop would cost more than it gathers.
            if broker.now - self._linked_at > QUIET_LINKS_S:
                self._send_to_nodes()
            else:
                self._linking = True
                self._timers.soon(self._send_to_nodes)
        if self._pacing.gathering and not self._window:
            # No other piece of work will send before the window is over.
            self._window = True
            self._timers.later(WINDOW_S, self._window_over)
        self._look_ahead()

    def _commit(self) -> None:
        step = self._committing.turn(self._broker.now)
        if step is not None:
            self._perform(step)

    def _send_to_nodes(self) -> None:
        self._linking = False
        self._linked_at = self._broker.now
        network = self._node.network
        if network is not None:
            network.flush()
        self._broker.flush()
        if self._broker.commitments.pending:
            self._commit()
        self._look_ahead()

    def _window_over(self, now: float) -> None:
        self._window = False
        self._broker.at(now)
        self.send()

    # -- timers --

    def _look_ahead(self) -> None:
        due = self._broker.deadlines.next()
        if due is not None and due < self._due:
            if self._deadline is not None:
                self._deadline.cancel()
            self._due = due
            self._deadline = self._timers.at(due, self._deadline_reached)
        if self._committing.wake_at != self._wake_at:
            self._set_wake(self._committing.wake_at)

    def _set_wake(self, instant: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_at = instant
        self._wake = None if instant == math.inf else self._timers.at(instant, self._woken)

    def _deadline_reached(self, now: float) -> None:
        self._deadline = None
        self._due = math.inf
        self._broker.handle_deadlines(now)
        self.send()

    def _woken(self, now: float) -> None:
        self._wake = None
        self._wake_at = math.inf
        self._broker.at(now)
        if self._committing.wake_at <= now:
            step = self._committing.wake(now)
            if step is not None:
                self._perform(step)
        self.after_work()
