"""QoS 0 messages that did not go on to another node, by the reason.

Nodes fetch sequenced messages that they missed; loose ones are gone, and may be, but not unnoticed.  Nothing is
done for a message as long as every link takes what it is given and every node can be reached.

When the way to some nodes is lost there is a *gap*: what the link to them no longer asks for because of that is
remembered, and messages that somebody behind it would have had are counted, where they stop, until there is a way
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from sterna.overlay.batches import frames_in
from sterna.overlay.link import Link
from sterna.routing.covering import FilterTable
from sterna.routing.link_frames import Frame
from sterna.routing.message_frames import LooseRecord, read_loose, read_number, read_opening
from sterna.vocabulary.drop_reasons import LossReason

#: Stands among links for those that cannot be reached; no link has this name.
NOWHERE: Final = ""

#: More than half of what a link may keep for its neighbour waits there.
CONGESTED: Final = "congested"
#: Too many came before everybody had heard of their topic.
UNANNOUNCED: Final = "unannounced"
#: The link session they were given to ended before they were written.
LINK_ENDED: Final = "link-ended"
#: It ended before the neighbour had said that it has them; perhaps it has.
UNACKNOWLEDGED: Final = "unacknowledged"
#: Somebody who cannot be reached had asked for them.
NO_WAY: Final = "no-way"
#: They came by another link than the one that leads to their origin; perhaps they came by that one too.
ASTRAY: Final = "astray"

#: A node that has found another way so shortly before a link session ended was behind that link when it was lost.
LEFT_S: Final = 10.0

#: A node away for longer counts as gone, and what it had asked for as no longer wanted.
GAP_S: Final = 30.0


@dataclass(slots=True)
class RouterCounters:
    """Since the node started."""

    forwarded: int = 0
    taken: int = 0
    #: Came by another link than the path, or came again; or no client may publish on its topic.
    refused: int = 0
    #: Frames that made no sense: their links were ended.
    nonsense: int = 0
    #: Messages from nodes further away that made no sense: they were left out.
    spoilt: int = 0


class Gap:
    __slots__ = ("all", "filters", "missing", "nearest", "number")

    def __init__(self, number: int) -> None:
        #: Tells it from others of the same link.
        self.number = number
        #: The node whose link was lost: it may be dead, and the others find another way.
        self.nearest = ""
        #: Those that were behind it, and those of them that there is no way to yet.
        self.all: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.filters: FilterTable[None] = FilterTable()

    @property
    def is_closed(self) -> bool:
        return not self.missing or (len(self.all) > 1 and list(self.missing) == [self.nearest])


class Losses:
    def __init__(
        self,
        *,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed`: `misses` may answer otherwise than before."""
        self.by_reason: dict[str, int] = {}
        self._now = now
        self._schedule = schedule
        self._changed = changed
        #: Link -> what it asked for.
        self._gaps: dict[str, Gap] = {}
        self._opened = 0
        #: Link -> who found another way, and when.
        self._left: dict[str, dict[str, float]] = {}
        #: Link -> since which of its batches, and when, nobody but the neighbour itself was behind it.
        self._left_alone: dict[str, tuple[int, float]] = {}

    def count(self, reason: LossReason, messages: int) -> None:
        if messages:
            self.by_reason[reason] = self.by_reason.get(reason, 0) + messages

    def not_taken(self, link: Link, body: bytes) -> None:
        """A loose body that a link has no room for, or that comes after its session was given up."""
        self.count(CONGESTED if link.given_up is None else LINK_ENDED, loose_in(body))

    def left(self, link: Link, origin: str, behind: list[str]) -> None:
        """There is another way to this node now; these are still reached by the link.

        Messages sent by the link until now may be lost, as it may be down without anybody knowing.  Later ones go the
        other way too.
        """
        now = self._now()
        self._left.setdefault(link.peer, {})[origin] = now
        if behind in ([], [link.peer]):
            self._left_alone[link.peer] = (link.number, now)

    def link_ended(self, link: Link, gathered: list[LooseRecord]) -> None:
        """Counts what the session still kept, and what was to be given to it at the end of this turn."""
        last, at = self._left_alone.pop(link.peer, (link.number, self._now()))
        if self._now() - at > LEFT_S:
            last = link.number
        unwritten, unacknowledged = link.leftovers()
        if last == link.number:
            self.count(LINK_ENDED, sum(record.count for record in gathered))
        self.count(LINK_ENDED, _loose_in_batches(unwritten, last))
        self.count(UNACKNOWLEDGED, _loose_in_batches(unacknowledged, last))

    # -- gaps --

    def way_lost(self, link: str, nearest: str, origins: list[str]) -> None:
        """There is no way to these nodes any more; it led by this link.  `no_longer_wanted` follows."""
        if not origins:
            return
        gap = self._gaps.get(link)
        self._opened += 1
        if gap is None:
            gap = self._gaps[link] = Gap(self._opened)
        gap.number = self._opened
        gap.nearest = nearest
        gap.all.update(dict.fromkeys(origins))
        gap.missing.update(dict.fromkeys(origins))
        for origin, at in self._left.pop(link, {}).items():
            if self._now() - at <= LEFT_S:
                gap.all[origin] = None
        if gap.is_closed:
            self._close([link])
            return
        self._schedule(self._now() + GAP_S, partial(self._is_over, link, gap.number))

    def no_longer_wanted(self, link: str, filters: Iterable[bytes]) -> None:
        """A link asks for these no more.  While nodes behind it are missing, that is because they are."""
        gap = self._gaps.get(link)
        if gap is not None:
            for topic_filter in filters:
                gap.filters.put(topic_filter, None)
            self._changed()

    def found(self, origin: str) -> None:
        """There is a way to this node."""
        closed = []
        for link, gap in self._gaps.items():
            gap.missing.pop(origin, None)
            if gap.is_closed:
                closed.append(link)
        self._close(closed)

    def _is_over(self, link: str, number: int) -> None:
        gap = self._gaps.get(link)
        if gap is not None and gap.number == number:
            self._close([link])

    def _close(self, links: list[str]) -> None:
        for link in links:
            del self._gaps[link]
        if links:
            self._changed()

    def misses(self, topic: bytes, links: list[str], origin: str | None = None) -> bool:
        """Would somebody who cannot be reached have had a message that goes to these links?  One that came from there
        is not for them."""
        for link, gap in self._gaps.items():
            if link not in links and origin not in gap.all and any(gap.filters.matching(topic)):
                return True
        return False

    def nowhere(self, body: bytes, links_for: Callable[[bytes], list[str]]) -> None:
        """A loose body for nodes that cannot be reached."""
        origin, records = _read(body)
        for record in records:
            if self.misses(record.topic, links_for(record.topic), origin):
                self.count(NO_WAY, record.count)


def loose_in(body: bytes) -> int:
    """Messages in a loose body."""
    return sum(record.count for record in _read(body)[1])


def _read(body: bytes) -> tuple[str, list[LooseRecord]]:
    origin, _, position = read_opening(body)
    return origin, read_loose(body, read_number(body, position)[1])


def _loose_in_batches(batches: list[tuple[int, bytes]], last: int) -> int:
    """Messages in those up to the last that counts."""
    payloads = (payload for number, payload in batches if number <= last)
    frames = (frame for payload in payloads for frame in frames_in(payload, 0, len(payload)))
    return sum(loose_in(body) for kind, body in frames if kind == Frame.LOOSE)
