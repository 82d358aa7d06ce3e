"""Of strategy `mobile`: what each neighbour has been told of the nodes beyond this one, and whether both agree.

News is told when there is time.  Left out is all that the neighbour knows or can do without: by which links a node is
reached that has sent nothing, how far messages have come that went to it, and nodes that have lost their link a moment
ago and may be back elsewhere.  A digest of all that is reached not through the neighbour shows whether both agree; if
they still do not when news has had its time, all of it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from msgspec import structs

from sterna.routing.mobile_frames import Digest, MobileFrame, News, ReachedNode, RecordWanted, Version
from sterna.routing.mobile_table import BEFORE, PARKED, MobileTable, NodeEntry, digest_of
from sterna.vocabulary.identity import Stamp

#: Absent nodes are told to a neighbour whose link has stood for so long, and at once if messages for those go on.
STEADY_S = 10.0
#: A neighbour whose digest differs for so many times `news_s` is asked for everything: news may be on its way.
PATIENCE = 3
#: One that still tells something else than we know is asked again after at most this long.
PATIENCE_MAX_S = 60.0
#: Records that a neighbour lacks go out so many at once, and more after this time.
RECORDS_AT_ONCE_MAX = 100
SLOT_S = 0.05
#: The digest of a way that the sender does not offer any more, or has not told.
WITHDRAWN = 0

#: A node as a neighbour was told of it: attachment, version, digest, away, frontier.
Known = tuple[Version, Version, int, bool, Stamp]


class MobileNeighbour:
    """The words told on one link session."""

    __slots__ = (
        "differs_since",
        "digest",
        "heard",
        "is_paying",
        "its_digest",
        "owed",
        "patience_s",
        "queried",
        "sent_in_slot",
        "since",
        "slot_s",
        "told",
        "versions",
    )

    def __init__(self, now: float, news_s: float) -> None:
        self.since = now
        #: Node -> what we told it; what it told us.
        self.told: dict[str, Known] = {}
        self.heard: dict[str, ReachedNode] = {}
        #: Node -> the version of its record that the neighbour has, and the one it was asked for.
        self.versions: dict[str, Version] = {}
        self.queried: dict[str, Version] = {}
        #: Nodes whose records it lacks; how many were sent since the time that follows.
        self.owed: dict[str, None] = {}
        self.sent_in_slot = 0
        self.slot_s = now
        self.is_paying = False
        #: Our last words to it, and its to us.
        self.digest: int | None = None
        self.its_digest: int | None = None
        #: Since when its digest is another than ours, and how long we wait until we ask for everything.
        self.differs_since: float | None = None
        self.patience_s = PATIENCE * news_s

    def note(self, entry: NodeEntry) -> ReachedNode:
        """It is being told."""
        self.told[entry.name] = _known(entry)
        return entry.told()

    def claim(self, entry: NodeEntry) -> ReachedNode:
        """It is being told, and will believe it: its own way to there is by us from now on.  So its earlier word is no
        way round, if a link of ours ends before it has taken that back."""
        self.heard.pop(entry.name, None)
        return self.note(entry)

    def forget(self, name: str) -> None:
        """Nothing was ever said of this node."""
        for said in (self.told, self.heard, self.versions, self.queried, self.owed):
            said.pop(name, None)

    def due(self, now: float) -> list[str]:
        """Of the nodes whose records it lacks, those whose turn it is."""
        if now >= self.slot_s + SLOT_S:
            self.slot_s, self.sent_in_slot = now, 0
        found = list(islice(self.owed, RECORDS_AT_ONCE_MAX - self.sent_in_slot))
        for name in found:
            del self.owed[name]
        self.sent_in_slot += len(found)
        return found

    def handed_on(self, origin: str, stamp: Stamp) -> None:
        """Messages of this origin have been sent to it, so that it knows how far they have come."""
        known = self.told.get(origin)
        if known is not None:
            self.told[origin] = (*known[:4], stamp)


class MobileDigests:
    """Tells the neighbours, and compares."""

    def __init__(
        self,
        table: MobileTable,
        send: Callable[[str, MobileFrame], None],
        upward: Callable[[], tuple[str, ...] | None],
        now: Callable[[], float],
        news_s: float,
    ) -> None:
        self._table = table
        self._send = send
        self._upward = upward
        self._now = now
        self._news_s = news_s

    def told_to(self, link: str) -> list[NodeEntry]:
        """All that we reach not through this neighbour, and those that are away."""
        upward = self._upward() or ()
        return [
            entry
            for entry in self._table.nodes.values()
            if entry.via != link and entry.name != link and not (link in upward and entry.via in upward)
        ]

    def welcome(self, link: str, neighbour: MobileNeighbour) -> None:
        """Somebody who comes from elsewhere in the partition knows the rest of it.  If not, the digest shows it."""
        for entry in self.told_to(link):
            if entry.is_silent and not entry.away:
                told = (entry.attachment, entry.version, WITHDRAWN, False, entry.frontier)
                neighbour.told.setdefault(entry.name, told)
        self._send_digest(link, neighbour)

    def _send_digest(self, link: str, neighbour: MobileNeighbour) -> None:
        digest = digest_of(entry for entry in self.told_to(link) if not entry.away)
        if digest != neighbour.digest:
            neighbour.digest = digest
            self._send(link, Digest(digest))

    def came(self, link: str, neighbour: MobileNeighbour, digest: int) -> list[NodeEntry]:
        """The nodes that are reached through this neighbour from now on: after a change of the parent all that is not
        behind us is reached by the new one, if it knows the same."""
        is_first, neighbour.its_digest = neighbour.its_digest is None, digest
        if self._agrees(link, neighbour):
            return []
        upward = self._upward() or ()
        if link in upward[:1]:
            rest = [entry for entry in self._table.nodes.values() if entry.via in (link, PARKED, *upward)]
            if digest_of(rest) == digest:
                return [entry for entry in rest if entry.via != link or entry.away]
        if is_first and not self._is_known(link):
            self._send(link, RecordWanted())
        return []

    def _is_known(self, link: str) -> bool:
        """Is this a neighbour that we have heard of before?"""
        entry = self._table.get(link)
        return entry is not None and entry.record.version != BEFORE

    def _agrees(self, link: str, neighbour: MobileNeighbour) -> bool:
        by_link = (entry for entry in self._table.by(link) if not entry.away)
        return neighbour.its_digest in (None, digest_of(by_link))

    def tell(self, links: Iterable[tuple[str, MobileNeighbour]], *, everyone: bool) -> bool:
        """News is due (`everyone`: also of those who are away).  True if more will be, in the same time again."""
        in_between = any(map(self._may_be_back, self._table.nodes.values()))
        again = in_between
        for link, neighbour in links:
            if self._is_to_claim(link, neighbour):
                again = True
                continue
            self.tell_news(link, neighbour, everyone=everyone)
            if not in_between:
                self._send_digest(link, neighbour)
            again |= self._differs(link, neighbour)
        return again

    def _differs(self, link: str, neighbour: MobileNeighbour) -> bool:
        """A difference that lasts longer than news takes is asked for whole; the more rarely, the longer it lasts."""
        if self._agrees(link, neighbour):
            neighbour.differs_since, neighbour.patience_s = None, PATIENCE * self._news_s
            return False
        now = self._now()
        if neighbour.differs_since is None:
            neighbour.differs_since = now
        elif now - neighbour.differs_since >= neighbour.patience_s:
            neighbour.differs_since, neighbour.patience_s = now, min(PATIENCE_MAX_S, 2 * neighbour.patience_s)
            self._send(link, RecordWanted())
        return True

    def _may_be_back(self, entry: NodeEntry) -> bool:
        """Its link has just ended: it may be linking with somebody else, whose claim tells more than we could."""
        return entry.away and entry.via == PARKED and self._now() - entry.away_since < 2 * self._news_s

    def _is_to_claim(self, link: str, neighbour: MobileNeighbour) -> bool:
        """Is this a neighbour that dialled us a moment ago, and will say where it comes from?"""
        upward = self._upward()
        is_new = not neighbour.heard and self._now() - neighbour.since < 2 * self._news_s
        return is_new and upward is not None and link not in upward

    def tell_news(self, link: str, neighbour: MobileNeighbour, *, everyone: bool) -> None:
        told = neighbour.told
        everyone = everyone or self._now() - neighbour.since >= STEADY_S
        to_tell = [one for one in self.told_to(link) if everyone or not one.away or one.name in told]
        news = [
            neighbour.note(entry)
            for entry in to_tell
            if _is_news(entry, told.get(entry.name)) and not self._may_be_back(entry)
        ]
        named = {entry.name for entry in to_tell}
        for name in [name for name in told if name not in named]:
            # It is reached through the neighbour now, or forgotten: what was said of it holds no longer.
            if (entry := self._table.get(name)) is not None and not told[name][3]:
                news.append(structs.replace(entry.told(), away_s=1, digest=WITHDRAWN))
            del told[name]
        if news:
            self._send(link, News(news))

    def take_back(self, link: str, neighbour: MobileNeighbour, entry: NodeEntry) -> None:
        """It is reached through the neighbour now: our earlier word is no way round if a link of the neighbour ends."""
        known = neighbour.told.pop(entry.name, None)
        if known is not None and not known[3]:
            self._send(link, News([structs.replace(entry.told(), away_s=1, digest=WITHDRAWN)]))

    def tell_ahead(self, link: str, neighbour: MobileNeighbour, entry: NodeEntry) -> None:
        """A message of this node is about to be sent: a change of its way goes ahead."""
        known = neighbour.told.get(entry.name)
        if known is None or known[0] != entry.attachment or known[2:4] != (entry.digest, entry.away):
            self._send(link, News([neighbour.note(entry)]))


def _known(entry: NodeEntry) -> Known:
    return (entry.attachment, entry.version, entry.digest, entry.away, entry.frontier)


def _is_news(entry: NodeEntry, told: Known | None) -> bool:
    """Has something changed since this was told?  By which links a node is reached that has sent nothing can wait."""
    if told is None or not entry.is_silent:
        return told != _known(entry)
    attachment, version, _, away, frontier = _known(entry)
    return (attachment, version, away, frontier) != (*told[:2], *told[3:])
