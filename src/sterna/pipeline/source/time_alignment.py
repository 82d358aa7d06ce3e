"""Time-aligned reading: no node is read much further in time than another.

A query with a watermark drops rows that are older than what it has seen of any node.  So a node that was away, or that
has a longer backlog than others, would lose its rows.  An aligned query reads each node only up to `within_us` beyond
the oldest message that is unread anywhere.  A node that is away holds the others up from where it was last seen, for
`patience_s` at most.  Clocks are those of the nodes; that of the driver counts where a node has nothing unread.
A node that comes back after that is late: what it brings of the time up to which the others are read is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedError
from sterna.pipeline.offsets import Offsets, in_order, node_of
from sterna.pipeline.source.kept_feeds import KeptFeeds
from sterna.pipeline.source.nodes import Seen


def came_in(feed: FeedClient, offset: int) -> int:
    """When the message at this offset did; 0 if it is not there."""
    found = 0
    for batch in feed.read(offset, offset + 1, columns=["ingress_time"]):
        found = batch.column("ingress_time").cast(pa.int64())[0].as_py()
    return found


LOOK_ROWS = 64
"""Looked through at first for a message that entered at the node; eight times as many the next time."""


def first_came_in(feed: FeedClient, start: int, stop: int) -> int | None:
    """When the first message of [start, stop) did that entered there; copies of other nodes' messages are not ours."""
    rows = LOOK_ROWS
    while start < stop:
        upto = min(stop, start + rows)
        found = [batch.column("ingress_time")[0].value for batch in feed.read(start, upto, columns=["ingress_time"])]
        if found:
            return int(found[0])
        start, rows = upto, rows * 8
    return None


Late = Callable[[str, int, int], None]
"""Told of a journal, and of which of its offsets."""


class TimeAlignment:
    def __init__(
        self, feeds: KeptFeeds, within_us: int, patience_s: float, late: Late = lambda _journal, _start, _stop: None
    ) -> None:
        self._feeds = feeds
        self._within_us = within_us
        self._patience_s = patience_s
        self._late = late
        #: Nodes that were waited for in vain, until they are back.
        self._released: set[str] = set()
        #: Others are read up to there.
        self._passed_us = 0
        #: Node -> when it was last in sight, by the steady clock.
        self._sights: dict[str, float] = {}
        #: Journal -> everything that came in before is read; of a node that is away, when it was last seen.
        self._read_until: dict[str, int] = {}

    def aligned(
        self, start: Offsets, end: Offsets, here: Mapping[str, Seen], now_us: int, steady_s: float
    ) -> Offsets:  # fmt: skip
        """The end, cut where it is too far ahead.  `here`: journals of the nodes in sight."""
        for journal in set(start) & set(here):
            self._sights[node_of(journal)] = steady_s
            self._look(here[journal], start[journal], end.get(journal, start[journal]), now_us)
            self._tell_late(here[journal], start[journal])
        waited_for = [journal for journal in start if self._is_waited_for(journal, here, steady_s)]
        if any(journal not in self._read_until for journal in waited_for):
            return in_order({**end, **start})  # nobody knows how far behind it is
        oldest = min((self._read_until[journal] for journal in waited_for), default=now_us)
        self._passed_us = max(self._passed_us, oldest)
        limit_us = oldest + self._within_us
        return in_order({journal: self._cut(journal, stop, start, here, limit_us) for journal, stop in end.items()})

    def _look(self, seen: Seen, start: int, end: int, now_us: int) -> None:
        try:
            found = first_came_in(self._feeds.at(seen.address), start, end)
            self._read_until[seen.journal] = now_us if found is None else found
        except FeedError:  # as it was when it was last asked
            self._read_until.setdefault(seen.journal, now_us)

    def _tell_late(self, seen: Seen, start: int) -> None:
        """Once for each time that it was away for too long."""
        if seen.name not in self._released:
            return
        try:
            stop = self._feeds.at(seen.address).offset_at(self._passed_us)
        except FeedError:
            return
        self._released.discard(seen.name)
        if start < stop:
            self._late(seen.journal, start, stop)

    def _is_waited_for(self, journal: str, here: Mapping[str, Seen], steady_s: float) -> bool:
        """An older journal of a node that has another one by now will not grow any more."""
        if journal in here:
            return True
        name = node_of(journal)
        if any(seen.name == name for seen in here.values()):
            return False
        if steady_s - self._sights.setdefault(name, steady_s) < self._patience_s:
            return True
        self._released.add(name)
        return False

    def _cut(self, journal: str, stop: int, start: Offsets, here: Mapping[str, Seen], limit_us: int) -> int:
        first = start.get(journal, stop)
        if first >= stop or journal not in here:
            return stop
        if self._read_until[journal] >= limit_us:
            return first
        try:
            reached = self._feeds.at(here[journal].address).offset_at(limit_us)
        except FeedError:
            return first
        return min(stop, max(first + 1, reached))
