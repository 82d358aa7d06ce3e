"""Messages that a node carries for others: read from an origin, kept for a while, and handed on when that is away.

Of each origin there is one *extent*: everything of it between two stamps that this node wanted.  A reader that has read
up to a stamp within the extent may go on from there; so order and once-only stay with the reader's vector, and a gap
waits for the origin or for another carrier.  Kept in memory, bounded by bytes and age: the origin's journal is the copy
that has to last.  The oldest go first, and are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sterna.mqtt.message import Message
from sterna.mqtt.topics import levels_of, matches
from sterna.vocabulary.identity import Stamp

NONE: Final = "none"
PARKED: Final = "parked"
ALL: Final = "all"
CARRIES: Final = (NONE, PARKED, ALL)

#: Of a page of carried messages: this many bytes, or one message that is bigger.
PAGE_BYTES: Final = 64 * 1024
#: A message besides its topic and payload.
OVERHEAD_BYTES: Final = 200
#: Longer than a question takes from its reader to us.
UNDERWAY_S: Final = 5.0


class CarriedOffer(NamedTuple):
    """A node has everything of an origin between two stamps."""

    carrier: str
    origin: str
    first: Stamp
    last: Stamp
    #: From the beginning: for readers that have never read the origin.
    whole: bool


class CarriedPage(NamedTuple):
    messages: list[tuple[int, int, Message]]
    reached: Stamp
    complete: bool


@dataclass(slots=True)
class _Carried:
    stamp: Stamp
    message: Message
    kept_at: float
    size: int


class _Extent:
    __slots__ = ("after", "is_whole", "kept")

    def __init__(self, after: Stamp, *, is_whole: bool) -> None:
        #: All after this stamp is here ...
        self.after = after
        #: ... and nothing was before it that a reader could miss.
        self.is_whole = is_whole
        self.kept: deque[_Carried] = deque()


class CarriedMessages:
    def __init__(self, bytes_max: int, age_s: float, dropped: Callable[[Message], None] = lambda message: None) -> None:
        """`dropped` hears of each message for which there was no room or no time."""
        self._dropped = dropped
        self._bytes_max = bytes_max
        self._age_s = age_s
        self._extents: dict[str, _Extent] = {}
        #: Origins in the order in which their messages were kept.
        self._order: deque[str] = deque()
        self.bytes = 0
        self.messages = 0
        #: Dropped for want of room, or because they were too old.
        self.evicted = 0
        self.handed_on = 0

    def begun(self, origin: str, after: Stamp, *, is_whole: bool) -> None:
        """Everything of this origin after the stamp will be given to `keep`."""
        if origin not in self._extents:
            self._extents[origin] = _Extent(after, is_whole=is_whole)

    def forget(self, origin: str) -> None:
        """Something of it was missed: it begins anew."""
        extent = self._extents.pop(origin, None)
        if extent is not None:
            self.bytes -= sum(one.size for one in extent.kept)
            self.messages -= len(extent.kept)

    def keep(self, message: Message, now: float, *, is_new: bool) -> None:
        """A message of another node, in the order of its origin."""
        assert message.identity is not None
        origin, stamp = message.identity.origin, message.identity.stamp
        self.begun(origin, Stamp(stamp.epoch, stamp.sequence - 1), is_whole=is_new)
        extent = self._extents[origin]
        if extent.kept and stamp <= extent.kept[-1].stamp:
            return
        size = len(message.topic) + len(message.payload) + len(message.properties) + OVERHEAD_BYTES
        extent.kept.append(_Carried(stamp, message, now, size))
        self._order.append(origin)
        self.bytes += size
        self.messages += 1
        self.make_room(now)

    def make_room(self, now: float) -> None:
        while self._order:
            extent = self._extents.get(self._order[0])
            if extent is not None and extent.kept:
                is_late = now - extent.kept[0].kept_at > self._age_s
                if self.bytes <= self._bytes_max and not is_late:
                    return
                gone = extent.kept.popleft()
                extent.after, extent.is_whole = gone.stamp, False
                self.bytes -= gone.size
                self.messages -= 1
                self.evicted += 1
                self._dropped(gone.message)
            self._order.popleft()

    def extent(self, origin: str) -> tuple[Stamp, bool] | None:
        """After which stamp everything is here, and whether from the beginning."""
        extent = self._extents.get(origin)
        return None if extent is None else (extent.after, extent.is_whole)

    def oldest_s(self, now: float) -> float | None:
        """Age of the oldest message carried."""
        firsts = [extent.kept[0].kept_at for extent in self._extents.values() if extent.kept]
        return now - min(firsts) if firsts else None

    def page(
        self, origin: str, after: Stamp | None, last: Stamp, filters: list[bytes] | None, since: float, wall: float
    ) -> CarriedPage | None:
        """The next that a reader wants, who has read so far; None if that does not follow on what is here.  One that
        has never read the origin gets what was published since it has belonged to the network."""
        extent = self._extents.get(origin)
        if extent is None or (after is None and not extent.is_whole) or (after is not None and after < extent.after):
            return None
        found: list[tuple[int, int, Message]] = []
        size = 0
        wanted = None if filters is None else [levels_of(one) for one in filters]
        for one in extent.kept:
            message = one.message
            if one.stamp > last or (after is not None and one.stamp <= after):
                continue
            if after is None and one.kept_at < since - UNDERWAY_S:
                continue
            if message.expires_at and message.expires_at <= wall:
                continue
            if wanted is not None and not message.retain:
                levels = levels_of(message.topic)
                if not any(matches(one_filter, levels) for one_filter in wanted):
                    continue
            if found and size + one.size > PAGE_BYTES:
                epoch, sequence, _ = found[-1]
                return CarriedPage(found, Stamp(epoch, sequence), complete=False)
            found.append((one.stamp.epoch, one.stamp.sequence, message))
            size += one.size
        self.handed_on += len(found)
        return CarriedPage(found, last, complete=True)
