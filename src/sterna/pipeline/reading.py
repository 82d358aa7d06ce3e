"""What a task does: pull its ranges from the nodes as Arrow batches, in order, each row once.

Connections stay open between tasks of one worker process.  A node that goes away in the middle is waited for, and
reading goes on behind the last row that was handed out; nobody sees the seam.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from sterna.pipeline.errors import DataLoss, NodesMissing
from sterna.pipeline.feed_client import FeedClient, ReadEnd
from sterna.pipeline.feed_errors import FeedError, Trimmed, Unreachable
from sterna.pipeline.nodes import open_feed, survey
from sterna.pipeline.offsets import Range
from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.table import only

log = logging.getLogger(__name__)

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


class _Reading:
    def __init__(self, piece: Range, address: str | None, options: ReadOptions) -> None:
        self._piece = piece
        self._address = address
        self._options = options
        self._columns = tuple(dict.fromkeys((*options.columns, "offset")))
        self._patient_until: float | None = None
        self.offset = piece.start
        """The next one that has not been handed out."""

    def go_on(self) -> Iterator[Any]:
        key = (self._options.access, self._known_address())
        feed = _idle.pop(key, None) or open_feed(*key)
        finished = False
        try:
            filters = self._options.topics or None
            for batch in feed.read(self.offset, self._piece.stop, filters, columns=self._columns):
                self._patient_until = None
                behind = batch.column("offset")[-1].as_py() + 1
                yield only(batch, self._options.columns)
                self.offset = behind
            finished = True
            self._reached(feed.last_read)
        finally:
            # A reading that was broken off leaves answers in the pipe: such a connection is of no use to anybody.
            if finished and len(_idle) < _IDLE_CONNECTIONS_MAX:
                _idle[key] = feed
            else:
                feed.close()

    def _reached(self, end: ReadEnd | None) -> None:
        assert end is not None, "a read that ended says how"
        node, stop = self._piece.node, self._piece.stop
        if end.lost:
            self._lose(f"{end.lost} messages before offset {end.reached} of node {node} are damaged on its disk")
        if end.reached < stop:
            self._lose(f"node {node} has no messages {end.reached} to {stop - 1}: its data directory was replaced")
        self.offset = stop

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; set failOnDataLoss to false to go on without them")
        log.warning("%s", text)

    def _known_address(self) -> str:
        if self._address is None:
            raise Unreachable(f"nobody knows the address of node {self._piece.node}")
        return self._address

    def skip_to(self, first: int) -> None:
        """The node has dropped what comes next: say so, and go on only if that was asked for."""
        node, start, stop = self._piece.node, self.offset, min(first, self._piece.stop)
        assert first > start, "a node that dropped nothing we need"
        self._lose(
            f"node {node} has dropped {stop - start} messages, {start} to {stop - 1}, before they were read "
            f"(its journal begins at {first} by now; longer retention keeps more)"
        )
        self.offset = stop

    def wait_for_the_node(self, error: Unreachable) -> None:
        now = time.monotonic()
        if self._patient_until is None:
            self._patient_until = now + self._options.patience_s
        if now >= self._patient_until:
            raise NodesMissing(
                f"messages {self.offset} to {self._piece.stop - 1} of node {self._piece.node} cannot be read: {error}"
            ) from None
        time.sleep(_AGAIN_S)
        self._look_for_it()

    def _look_for_it(self) -> None:
        """It may have come back elsewhere: the others know."""
        try:
            found = survey(self._options.access, self._options.nodes, all_of_them=False)
        except (FeedError, NodesMissing):
            return
        if self._piece.node in found:
            self._address = found[self._piece.node].address
