"""Routing between nodes that move: what each node wants goes by version, and a way that changed is told along the way.

Every node has a record of what it wants, with a version; records pass from neighbour to neighbour until all have the
newest.  By which link a node is reached is told apart from that.  When a link ends, the nodes behind it are *parked*:
nobody is told at once, and messages for them stop there.  When they come back elsewhere, the neighbour that found a new
parent claims itself and all behind it.  The claim is believed, turns the ways towards the claimer, and goes on along
the old ways up to the place where the nodes are parked; nobody else needs to know.  A claim that reaches the node that
it is about was false: that node says where it is, with a higher number, to all.

The rest is told when there is time (`news_s`), or ahead of the first message that takes a changed way: the digest of
the link sessions on the way, how far the node's messages have come, and whether it is away.  Readers whose way to an
origin has changed are in doubt; they read it again when they hear that it has more than they have, and not before.

Link sessions lose nothing, so what a neighbour was told is known (`mobile_digests`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import ClassVar

from msgspec import structs

from sterna.routing.carried import CarriedOffer
from sterna.routing.frame_checks import is_filter, is_share
from sterna.routing.interest import text_of
from sterna.routing.link_frames import Announce, Lost
from sterna.routing.mobile_digests import SLOT_S, STEADY_S, WITHDRAWN, MobileDigests, MobileNeighbour
from sterna.routing.mobile_frames import (
    HOPS_MAX,
    VERSION_MAX,
    Ask,
    Claim,
    Delta,
    Digest,
    MobileFrame,
    News,
    NodeRecord,
    Query,
    ReachedNode,
    RecordWanted,
    Version,
    decode,
    encode,
)
from sterna.routing.mobile_table import BEFORE, HERE, PARKED, MobileTable, NodeEntry
from sterna.routing.paths import FEED_CHARACTERS_MAX, ORIGINS_MAX, OriginPath, fold
from sterna.routing.strategy import MobilePathUser, RoutingOutput, RoutingSettings, Shares
from sterna.vocabulary import versions
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp, VersionVector

#: A node contradicts false claims at most so often; two of one name would do it for ever.
CONTRADICT_S = 1.0
#: Versions from this epoch on are refused.  Epochs are seconds of clocks that may be wrong, and a node may have been
#: away for long: no lower bound is right for all.
EPOCHS_END = 2**32 - 2**24
#: A node that has to use an epoch that it has not come to yet begins with this number: what it says when it has come to
#: it is older.
AHEAD_OF_TIME = 2**39
#: A node whose filters are more bytes than this asks for everything instead.
RECORD_BYTES_MAX = 256 * 1024


class MobileCounters:
    __slots__ = ("asked", "claims", "contradicted", "refused")

    def __init__(self) -> None:
        self.claims = 0
        self.contradicted = 0
        self.asked = 0
        self.refused = 0


class MobileRouting:
    """The strategy, and its own table of paths."""

    name: ClassVar[str] = "mobile"
    goes_ahead = False

    def __init__(
        self,
        node: str,
        output: RoutingOutput,
        *,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        settings: RoutingSettings,
    ) -> None:
        self._node = node
        self._output = output
        self._now = now
        self._schedule = schedule
        self._settings = settings
        self._table = MobileTable(now)
        self._own = self._table.add(node)
        self._own.via, self._own.away = HERE, False
        self._user: MobilePathUser
        self._epoch = 0
        self._claims = 0
        self._links: dict[str, MobileNeighbour] = {}
        self._digests = MobileDigests(self._table, self._send, lambda: self._user.upward(), now, settings.news_s)
        self._local: dict[bytes, int] = {}
        self._gained: dict[bytes, None] = {}
        self._gone: dict[bytes, None] = {}
        self._is_wide = False
        self._ticking = False
        self._contradicted_at = -CONTRADICT_S
        self._contradicts_later = False
        #: The highest version of our record that others have told.
        self._said_of_us = BEFORE
        self._overtook_at = -CONTRADICT_S
        self._forget_at = inf
        self._conflicts: dict[str, int] = {}
        self.counters = MobileCounters()
        #: Messages for nodes that are away go as far as they can, for somebody to keep them there.
        self.sends_to_away = False
        self._is_anybody_away = False
        #: Nodes whose way has changed, and not all neighbours know.
        self.untold: dict[str, None] = {}

    # -- the strategy --

    def paths(self, epoch: int, feed: str, clients: str, user: MobilePathUser) -> MobileRouting:
        self._user = user
        self._epoch = epoch
        self._own.attachment = (epoch, 0)
        feed, speaks = feed[:FEED_CHARACTERS_MAX], versions.LINK.newest
        record = NodeRecord(self._node, (epoch, 0), feed=feed, clients=clients, speaks=speaks)
        self._table.set_record(self._own, record)
        return self

    def want(self, topic_filter: bytes) -> None:
        count = self._local.get(topic_filter, 0)
        self._local[topic_filter] = count + 1
        if not count:
            self._gained[topic_filter] = None
            self._gone.pop(topic_filter, None)

    def unwant(self, topic_filter: bytes) -> None:
        assert self._local.get(topic_filter), "a filter nobody wanted is not wanted any more"
        self._local[topic_filter] -= 1
        if not self._local[topic_filter]:
            del self._local[topic_filter]
            self._gone[topic_filter] = None
            self._gained.pop(topic_filter, None)

    def origin_routed(self, origin: str, link: str | None) -> None:
        """The paths are our own."""

    def publishing(self, topic: bytes) -> bool:
        """Nobody needs to know beforehand."""
        return False

    def links_for(self, topic: bytes) -> list[str]:
        links = {
            entry.via: None
            for entry in self._table.wanting(topic)
            if entry.via in self._links and (self.sends_to_away or not entry.away)
        }
        return sorted(links)

    def everything(self) -> bool:
        return False

    def flush(self) -> None:
        if self._gained or self._gone:
            known = self._own.filters
            gained = [one for one in self._gained if one not in known]
            gone = [one for one in self._gone if one in known]
            self._gained, self._gone = {}, {}
            self._change_filters(gained, gone)

    def _change_filters(self, gained: list[bytes], gone: list[bytes]) -> None:
        size = sum(map(len, self._local))
        was_wide, self._is_wide = self._is_wide, size > RECORD_BYTES_MAX
        if self._is_wide or was_wide:
            wide = [b"#", *(one for one in self._local if one.startswith(b"$"))] if self._is_wide else None
            self._renew(structs.replace(self._own.record, filters=wide or list(self._local)))
        elif gained or gone:
            record = structs.replace(self._own.record, version=self._next_version(), filters=list(self._local))
            before = self._own.version
            self._table.change_filters(self._own, record, gained, gone)
            delta = Delta(self._node, record.version, gained, gone)
            for link, neighbour in self._links.items():
                if neighbour.versions.get(self._node) == before:
                    neighbour.versions[self._node] = record.version
                    self._send(link, delta)
                else:
                    self._send_record(link, self._own)

    def _next_version(self) -> Version:
        return self._above(self._own.version)

    def _above(self, version: Version) -> Version:
        """The next one."""
        epoch, number = version
        number = number + 1 if epoch <= self._epoch else max(number, AHEAD_OF_TIME) + 1
        return (epoch, number) if number < VERSION_MAX else (epoch + 1, AHEAD_OF_TIME + 1)

    def _renew(self, record: NodeRecord) -> None:
        """Something else about this node has changed."""
        if record != self._own.record:
            self._table.set_record(self._own, structs.replace(record, version=self._next_version()))
            for link in self._links:
                self._send_record(link, self._own)

    def table(self) -> dict[str, object]:
        nodes = {entry.name: entry.via for entry in self._reached()}
        filters = {entry.name: text_of(entry.filters) for entry in self._reached()}
        return {
            "strategy": self.name,
            "local": text_of(self._local),
            "links": {link: {"nodes": [entry.name for entry in self._by(link)]} for link in sorted(self._links)},
            "routes": nodes,
            "wants": filters,
            "filters": self._table.filters,
        }

    # -- paths --

    def link_to(self, origin: str) -> str | None:
        entry = self._table.get(origin)
        return entry.via if entry is not None and not entry.away and entry.via in self._links else None

    def leads_by(self, link: str, origin: str, epoch: int) -> bool:
        """HOT."""
        entry = self._table.get(origin)
        return entry is not None and entry.via == link and epoch <= entry.attachment[0]

    def _reached(self) -> list[NodeEntry]:
        return [entry for entry in self._table.nodes.values() if entry.via in self._links and not entry.away]

    @property
    def origins(self) -> list[str]:
        return [entry.name for entry in self._reached()]

    @property
    def known(self) -> dict[str, OriginPath]:
        return {
            entry.name: OriginPath(
                entry.via,
                entry.attachment,
                entry.digest,
                entry.record.feed,
                entry.record.clients,
                entry.record.closed,
                entry.record.speaks,
            )
            for entry in self._reached()
        }

    @property
    def feeds(self) -> dict[str, str]:
        return {entry.name: entry.record.feed for entry in self._reached() if entry.record.feed}

    @property
    def open_origins(self) -> list[str]:
        return [entry.name for entry in self._reached() if not entry.record.closed]

    def clients_of(self, origin: str) -> str:
        entry = self._table.get(origin)
        return entry.record.clients if entry is not None and not entry.away else ""

    def version_of(self, origin: str) -> int:
        entry = self._table.get(origin)
        return versions.LINK_UNTOLD if entry is None else entry.record.speaks

    @property
    def closed(self) -> bool:
        return self._own.record.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._renew(structs.replace(self._own.record, closed=closed))

    def clients_are_at(self, address: str) -> bool:
        if self._own.record.clients:
            return False
        self._renew(structs.replace(self._own.record, clients=address[:FEED_CHARACTERS_MAX]))
        return True

    def announce(self, shares: Shares, *, ask: bool) -> None:
        """Our shares, if they have changed; who else is here is told without being asked."""
        self._renew(structs.replace(self._own.record, shares=shares))

    def announced(self, link: str, announce: Announce) -> None:
        raise LinkProtocolError("an announcement in a network whose nodes are told of by their neighbours")

    def lost(self, link: str, lost: Lost) -> None:
        raise LinkProtocolError("a lost way in a network whose nodes are told of by their neighbours")

    def behind(self, link: str) -> list[str]:
        return [entry.name for entry in self._by(link)]

    def _by(self, link: str) -> list[NodeEntry]:
        return [entry for entry in self._table.by(link) if not entry.away]

    def away(self) -> dict[str, tuple[float, Stamp]]:
        """Nodes that were here and cannot be reached -> since when, and how far their messages had come."""
        return {
            entry.name: (entry.away_since, entry.frontier)
            for entry in self._table.nodes.values()
            if entry.away and entry.record.version != BEFORE
        }

    def entered(self, topic: bytes) -> None:
        """A message entered the network here: for whom that is away does it wait?"""
        if self._is_anybody_away:
            for entry in {entry.name: entry for entry in self._table.wanting(topic) if entry.away}.values():
                count, since = entry.waiting
                entry.waiting = (count + 1, since or self._now())

    def absence(self) -> dict[str, dict[str, float]]:
        """Nodes that cannot be reached, for people: for how long not, and what entered here for them meanwhile."""
        now = self._now()
        return {
            name: {
                "away_s": round(now - since, 1),
                "waiting": self._table[name].waiting[0],
                "oldest_s": round(now - self._table[name].waiting[1], 1) if self._table[name].waiting[0] else 0.0,
            }
            for name, (since, _) in self.away().items()
        }

    def frontiers(self) -> VersionVector:
        return {entry.name: entry.frontier for entry in self._table.nodes.values() if entry is not self._own}

    def counted(self) -> dict[str, int]:
        counters = self.counters
        return {name: getattr(counters, name) for name in counters.__slots__}

    def away_wanting(self, topic: bytes) -> list[str]:
        """Nodes that are away and want this."""
        return sorted({entry.name for entry in self._table.wanting(topic) if entry.away})

    def filters_of(self, node: str) -> list[bytes]:
        entry = self._table.get(node)
        return list(entry.filters) if entry is not None else []

    def is_known(self, node: str) -> bool:
        return node in self._table.nodes

    def parked_here(self) -> list[str]:
        return [entry.name for entry in self._table.nodes.values() if entry.via == PARKED]

    def offer(self, offers: list[CarriedOffer], readers: list[str]) -> None:
        """Say what we carry, and for whom (nobody named: for all)."""
        carries = [(one.origin, tuple(one.first), tuple(one.last), one.whole) for one in offers]
        for_whom = readers if carries else []
        self._renew(structs.replace(self._own.record, carries=carries, carries_for=for_whom))

    def offers(self) -> list[CarriedOffer]:
        """Messages that others carry for us, of origins that cannot be reached."""
        found = []
        for entry in self._reached():
            record = entry.record
            if not record.carries_for or self._node in record.carries_for:
                for origin, first, last, whole in record.carries:
                    if origin != self._node and self.link_to(origin) is None:
                        found.append(CarriedOffer(entry.name, origin, Stamp(*first), Stamp(*last), whole))
        return found

    # -- links --

    def link_started(self, link: str) -> None:
        neighbour = self._links[link] = MobileNeighbour(self._now(), self._settings.news_s)
        self._schedule(self._now() + STEADY_S, self._tick_later)
        upward = self._user.upward()
        if upward is None:
            self._digests.tell_news(link, neighbour, everyone=self.sends_to_away)
        elif upward and upward[0] == link:
            self._claim(link, neighbour, self._to_claim(link, upward), full=False)
        self._tick_later()

    def _to_claim(self, link: str, upward: tuple[str, ...]) -> list[NodeEntry]:
        """This node and those behind it: not those that are reached by the parent that we leave."""
        return [
            entry
            for entry in self._table.nodes.values()
            if not entry.away and entry.via != link and entry.via not in upward and entry.name != link
        ]

    def link_ended(self, link: str) -> None:
        if self._links.pop(link, None) is None:
            return
        parked = self._table.by(link)
        for entry in parked:
            was_away, entry.via = entry.away, PARKED
            if not was_away:
                self._gone_away(entry)
        self._output.no_longer_wanted(link, list({one: None for entry in parked for one in entry.filters}))
        self._output.changed(None)
        self._tick_later()

    def _gone_away(self, entry: NodeEntry) -> None:
        entry.away, entry.away_since, entry.waiting = True, self._now(), (0, 0.0)
        self._forget_later(entry.away_since)
        self._is_anybody_away = True
        self._user.path_lost(entry.name)
        for link, neighbour in self._links.items():
            told = neighbour.heard.get(entry.name)
            if told is not None and not told.away and link != entry.via and told.attachment >= entry.attachment:
                self._route(entry, link, told)
                return

    # -- frames --

    def receive(self, link: str, body: bytes) -> None:
        frame = decode(body)
        match frame:
            case Claim():
                self._claimed(link, frame)
            case News():
                for told in frame.entries:
                    self._news_came(link, told)
            case Digest():
                for found in self._digests.came(link, self._links[link], frame.digest):
                    self._route(found, link, structs.replace(found.told(), away_s=0))
                self._tick_later()
            case RecordWanted():
                neighbour = self._links[link]
                self._claim(link, neighbour, self._digests.told_to(link), full=True)
            case Ask():
                self._asked(link, frame)
            case NodeRecord():
                self._record_came(link, frame)
            case Delta():
                self._delta_came(link, frame)
            case Query():
                neighbour = self._links[link]
                neighbour.owed.update(dict.fromkeys(name for name in frame.nodes if name in self._table.nodes))
                self._pay(link, neighbour)

    def _send(self, link: str, frame: MobileFrame) -> None:
        self._output.send(link, encode(frame))

    def _claim(self, link: str, neighbour: MobileNeighbour, entries: list[NodeEntry], *, full: bool) -> None:
        self._own.frontier = self._user.frontier()
        self.counters.claims += 1
        wave = (self._node, self._next_wave())
        say = neighbour.note if full else neighbour.claim
        self._send(link, Claim(wave, [say(entry) for entry in entries], full=full))

    def _next_wave(self) -> Version:
        self._claims += 1
        return (self._epoch, self._claims)

    # -- ways --

    def _claimed(self, link: str, claim: Claim) -> None:
        if claim.full:
            self._all_told(link, claim)
            return
        onward: dict[str, list[NodeEntry]] = {}
        for told in claim.entries:
            for other in self._believe(link, told, claim):
                onward.setdefault(other, []).append(self._table[told.node])
        for other, entries in onward.items():
            neighbour = self._links[other]
            entries_told = [neighbour.claim(entry) for entry in entries]
            self._send(other, Claim(claim.wave, entries_told, claim.flood))
        if claim.wave[0] == link and not claim.flood:
            self._digests.welcome(link, self._links[link])

    def _believe(self, link: str, told: ReachedNode, claim: Claim) -> list[str]:
        """The links that have to hear of it."""
        if told.node == self._node:
            if claim.wave[0] != self._node:
                self._contradict(link, told.attachment)
            return []
        entry, is_new = self._entry_told(told)
        if entry is None:
            return []
        self._links[link].heard[told.node] = told
        self._compare(link, entry, told.version)
        if told.attachment < entry.attachment and told.node == link:
            self._send(link, News([entry.told()]))  # it does not know what has been said of it
        if told.attachment < entry.attachment or (told.attachment == entry.attachment and _is_past(claim, entry)):
            return []
        old = entry.via
        self._route(entry, link, told)
        entry.wave = claim.wave
        if claim.flood or is_new:
            targets = [other for other in self._links if other != link]
        else:
            targets = [old] if old in self._links and old != link else []
        return [other for other in targets if other != claim.wave[0]]

    def _entry_told(self, told: ReachedNode) -> tuple[NodeEntry | None, bool]:
        """Of a node that a neighbour tells of."""
        if self._is_far(told.attachment):
            return None, False
        if told.node not in self._table.nodes and told.away and told.away_s >= self._settings.forget_nodes_s:
            return None, False
        entry, is_new = self._entry_of(told.node)
        if entry is not None and is_new and told.away:
            entry.away_since -= told.away_s
            self._forget_later(entry.away_since)
        return entry, is_new

    def _entry_of(self, name: str) -> tuple[NodeEntry | None, bool]:
        """And whether it is new; None if there is no room for one more."""
        entry = self._table.get(name)
        if entry is not None:
            return entry, False
        if len(self._table.nodes) >= ORIGINS_MAX:
            self.counters.refused += 1
            return None, False
        return self._table.add(name), True

    def _is_far(self, version: Version) -> bool:
        """Has nobody come to such a version yet?  Then it is refused."""
        is_far = version[0] >= EPOCHS_END
        self.counters.refused += is_far
        return is_far

    def _route(self, entry: NodeEntry, link: str, told: ReachedNode) -> None:
        """From now on it is reached by this link."""
        old, was_away = entry.via, entry.away
        if old != link or (was_away and not told.away):
            entry.turns += 1
        digest = fold(fold(told.digest, self._user.session_of(link)), entry.turns)
        is_changed = digest != entry.digest
        entry.via, entry.digest, entry.attachment = link, digest, told.attachment
        entry.frontier = max(entry.frontier, Stamp(*told.frontier))
        self._conflicts.pop(entry.name, None)
        if old != link or was_away != told.away:
            self._output.changed(None)
        if old != link and old in self._links and not was_away:
            self._user.path_left(entry.name, old)
        if told.away:
            if not was_away:
                entry.suspect = entry.suspect or told.digest == WITHDRAWN
                self._gone_away(entry)
        else:
            entry.away = False
            if entry.suspect:
                entry.suspect = False
                self.counters.asked += 1
                self._send(link, Ask(entry.name, HOPS_MAX))
            if was_away:
                self._user.shares_announced(entry.name, entry.record.shares)
                self._user.offers_changed()
            if was_away or is_changed or old != link:
                self._user.path_in_doubt(entry.name, link)
            self._user.frontier_heard(entry.name, entry.frontier)
        if is_changed or old != link or was_away != told.away:
            self.untold[entry.name] = None
        self._tick_later()

    def _news_came(self, link: str, told: ReachedNode) -> None:
        if told.node == self._node:
            if told.attachment > self._own.attachment:
                self._contradict(link, told.attachment)
            return
        entry, _ = self._entry_told(told)
        if entry is None:
            return
        self._links[link].heard[told.node] = told
        self._compare(link, entry, told.version)
        if entry.away and told.away:  # somebody has met it since we have
            entry.frontier = max(entry.frontier, Stamp(*told.frontier))
        if told.attachment < entry.attachment:
            self._tick_later()
        elif entry.via == link or told.attachment > entry.attachment or self._prefers(entry, link, told):
            if entry.via != link and not told.away:
                self._digests.take_back(link, self._links[link], entry)
            if told.attachment > entry.attachment and told.node in self._links and told.node != link:
                self._send(told.node, News([told]))  # if it has not said so, it contradicts
            self._route(entry, link, told)
        elif not entry.away and not told.away:
            self._tick_later()  # two ways to one node: if it stays so, it is asked

    def _prefers(self, entry: NodeEntry, link: str, told: ReachedNode) -> bool:
        """Of two that say the same of a node: somebody who reaches it, the node itself, and the parent over the one
        that we leave."""
        if told.away:
            return False
        upward = self._user.upward() or ()
        return entry.away or told.node == link or (link in upward[:1] and entry.via in upward)

    def _all_told(self, link: str, claim: Claim) -> None:
        """The neighbour has said everything: others are not to be reached by it."""
        for told in claim.entries:
            self._news_came(link, told)
        named = {told.node for told in claim.entries}
        for entry in self._table.by(link):
            if entry.name not in named and entry.name != link:
                self._links[link].heard.pop(entry.name, None)
                entry.via = PARKED
                if not entry.away:
                    entry.suspect = True
                    self._gone_away(entry)
        self._output.changed(None)
        self._tick_later()

    # -- what is told when there is time --

    def passed(self, origin: str, stamp: Stamp) -> None:
        """HOT.  Messages of this origin have come so far."""
        entry = self._table.get(origin)
        if entry is not None and stamp > entry.frontier:
            entry.frontier = stamp
            self._tick_later()

    def astray(self, origin: str, stamp: Stamp) -> None:
        """Others reach us by another way than we reach them: all behind us may have missed it, and are to ask."""
        entry = self._table.get(origin)
        if entry is None or entry.away or entry.via not in self._links or stamp <= entry.frontier:
            return
        entry.turns += 1
        entry.digest = fold(entry.digest, entry.turns)
        entry.frontier = stamp
        self.untold[origin] = None
        self._user.path_in_doubt(origin, entry.via)
        self._user.frontier_heard(origin, stamp)
        self._tick_later()

    def turn_ended(self) -> None:
        if self._links and self._user.frontier() != self._own.frontier:
            self._own.frontier = self._user.frontier()
            self._tick_later()

    def tell_ahead(self, link: str, origin: str) -> None:
        """A message of this origin is about to be sent: a change of its way goes ahead."""
        neighbour, entry = self._links.get(link), self._table.get(origin)
        if neighbour is None or entry is None or entry.via == link:
            return
        self._digests.tell_ahead(link, neighbour, entry)

    def handed_on(self, link: str, origin: str, stamp: Stamp) -> None:
        """Messages of this origin have been sent to this neighbour, so that it knows how far they have come."""
        if (neighbour := self._links.get(link)) is not None:
            neighbour.handed_on(origin, stamp)

    def introduce(self, link: str, reader: str) -> None:
        """The answer says that all comes by itself from then on: so all on the way must know the reader, and what it
        wants, before they see the question."""
        neighbour, entry = self._links.get(link), self._table.get(reader)
        if neighbour is None or entry is None or entry.via == link:
            return
        if neighbour.versions.get(reader) != entry.version:
            self._send_record(link, entry)
        self.tell_ahead(link, reader)

    def answers(self, link: str, reader: str) -> bool:
        """A question that comes by another way than messages go to its reader is not answered: the reader is asked
        where it is, says so to all, and asks again."""
        entry = self._table.get(reader)
        if entry is not None and entry.via == link and not entry.away:
            return True
        self.counters.asked += 1
        self._send(link, Ask(reader, HOPS_MAX))
        return False

    def _tick_later(self) -> None:
        if not self._ticking and self._links:
            self._ticking = True
            self._schedule(self._now() + self._settings.news_s, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        # The way of a node that has sent nothing is told ahead of its first message.
        self.untold = {name: None for name in self.untold if (entry := self._table.get(name)) and entry.is_silent}
        self._is_anybody_away = any(entry.away for entry in self._table.nodes.values())
        self._own.frontier = self._user.frontier()
        if self._digests.tell(list(self._links.items()), everyone=self.sends_to_away):
            self._tick_later()
        self._settle_conflicts()
        self._overtake()
        if self._contradicts_later:
            self._contradicts_later = False
            self._contradict("", BEFORE)

    def _settle_conflicts(self) -> None:
        """Two links lead to one node, and have done so for a while: it is asked where it is."""
        found: dict[str, int] = {}
        for link, neighbour in self._links.items():
            for name, told in neighbour.heard.items():
                entry = self._table.get(name)
                if entry is None or told.away or entry.away or entry.via in (link, HERE):
                    continue
                if told.attachment != entry.attachment:
                    continue
                found[name] = self._conflicts.get(name, 0) + 1
        self._conflicts = found
        for name, ticks in found.items():
            if ticks % 2 == 0:
                self.counters.asked += 1
                self._send(self._table[name].via, Ask(name, HOPS_MAX))
        if found:
            self._tick_later()

    def _forget_later(self, away_since: float) -> None:
        at = away_since + self._settings.forget_nodes_s
        if at < self._forget_at:
            self._forget_at = at
            self._schedule(at, self._forget)

    def _forget(self) -> None:
        """Those that have been away for too long, wherever that was told."""
        self._forget_at = inf
        for entry in [entry for entry in self._table.nodes.values() if entry.away]:
            if entry.away_since + self._settings.forget_nodes_s <= self._now():
                self._table.forget(entry.name)
                for neighbour in self._links.values():
                    neighbour.forget(entry.name)
        away = [entry.away_since for entry in self._table.nodes.values() if entry.away]
        if away:
            self._forget_later(min(away))

    # -- the last word --

    def _asked(self, link: str, ask: Ask) -> None:
        if ask.node == self._node:
            self._contradict(link, BEFORE)
            return
        entry = self._table.get(ask.node)
        if entry is not None and ask.hops and entry.via in self._links and entry.via != link:
            self._send(entry.via, Ask(ask.node, ask.hops - 1))

    def _contradict(self, link: str, heard: Version) -> None:
        """Say where we are, to all, with a number that none has used."""
        if heard > self._own.attachment:
            self._user.namesake_found(link)
        self._own.attachment = max(self._own.attachment, heard)
        if self._now() - self._contradicted_at < CONTRADICT_S:
            self._contradicts_later = True
            self._tick_later()
            return
        self._contradicted_at = self._now()
        self.counters.contradicted += 1
        self._own.attachment = self._above(self._own.attachment)
        self._own.frontier = self._user.frontier()
        wave = (self._node, self._next_wave())
        for other, neighbour in self._links.items():
            self._send(other, Claim(wave, [neighbour.note(self._own)], flood=True))
        for entry in self._reached():  # messages for us may have gone astray
            self._user.path_in_doubt(entry.name, entry.via)

    # -- records --

    def _compare(self, link: str, entry: NodeEntry, version: Version) -> None:
        """The neighbour has this version of the record: it sends us a newer one, or we send it ours."""
        neighbour = self._links[link]
        # That it has a newer one it shows by sending it.
        known = min(version, entry.version)
        neighbour.versions[entry.name] = max(known, neighbour.versions.get(entry.name, BEFORE))
        if version > entry.version and neighbour.queried.get(entry.name) != version:
            neighbour.queried[entry.name] = version
            self._send(link, Query([entry.name]))
        elif neighbour.versions[entry.name] < entry.version:
            neighbour.owed[entry.name] = None
            self._pay(link, neighbour)

    def _pay(self, link: str, neighbour: MobileNeighbour) -> None:
        """Records that are not urgent: so many at once, and the rest soon."""
        if neighbour is not self._links.get(link):
            return
        for name in neighbour.due(self._now()):
            if (entry := self._table.get(name)) is not None:
                self._send_record(link, entry)
        if neighbour.owed and not neighbour.is_paying:
            neighbour.is_paying = True
            self._schedule(neighbour.slot_s + SLOT_S, partial(self._pay_on, link, neighbour))

    def _pay_on(self, link: str, neighbour: MobileNeighbour) -> None:
        neighbour.is_paying = False
        self._pay(link, neighbour)

    def _send_record(self, link: str, entry: NodeEntry) -> None:
        self._links[link].versions[entry.name] = entry.version
        self._send(link, entry.record)

    def _record_came(self, link: str, record: NodeRecord) -> None:
        size = sum(map(len, record.filters))
        self._settings.check_amount(len(record.filters), size)
        _check(record.filters)
        if not all(is_share(key) for key, _ in record.shares):
            raise LinkProtocolError("not a shared subscription")
        if record.node == self._node:
            self._own_record_came(link, record)
            return
        if self._is_far(record.version):
            return
        entry, is_new = self._entry_of(record.node)
        if entry is None:
            return
        if is_new:
            self._forget_later(entry.away_since)
        neighbour = self._links[link]
        neighbour.versions[record.node] = max(record.version, neighbour.versions.get(record.node, BEFORE))
        if record.version <= entry.version:
            self._compare(link, entry, record.version)
            return
        lost = [one for one in entry.filters if one not in set(record.filters)]
        self._table.set_record(entry, record)
        self._record_changed(link, entry, lost)
        self._pass_record(link, entry, None)

    def _own_record_came(self, link: str, record: NodeRecord) -> None:
        """Ours is what we say.  A version that we have not reached is answered with a higher one."""
        if record.version > self._own.version:
            if record.version[0] > self._own.version[0]:
                self._user.namesake_found(link)
            self._said_of_us = max(self._said_of_us, record.version)
            self._overtake()

    def _overtake(self) -> None:
        """Our record gets a version above all that others have told, as rarely as false claims are contradicted."""
        if self._said_of_us <= self._own.version:
            return
        if self._now() - self._overtook_at < CONTRADICT_S:
            self._tick_later()
            return
        self._overtook_at = self._now()
        self.counters.contradicted += 1
        own = structs.replace(self._own.record, version=self._above(self._said_of_us))
        self._table.set_record(self._own, own)
        for other in self._links:
            self._send_record(other, self._own)

    def _delta_came(self, link: str, delta: Delta) -> None:
        _check(delta.add)
        entry = self._table.get(delta.node)
        neighbour = self._links[link]
        neighbour.versions[delta.node] = max(delta.version, neighbour.versions.get(delta.node, BEFORE))
        if entry is None or entry is self._own or delta.version <= entry.version:
            return
        if (delta.version[0], delta.version[1] - 1) != entry.version:
            self._compare(link, entry, delta.version)  # one between is missing
            return
        gone = dict.fromkeys(delta.remove)
        filters = [one for one in entry.record.filters if one not in gone] + delta.add
        self._settings.check_amount(len(filters), sum(map(len, filters)))
        record = structs.replace(entry.record, version=delta.version, filters=filters)
        self._table.change_filters(entry, record, delta.add, delta.remove)
        self._record_changed(link, entry, delta.remove)
        self._pass_record(link, entry, delta)

    def _record_changed(self, link: str, entry: NodeEntry, lost: Iterable[bytes]) -> None:
        self._output.changed(None)
        if not entry.away:
            self._user.shares_announced(entry.name, entry.record.shares)
            self._user.offers_changed()
            self._output.no_longer_wanted(entry.via, list(lost))

    def _pass_record(self, link: str, entry: NodeEntry, delta: Delta | None) -> None:
        """To all other neighbours that do not have it."""
        before = (entry.version[0], entry.version[1] - 1)
        for other, neighbour in self._links.items():
            version = neighbour.versions.get(entry.name, BEFORE)
            if other == link or version >= entry.version:
                continue
            if delta is not None and version == before:
                neighbour.versions[entry.name] = entry.version
                self._send(other, delta)
            else:
                self._send_record(other, entry)


def _is_past(claim: Claim, entry: NodeEntry) -> bool:
    """Has this claim been believed, or a later one of the same claimer?  Claims may overtake each other on two ways."""
    claimer, number = entry.wave
    return claim.wave[0] == claimer and claim.wave[1] <= number


def _check(filters: list[bytes]) -> None:
    if not all(map(is_filter, filters)):
        raise LinkProtocolError("a record with something that is not a filter")
