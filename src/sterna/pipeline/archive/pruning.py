"""Which files of an archive a question may pass over, by what the log says of them: day, level, topics and instants.

The log of a million files is an Arrow table of 200 MB.  It is sifted as such: only files that are left become objects,
which take ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_WILD = frozenset("+#")


class FileChoice(NamedTuple):
    """Messages of one of these topic filters (of all topics, if there is none), from `since` to `until`."""

    topic_filters: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    before: date | None = None
    """Of days before this one, in UTC."""

    def of(self, listed: Any) -> Any:
        """Those entries of the log that may hold such a message."""
        tests: list[Any] = []
        if self.topic_filters:
            tests.append(reduce(pc.or_, (may_match(listed, one) for one in self.topic_filters)))
        if self.since is not None:
            tests.append(came_until(listed, self.since))
        if self.until is not None:
            tests.append(came_from(listed, self.until))
        if self.before is not None:
            tests.append(pc.less(listed["partition.date"], pa.scalar(self.before)))
        return sifted(listed, tests)


def sifted(listed: Any, tests: Iterable[Any]) -> Any:
    """Entries of which all is true."""
    masks = list(tests)
    return listed.filter(reduce(pc.and_, masks)) if masks else listed


def may_match(listed: Any, topic_filter: str) -> Any:
    """May a message be in it that the filter matches?"""
    start = literal_start(topic_filter)
    if start == topic_filter:
        return may_be(listed, start)
    return may_begin(listed, start)


def may_be(listed: Any, topic: str) -> Any:
    return _known(pc.and_(pc.less_equal(_told(listed, "min.topic"), topic), _reaches(listed, topic)))


def may_begin(listed: Any, start: str) -> Any:
    """May a topic in the file begin so?"""
    first = pc.utf8_slice_codeunits(_told(listed, "min.topic"), 0, len(start))
    return _known(pc.and_(pc.less_equal(first, start), _reaches(listed, start)))


def _reaches(listed: Any, topic: str) -> Any:
    return pc.greater_equal(_told(listed, "max.topic"), topic)


def literal_start(topic_filter: str) -> str:
    """The part of the filter before its first wildcard.  `a/#` matches `a` as well."""
    levels = topic_filter.split("/")
    fixed = next((number for number, level in enumerate(levels) if level in _WILD), len(levels))
    start = "/".join(levels[:fixed])
    return start if fixed == len(levels) or not start or levels[fixed] == "#" else f"{start}/"


def came_until(listed: Any, since: datetime) -> Any:
    """May a message be in it that came in at this instant or later?  Days are those of UTC."""
    day = pc.greater_equal(listed["partition.date"], pa.scalar(since.astimezone(UTC).date()))
    return pc.and_(_known(day), _known(pc.greater_equal(_instant(listed, "max"), _scalar(since))))


def came_from(listed: Any, until: datetime) -> Any:
    """May a message be in it that came in at this instant or earlier?"""
    day = pc.less_equal(listed["partition.date"], pa.scalar(until.astimezone(UTC).date()))
    return pc.and_(_known(day), _known(pc.less_equal(_instant(listed, "min"), _scalar(until))))


_INSTANT = pa.timestamp("us", "UTC")


def _scalar(instant: datetime) -> Any:
    return pa.scalar(instant.astimezone(UTC), _INSTANT)


def _instant(listed: Any, end: str) -> Any:
    name = f"{end}.ingress_time"
    return listed[name].cast(_INSTANT) if name in listed.column_names else pa.nulls(listed.num_rows, _INSTANT)


def _told(listed: Any, name: str) -> Any:
    return listed[name] if name in listed.column_names else pa.nulls(listed.num_rows, pa.string())


def _known(mask: Any) -> Any:
    """Of a file of which nothing is known everything may be true."""
    return pc.fill_null(mask, True)
