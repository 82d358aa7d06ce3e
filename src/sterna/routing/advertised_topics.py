"""Topics that an origin advertises: a bounded set of topics and `prefix/#` filters, each kept as long as it is used.

`OwnTopics` is the set of this node.  It grows by topics; when there are too many, those that begin alike become one
filter.  The filters then match more than is published, never less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sterna.routing.covering import FilterTable
from sterna.routing.routing_frames import EVERYTHING

#: Topics are put together by at most so many of their first levels.
PREFIX_LEVELS_MAX = 8
#: How many must begin alike to be put together: large groups first, they lose least for what they save.
GROUP_SIZES = (32, 8, 2)


class AdvertisedTopics:
    """A set of advertised filters that knows what overlaps it."""

    __slots__ = ("_everything", "_filters")

    def __init__(self) -> None:
        self._filters: FilterTable[None] = FilterTable()
        self._everything = False

    def __len__(self) -> int:
        return len(self._filters) + self._everything

    def __iter__(self) -> Iterator[bytes]:
        if self._everything:
            yield EVERYTHING
        yield from self._filters

    def __contains__(self, topic_filter: object) -> bool:
        return self._everything if topic_filter == EVERYTHING else topic_filter in self._filters

    def add(self, topic_filter: bytes) -> None:
        if topic_filter == EVERYTHING:
            self._everything = True
        else:
            self._filters.put(topic_filter, None)

    def remove(self, topic_filter: bytes) -> None:
        if topic_filter == EVERYTHING:
            self._everything = False
        else:
            self._filters.remove(topic_filter)

    def overlaps(self, topic_filter: bytes) -> bool:
        return self._everything or any(True for _ in self._filters.overlapping(topic_filter))


class AdvertisedChange(NamedTuple):
    """New advertisements, and old ones that are no longer needed."""

    new: list[bytes]
    gone: list[bytes]


class OwnTopics:
    """Which topics this node advertises, and whether they have been used since the last `sweep`."""

    __slots__ = ("_everything_used", "_max", "_used")

    def __init__(self, topics_max: int) -> None:
        self._max = topics_max
        self._used: FilterTable[bool] = FilterTable()
        #: None: not every topic is advertised.
        self._everything_used: bool | None = None

    def __len__(self) -> int:
        return len(self._used) + (self._everything_used is not None)

    def __iter__(self) -> Iterator[bytes]:
        if self._everything_used is not None:
            yield EVERYTHING
        yield from self._used

    def use(self, topic: bytes) -> AdvertisedChange:
        if self._everything_used is not None:
            self._everything_used = True
            return AdvertisedChange([], [])
        for known in self._used.matching(topic):
            self._used.put(known, True)
            return AdvertisedChange([], [])
        self._used.put(topic, True)
        if len(self._used) <= self._max:
            return AdvertisedChange([topic], [])
        return self._collapse(topic)

    def sweep(self) -> tuple[list[bytes], list[bytes]]:
        """(used since the last sweep, not used and therefore no longer advertised)."""
        used = [known for known in self._used if self._used[known]]
        idle = [known for known in self._used if not self._used[known]]
        for known in used:
            self._used.put(known, False)
        for known in idle:
            self._used.remove(known)
        if self._everything_used is not None:
            (used if self._everything_used else idle).append(EVERYTHING)
            self._everything_used = False if self._everything_used else None
        return used, idle

    def _collapse(self, topic: bytes) -> AdvertisedChange:
        """Make half of the room free again, so that it is not to be done for every new topic."""
        before = dict.fromkeys(self._used)
        del before[topic]  # has not been told to anybody
        for size in GROUP_SIZES:
            for levels in range(PREFIX_LEVELS_MAX, 0, -1):
                self._put_together(size, levels)
        if len(self._used) > self._max // 2:
            self._replace(b"#")
        if len(self._used) > self._max // 2:  # topics with many different first levels that begin with `$`
            self._used = FilterTable()
            self._everything_used = True
        now = dict.fromkeys(self)
        return AdvertisedChange([f for f in now if f not in before], [f for f in before if f not in now])

    def _put_together(self, size: int, levels: int) -> None:
        if len(self._used) <= self._max // 2:
            return
        split = (known.split(b"/") for known in self._used)
        groups = Counter(b"/".join(known[:levels]) for known in split if len(known) > levels)
        for prefix, count in groups.most_common():
            if count < size or len(self._used) <= self._max // 2:
                return
            self._replace(prefix + b"/#")

    def _replace(self, wide: bytes) -> None:
        narrow = list(self._used.covered(wide))
        for topic_filter in narrow:
            self._used.remove(topic_filter)
        if narrow:
            self._used.put(wide, True)
