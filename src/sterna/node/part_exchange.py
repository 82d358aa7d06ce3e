"""Expressions over publishers at many nodes: every node computes its part, and parts travel instead of messages.

Here letters are opened and given to whom they concern: `part_server` for what others want of us, `part_client` for what
we want of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sterna.broker.broker import Broker
from sterna.broker.expressions.parts import ExpressionPart
from sterna.node.part_backfill import catch_up
from sterna.node.part_client import PartsAsked
from sterna.node.part_messages import (
    All,
    Apart,
    Done,
    Heard,
    Stopped,
    Told,
    Unwanted,
    Want,
    Windows,
    Word,
    decode,
    letters,
)
from sterna.node.part_server import PartsTold
from sterna.routing.link_frames import About
from sterna.routing.router import Router


class PartExchange:
    def __init__(
        self, broker: Broker, node: str, epoch: int, router: Router, known: list[str], frontier: Callable[[], int]
    ) -> None:
        """`known`: nodes there were before this one was started again.  `frontier`: of our own messages, the last that
        was delivered."""
        self._broker = broker
        self._router = router
        self._epoch = epoch
        self._frontier = frontier
        settings = broker.routes.computations.settings
        broker.routes.computations.parts.joined(node)
        pace_s = settings.pace_ms / 1000
        self._asked = PartsAsked(broker, self, pace_s, settings.expiry_s)
        self._told = PartsTold(broker, self, pace_s, settings.expiry_s, self._closed, self._catch_up)
        self._look()
        self._asked.expect(known)

    # -- the network tells --

    def subscriptions_changed(self) -> None:
        self._look()

    def _look(self) -> None:
        for part in self._asked.look():
            self._told.watch_windows(part)

    def _catch_up(self, part: ExpressionPart) -> None:
        catch_up(self._broker, part, self._frontier())

    def _closed(self, part: ExpressionPart) -> None:
        self._asked.close_windows(part)

    @property
    def untold(self) -> bool:
        """Do others have yet to hear what we want?"""
        return self._asked.untold

    def flush(self) -> None:
        """The end of a turn."""
        parts = self._broker.routes.computations.parts
        if parts.moved:
            moved, parts.moved = parts.moved, []
            for part in moved:
                part.moved = False
                self._asked.moved(part)
                self._told.moved(part)
        self._asked.flush()

    def found(self, node: str) -> None:
        self._told.found(node)
        self._asked.found(node)

    def lost(self, node: str) -> None:
        self._told.lost(node)
        self._asked.lost(node)

    def letter(self, sender: str, epoch: int, body: bytes) -> None:
        for word in decode(body):
            self._read(sender, epoch, word)

    def _read(self, sender: str, epoch: int, word: Word) -> None:
        if isinstance(word, Told):
            self._asked.told(sender, epoch, word)
        elif isinstance(word, Want):
            self._told.wanted(sender, epoch, word)
        elif isinstance(word, Unwanted):
            self._told.unwanted(sender, word.numbers)
        elif isinstance(word, All):
            self._told.only(sender, word.numbers)
        elif isinstance(word, Apart):
            self._told.take_apart(sender, word.number, word.topics)
        elif isinstance(word, Windows):
            self._asked.windows(sender, word)
        elif isinstance(word, Done):
            self._told.done(sender, word)
        elif isinstance(word, Heard):
            self._told.heard(sender, self._epoch, word)
        else:
            assert isinstance(word, Stopped)
            self._asked.stopped(sender, word.number, word.reason)

    # -- sending --

    def can_reach(self, node: str) -> bool:
        return self._router.link_to(node) is not None

    def send(self, to: str, words: Sequence[Word]) -> None:
        for body in letters(words):
            self._router.post(to, About.PARTS, body)
