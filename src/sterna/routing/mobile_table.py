"""The table of strategy `mobile`: each node, what it wants, and by which link it is reached.

A node is reached by a link, is here, or is *parked*: its link ended, and it has not come back.  A parked node keeps its
filters; messages for it stop here, and the place where it is parked is where the news of its return ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from sterna.routing.covering import FilterTable, canonical
from sterna.routing.mobile_frames import NodeRecord, ReachedNode, Version
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

#: The next hop of this node itself, and of a node whose link has ended; no link has these names.
HERE = ""
PARKED = "\0"

BEFORE: Version = (0, 0)
FIRST = Stamp(1, 0)


class NodeEntry:
    __slots__ = (
        "attachment",
        "away",
        "away_since",
        "digest",
        "filters",
        "frontier",
        "name",
        "now",
        "record",
        "suspect",
        "turns",
        "via",
        "waiting",
        "wave",
    )

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self.now = now
        self.attachment: Version = BEFORE
        self.record = NodeRecord(name, BEFORE)
        #: Of its record, in one form each.
        self.filters: dict[bytes, None] = {}
        self.via = PARKED
        #: It cannot be reached: it is parked here, or where its link leads.
        self.away = True
        self.away_since = now()
        #: Messages that entered here for it while it was away, and when the first did.
        self.waiting = (0, 0.0)
        self.digest = 0
        #: How often the way has changed here: a way that changed and changed back is another.
        self.turns = 0
        self.frontier: Stamp = BEFORE_ALL
        #: It was taken for away though no link has ended: messages for it may have been lost, and it does not know.
        self.suspect = False
        #: The claim that set the way last.
        self.wave: tuple[str, Version] = ("", BEFORE)

    @property
    def version(self) -> Version:
        return self.record.version

    @property
    def is_silent(self) -> bool:
        """It has never sent a message that is numbered."""
        return self.frontier < FIRST

    def told(self) -> ReachedNode:
        away_s = int(self.now() - self.away_since) + 1 if self.away else 0
        return ReachedNode(self.name, self.attachment, self.version, self.digest, self.frontier, away_s)


class MobileTable:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.nodes: dict[str, NodeEntry] = {}
        #: Filter -> the nodes that have it.
        self._wanted: FilterTable[dict[str, None]] = FilterTable()

    def __getitem__(self, name: str) -> NodeEntry:
        return self.nodes[name]

    def get(self, name: str) -> NodeEntry | None:
        return self.nodes.get(name)

    def add(self, name: str) -> NodeEntry:
        entry = self.nodes[name] = NodeEntry(name, self._now)
        return entry

    def forget(self, name: str) -> None:
        entry = self.nodes.pop(name)
        self._unlist(entry, list(entry.filters))

    def by(self, link: str) -> list[NodeEntry]:
        """Those reached by this link, or parked beyond it; the neighbour itself first."""
        found = [entry for entry in self.nodes.values() if entry.via == link]
        return sorted(found, key=lambda entry: entry.name != link)

    # -- filters --

    def set_record(self, entry: NodeEntry, record: NodeRecord) -> None:
        self._unlist(entry, list(entry.filters))
        entry.record = record
        self._list(entry, record.filters)

    def change_filters(self, entry: NodeEntry, record: NodeRecord, add: list[bytes], remove: list[bytes]) -> None:
        """The record is that of before with these differences."""
        entry.record = record
        self._unlist(entry, [canonical(topic_filter) for topic_filter in remove])
        self._list(entry, add)

    def _list(self, entry: NodeEntry, filters: Iterable[bytes]) -> None:
        for topic_filter in map(canonical, filters):
            entry.filters[topic_filter] = None
            nodes = self._wanted.get(topic_filter)
            if nodes is None:
                nodes = {}
                self._wanted.put(topic_filter, nodes)
            nodes[entry.name] = None

    def _unlist(self, entry: NodeEntry, filters: Iterable[bytes]) -> None:
        for topic_filter in filters:
            if entry.filters.pop(topic_filter, 0) is None:
                nodes = self._wanted[topic_filter]
                del nodes[entry.name]
                if not nodes:
                    self._wanted.remove(topic_filter)

    def wanting(self, topic: bytes) -> Iterator[NodeEntry]:
        """The nodes with a filter for this topic; one may come twice."""
        for topic_filter in self._wanted.matching(topic):
            for name in self._wanted[topic_filter]:
                yield self.nodes[name]

    @property
    def filters(self) -> int:
        return len(self._wanted)


def digest_of(entries: Iterable[NodeEntry]) -> int:
    """The same on both sides of a link that agree on who is reached."""
    hashed = blake2b(digest_size=8)
    for entry in sorted(entries, key=lambda one: one.name):
        hashed.update(repr((entry.name, tuple(entry.attachment), tuple(entry.version))).encode())
    return int.from_bytes(hashed.digest(), "big")
