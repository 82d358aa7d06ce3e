"""Since when a node belongs to its network, and what that owes to nodes it meets for the first time.

A message reaches every subscription that stood anywhere when it was acknowledged, even if the two nodes had never met:
so the first reading of an origin begins where both were members.  Each side measures its own time, on its own clock;
only lengths of time are compared, so clocks that differ do no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

#: Rows of other nodes that are passed over in search of one of our own.
PASSED_OVER_MAX = 1000
#: Clocks that say less than this (2020) were not set when they were asked.
PLAUSIBLE_S = 1_577_836_800
#: The longest that a question takes from its reader to us: a link that is silent for longer is given up, with all that
#: is under way on it (`dead_after_s` and `resume_s`).
UNDERWAY_S = 5.0
#: Nobody knows how long: longer than anybody else, rather than too short.
AGES_S = 1e9


class Membership:
    """`first` is the last of the node's messages before it became a member, with the second in which it did."""

    def __init__(self, first: Stamp | None, journal: Journal, now: float, wall: float) -> None:
        self.is_new = first is None
        self.first = first or Stamp(max(0, int(wall)), journal.next_offset - 1)
        self._journal = journal
        self._started = (now, wall)
        segments = journal.segments()
        #: The clock says that what we have in writing is yet to come.
        self._set_back = wall < max(self.first.epoch, segments[-1].newest_us / 1e6 if segments else 0)

    def age(self, now: float, wall: float) -> float:
        """Seconds, steady ones if possible: those since this start are, those before it are as the clock had them."""
        steady = now - self._started[0]
        born = self.first.epoch
        if self.is_new or born < PLAUSIBLE_S:
            return steady
        return AGES_S if self._set_back else max(steady, wall - born)

    def reading_begins(self, reader_age: float, now: float, wall: float, frontier: Stamp) -> Stamp:
        """After which of our own messages a node that has been a member for so long begins to read."""
        start = max(self.first.sequence + 1, self._journal.first_offset)
        reader_age += UNDERWAY_S
        if reader_age < self.age(now, wall):
            started, clock = self._started
            # The clock may have been set, forward or back: the earlier of both is early enough.
            born = min(wall, clock + now - started) - reader_age
            start = first_since(self._journal.read, start, frontier.sequence + 1, born)
        return Stamp(self._journal.epoch_of(start - 1), start - 1) if start else BEFORE_ALL


def first_since(read: Callable[[int], Message | None], start: int, stop: int, wall: float) -> int:
    """The first of our own messages in [start, stop) that was taken in at this time or later; they are in order."""
    while start < stop:
        middle = (start + stop) // 2
        offset, message = next_own(read, middle, stop)
        if message is None or message.received_at >= wall:
            stop = middle
        else:
            start = offset + 1
    return start


def next_own(read: Callable[[int], Message | None], offset: int, stop: int) -> tuple[int, Message | None]:
    """Where nobody else's messages end; None if that is not near."""
    for place in range(offset, min(stop, offset + PASSED_OVER_MAX)):
        message = read(place)
        if message is not None and message.identity is None:
            return place, message
    return stop, None
