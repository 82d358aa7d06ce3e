"""Periods in parts: at the end of each window every place reports its aggregate of every topic.

Parts of a window come from different messages, so a topic that several places have needs no care: its aggregates are
merged.  The window is closed once, when every place has reported it or has been waited for long enough.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sterna.operators.aggregates import Aggregate, aggregate_of, from_wire
from sterna.operators.engine import Engine
from sterna.operators.expression import Operator
from sterna.operators.part_engine import Silent
from sterna.operators.settings import OperatorSettings
from sterna.operators.stages import Counts, Outgrown, Stage
from sterna.operators.windows import Periodic, results_of

#: A topic in a window: its name, and an aggregate as `to_wire` gives it.
Item = tuple[bytes, object]

#: Windows whose report is kept until everybody has it; with one more the oldest goes.
REPORTS_MAX: Final = 8


class Reporting(Periodic):
    """Keeps what was in the windows that are over."""

    __slots__ = ("lost", "reports")

    def __init__(
        self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings, since_us: int
    ) -> None:
        super().__init__(after, counts, operator, settings, since_us)
        #: End of a window -> what was in it.
        self.reports: dict[int, list[Item]] = {}
        #: Reports that nobody came for in time.
        self.lost = 0

    def close(self) -> None:
        self.reports[self.end_us] = [(key, aggregate.to_wire()) for key, aggregate in self.held.items()]
        self.held = {}
        self.buckets = 0
        while len(self.reports) > REPORTS_MAX:
            del self.reports[min(self.reports)]
            self.lost += 1

    def state(self) -> bytes:
        return msgspec.msgpack.encode((super().state(), list(self.reports.items())))

    def resume(self, state: bytes) -> None:
        open_window, reports = msgspec.msgpack.decode(state, type=tuple[bytes, list[tuple[int, list[Item]]]])
        super().resume(open_window)
        self.reports = dict(reports)


class WindowsPart(Engine):
    """The inner half at one place.  `message` and `advance` give no results: see `reports`."""

    __slots__ = ("reporting",)

    reporting: Reporting

    def _chain(self, settings: OperatorSettings, since_us: int) -> Stage:
        aggregate, *rest = self._expression.operators
        self.reporting = Reporting(Silent(self.counts), self.counts, aggregate, settings, since_us)
        self._periodic = self.reporting
        self._stages.append(self.reporting)
        return self._behind(self.reporting, tuple(rest), settings, since_us)

    def follow(self, anchor_us: int, length_us: int) -> None:
        """Have these windows: the same at every place."""
        self.reporting.anchor_us = anchor_us
        self.reporting.length_us = length_us

    @property
    def aggregate(self) -> Operator:
        return self._expression.operators[0]

    @property
    def length_us(self) -> int:
        return self.reporting.length_us

    @property
    def reports(self) -> dict[int, list[Item]]:
        return self.reporting.reports

    def boundary(self, time_us: int) -> int:
        """The end of the last window that was over then."""
        return time_us - (time_us - self.reporting.anchor_us) % self.reporting.length_us

    def release(self, upto_us: int) -> None:
        """Nobody needs the reports of these windows any more."""
        for end_us in [end_us for end_us in self.reports if end_us <= upto_us]:
            del self.reports[end_us]


class RemoteWindows:
    """Reports of another place."""

    __slots__ = ("closed_us", "expected", "missed", "windows")

    def __init__(self) -> None:
        #: All windows that end by then have been reported.
        self.closed_us = 0
        self.windows: dict[int, list[Item]] = {}
        #: It is waited for.
        self.expected = True
        #: Windows that were closed without it.
        self.missed: set[int] = set()


class WindowsMerge:
    """The reports of all places, this one's included."""

    __slots__ = ("_own", "_topics_max", "late", "remotes")

    def __init__(self, own: WindowsPart, settings: OperatorSettings) -> None:
        self._own = own
        self._topics_max = settings.topics
        self.remotes: dict[str, RemoteWindows] = {}
        #: Reports that came when their window had been closed without them.
        self.late = 0

    def came(
        self, place: str, closed_us: int, end_us: int, is_first: bool, items: list[Item], *, done_us: int, more: bool
    ) -> None:
        """Some of what a place has of a window (0: of none); `more` is to come before all that ended by `closed_us` has
        been said.  Windows up to `done_us` are closed."""
        remote = self.expect(place)
        if items and end_us in remote.missed:
            remote.missed.discard(end_us)
            self.late += 1
        if items and end_us > done_us:
            if is_first:
                remote.windows[end_us] = []
            remote.windows.setdefault(end_us, []).extend(items)
        if not more:
            remote.closed_us = max(remote.closed_us, closed_us)
            remote.expected = True

    def expect(self, place: str) -> RemoteWindows:
        """It has something to report, perhaps."""
        remote = self.remotes.get(place)
        if remote is None:
            remote = self.remotes[place] = RemoteWindows()
        return remote

    def next_end(self, after_us: int, upto_us: int) -> int | None:
        """Of the first window between these in which anything came."""
        reported = [self._own.reports, *(remote.windows for remote in self.remotes.values())]
        return min((end for ends in reported for end in ends if after_us < end <= upto_us), default=None)

    def is_complete(self, end_us: int) -> bool:
        return all(remote.closed_us >= end_us for remote in self.remotes.values() if remote.expected)

    def values(self, end_us: int, counts: Counts) -> dict[bytes, float]:
        """Results by topic.  May raise Outgrown or StateError."""
        found: dict[bytes, Aggregate] = {}
        for windows in (self._own.reports, *(remote.windows for remote in self.remotes.values())):
            for topic, wire in windows.get(end_us, ()):
                aggregate = found.get(topic)
                if aggregate is None:
                    if len(found) >= self._topics_max:
                        raise Outgrown(f"more than {self._topics_max} topics")
                    aggregate = found[topic] = aggregate_of(self._own.aggregate)
                aggregate.merge(from_wire(self._own.aggregate, wire))
        return results_of(found, counts)

    def close(self, end_us: int) -> list[str]:
        """Close the window without the places that have not reported it; gives those that have."""
        told = []
        for place, remote in self.remotes.items():
            if remote.closed_us < end_us:
                remote.expected = False
                remote.missed.add(end_us)
                while len(remote.missed) > REPORTS_MAX:
                    remote.missed.discard(min(remote.missed))
            if any(end <= end_us for end in remote.windows):
                told.append(place)
                remote.windows = {end: items for end, items in remote.windows.items() if end > end_us}
        return told
