"""Reads the ranges of a task from the nodes as Arrow batches, in order, each row once.

Connections stay open between the tasks of a worker process.  If a node goes away in the middle, the reader waits for
it and continues behind the last row it handed out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sterna.pipeline.conditions import asked_of_nodes, columns_of, rows_that_hold
from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.feed.client import FeedClient, ReadEnd
from sterna.pipeline.feed.errors import Busy, FeedError, Trimmed, Unreachable
from sterna.pipeline.offsets import Range, identity_of, node_of
from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.source.gaps import FORGOTTEN, REPLACED, JournalGap, lose
from sterna.pipeline.source.nodes import open_feed, survey
from sterna.pipeline.table import only

_AGAIN_S = 0.25
_IDLE_CONNECTIONS_MAX = 64

#: Feeds that no task is using just now, by whom they belong to.
_idle: dict[tuple[Access, str], FeedClient] = {}


def read_range(piece: Range, address: str | None, options: ReadOptions) -> Iterator[Any]:
    """The rows of one range that match, as record batches with the columns asked for."""
    reading = _Reading(piece, address, options)
    while reading.offset < piece.stop:
        try:
            yield from reading.go_on()
        except Trimmed as error:
            reading.skip_to(error.first)
        except Unreachable as error:
            reading.wait_for_the_node(error)


class _AnotherJournal(Exception):
    """The last row does not belong to the range."""


class _Reading:
    def __init__(self, piece: Range, address: str | None, options: ReadOptions) -> None:
        self._piece = piece
        self._identity = identity_of(piece.node)
        self._address = address
        self._options = options
        self._columns = tuple(dict.fromkeys((*options.columns, "offset", *columns_of(options.conditions))))
        self._asked = asked_of_nodes(options.topics, options.conditions)
        self._patient_until: float | None = None
        self.offset = piece.start
        """The next one that has not been handed out."""
        self._asked_from = piece.start

    def go_on(self) -> Iterator[Any]:
        key = (self._options.access, self._known_address())
        feed = _idle.pop(key, None) or open_feed(*key)
        finished = False
        try:
            self._asked_from = self.offset
            for batch in self._batches(feed):
                self._check_journal(feed)
                self._patient_until = None
                behind = batch.column("offset")[-1].as_py() + 1
                wanted = rows_that_hold(batch, self._options.conditions)
                if wanted.num_rows:
                    yield only(wanted, self._options.columns)
                self.offset = behind
            finished = True
            self._check_journal(feed)
            self._reached(feed.last_read)
        except _AnotherJournal:
            self._forgotten()
        finally:
            # A reading that was broken off leaves answers in the pipe: such a connection is of no use to anybody.
            if finished and len(_idle) < _IDLE_CONNECTIONS_MAX:
                _idle[key] = feed
            else:
                feed.close()

    def _batches(self, feed: FeedClient) -> Iterator[Any]:
        asked = self._asked
        return feed.read(
            self.offset,
            self._piece.stop,
            asked.filters,
            asked.since_us,
            asked.until_us,
            self._columns,
            publishers=asked.publishers,
            qos=asked.qos,
            sift=self._options.sift,
        )

    def _check_journal(self, feed: FeedClient) -> None:
        """Offsets mean something in their own journal: one in memory ends when its node is started again, another one
        with its disk."""
        if self._identity and feed.journal != self._identity:
            raise _AnotherJournal

    def _forgotten(self) -> None:
        stop = self._piece.stop
        self._lose(self.offset, stop, stop - self.offset, FORGOTTEN if self._identity.isdecimal() else REPLACED)
        self.offset = stop

    def _reached(self, end: ReadEnd | None) -> None:
        assert end is not None, "a read that ended says how"
        stop = self._piece.stop
        if end.lost:
            self._lose(self._asked_from, end.reached, end.lost, "they are damaged on its disk")
        if end.reached < stop:
            self._lose(end.reached, stop, stop - end.reached, REPLACED)
        self.offset = stop

    def _lose(self, start: int, stop: int, messages: int, cause: str) -> None:
        lose(JournalGap.of(self._piece.node, start, stop, messages, cause), self._options)

    def _known_address(self) -> str:
        if self._address is None:
            raise Unreachable(f"nobody knows the address of node {node_of(self._piece.node)}")
        return self._address

    def skip_to(self, first: int) -> None:
        """The node has dropped what comes next: say so, and go on only if that was asked for."""
        start, stop = self.offset, min(first, self._piece.stop)
        assert first > start, "a node that dropped nothing we need"
        cause = f"its retention dropped them before they were read, and its journal begins at {first} by now"
        self._lose(start, stop, stop - start, cause)
        self.offset = stop

    def wait_for_the_node(self, error: Unreachable) -> None:
        now = time.monotonic()
        if self._patient_until is None:
            self._patient_until = now + self._options.patience_s
        if now >= self._patient_until:
            node = node_of(self._piece.node)
            raise NodesMissing(
                f"messages {self.offset} to {self._piece.stop - 1} of node {node} cannot be read: {error}"
            ) from None
        time.sleep(_AGAIN_S)
        if not isinstance(error, Busy):
            self._look_for_it()

    def _look_for_it(self) -> None:
        """It may have come back elsewhere: the others know."""
        try:
            found = survey(self._options.access, self._options.nodes, all_of_them=False)
        except (FeedError, NodesMissing):
            return
        name = node_of(self._piece.node)
        if name in found:
            self._address = found[name].address
            if self._identity and found[name].journal != self._piece.node:
                self._forgotten()
