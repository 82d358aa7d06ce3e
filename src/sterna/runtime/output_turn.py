"""What follows every piece of work: what it gave rise to is committed, sent to clients and nodes, and the clock set.

Clients are sent to at once, or under load with the rest of a window (`Pace`).  Nodes are sent to when all who were
ready in a round of the loop have been heard.  Whatever waits for a moment is looked at when that moment comes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from sterna.node.node import Node
from sterna.runtime.write_pacing import WINDOW_S, Pace

QUIET_LINKS_S: Final = 0.0005
"""Links that were flushed longer ago than this have little to carry."""


class Sending:
    def __init__(self, node: Node, commit_soon: Callable[[], None], networked: bool) -> None:
        self._node = node
        self._broker = node.broker
        self._commit_soon = commit_soon
        self._networked = networked
        self._pace = Pace()
        #: A window has begun whose end is awaited.
        self._window = False
        #: Links are to be flushed at the end of this round of the loop.
        self._linking = False
        #: When they were last.
        self._linked_at = 0.0
        self._deadline: asyncio.Handle | None = None
        self._due = math.inf

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def after_work(self) -> None:
        """HOT.  Send what the last piece of work gave rise to: now, or, under load, with the rest of its window."""
        if not self._pace.gathering:
            self.send()

    def send(self) -> None:
        """HOT."""
        broker = self._broker
        if broker.commitments.pending:
            self._commit_soon()
        self._pace.sent(broker.flush(), broker.now)
        if self._networked and not self._linking:
            # Clients are heard one after the other; what they say to other nodes goes out when all that were ready
            # in this round of the loop have been heard, in one batch.  Where little is said nobody else will have
            # been ready, and another round of the loop would cost more than it gathers.
            if broker.now - self._linked_at > QUIET_LINKS_S:
                self._send_to_nodes()
            else:
                self._linking = True
                self._loop.call_soon(self._send_to_nodes)
        if self._pace.gathering and not self._window:
            # Whatever made us send: nobody else will, before the window is over.
            self._window = True
            self._loop.call_later(WINDOW_S, self._window_over)
        self._look_ahead()

    def _send_to_nodes(self) -> None:
        self._linking = False
        self._linked_at = self._broker.now
        network = self._node.network
        if network is not None:
            network.flush()
        self._broker.flush()
        if self._broker.commitments.pending:
            self._commit_soon()
        self._look_ahead()

    def _window_over(self) -> None:
        self._window = False
        self._broker.at(monotonic())
        self.send()

    # -- what waits for a moment --

    def _look_ahead(self) -> None:
        due = self._broker.deadlines.next()
        if due is not None and due < self._due:
            self._set_deadline(due)

    def _set_deadline(self, due: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._due = due
        if due <= monotonic():
            # Work that goes on in the next turn: the loop's own clock lags behind, and a timer would wait that much.
            self._deadline = self._loop.call_soon(self._deadline_reached)
        else:
            self._deadline = self._loop.call_at(due, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._deadline = None
        self._due = math.inf
        self._broker.handle_deadlines(monotonic())
        self.send()
