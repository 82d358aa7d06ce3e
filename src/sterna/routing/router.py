"""A node's part in the network: takes frames from links, gives messages to its own broker and hands others on.

Promises: a sequenced message that entered anywhere reaches every node that wants it, in the order of its origin, once;
a loose one (QoS 0) reaches it at most once.  Both are taken only from the path to their origin and only if newer than
the last, so nothing can circle in any shape of links.  The strategy decides where messages are wanted;
`origin_streams` makes up for losses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from msgspec import structs

from sterna.mqtt.message import Message
from sterna.mqtt.topics import REMEMBERED_TOPIC_BYTES, is_reserved
from sterna.overlay.batches import FRAME_HEAD_BYTES
from sterna.overlay.link import Link
from sterna.routing import link_frames
from sterna.routing.carried import CarriedPage
from sterna.routing.frame_checks import (
    TopicsSeen,
    check_announcement,
    check_message,
    check_properties,
    is_filter,
    is_share,
)
from sterna.routing.link_frames import Frame
from sterna.routing.losses import ASTRAY, NOWHERE, Losses, RouterCounters
from sterna.routing.message_frames import (
    RETAIN,
    LooseRecord,
    Record,
    cut,
    last_of_epoch,
    read_loose,
    read_message,
    read_number,
    read_opening,
    read_records,
)
from sterna.routing.origin_streams import Local, Streams
from sterna.routing.outbound import Outbound
from sterna.routing.paths import Paths, PathTable
from sterna.routing.probes import Answers, Probes
from sterna.routing.strategy import RoutingOutput, Strategy
from sterna.routing.strategy_output import StrategyOutput
from sterna.vocabulary.errors import JournalError, LinkProtocolError
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

#: Topics whose links are remembered; past this the memory is cleared.
REMEMBERED_MAX: Final = 100_000

#: Announcements and questions closer together than this are made one.
GATHER_S: Final = 0.02
#: How long a lost way may take to be found again before everybody is asked.
LOST_S: Final = 0.2

# Of every message: found without a look at the enumeration.
SEQUENCED: Final[int] = Frame.SEQUENCED.value
LOOSE: Final[int] = Frame.LOOSE.value


class RouterLocal(Local, Protocol):
    def take_loose(self, origin: str, record: LooseRecord, body: bytes) -> None:
        """QoS 0 messages from elsewhere, for local clients; `body` is what the record lies in."""

    def ring_found(self, one: str, other: str) -> None:
        """These two links lead to the same node."""

    def namesake_found(self, link: str) -> None:
        """Somewhere behind this link another node has our name."""

    def carried_page(self, fetch: link_frames.Fetch) -> CarriedPage | None:
        """Messages of an origin that is away, if we carry what this reader asks for."""

    def upward(self) -> tuple[str, ...] | None:
        """Neighbours towards the root of the tree, the one to keep first; None: there is no tree."""

    def in_turn(self, action: Callable[[], None]) -> None:
        """Do this once what our own clients published before it is safe and has been given to the router."""

    def shares(self) -> list[tuple[bytes, int]]:
        """Shared subscriptions with members here, and how many."""

    def shares_elsewhere(self, origin: str, shares: list[tuple[bytes, int]] | None) -> None:
        """Shares of which another node has members (None: it can no longer be reached)."""

    def origin_found(self, origin: str) -> None:
        """It can be reached, perhaps by another way than before: letters may have been lost."""

    def origin_lost(self, origin: str) -> None: ...
    def letter(self, letter: link_frames.Letter) -> None:
        """For this node; raises `LinkProtocolError` on what makes no sense."""

    def news_came(self, link: str, body: bytes) -> None:
        """A neighbour says this to us."""

    def nonsense(self, link: str, reason: str) -> None:
        """A neighbour said what makes no sense: its link is about to be ended."""

    def spoilt(self, source: str, reason: str) -> None:
        """A node further away said what makes no sense, and that was left out."""


class FrameWatcher(Protocol):
    """Follows messages to other nodes."""

    def sent(self, link: str, origin: str, body: bytes) -> None:
        """Messages of this origin go over a link."""


class Router:
    def __init__(
        self,
        node: str,
        epoch: int,
        local: RouterLocal,
        strategy: Callable[[RoutingOutput], Strategy],
        vector: VersionVector,
        *,
        settle_s: float,
        feed: str,
        clients: str = "",
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._node = node
        self._epoch = epoch
        self._local = local
        self._now = now
        self._schedule = schedule
        self._links: dict[str, Link] = {}
        #: None as long as nobody follows messages.
        self.watcher: FrameWatcher | None = None
        self.streams = Streams(node, local, self, vector, now=now, schedule=schedule)
        self.probes = Probes(node, self, timeout_s=settle_s, now=now, schedule=schedule)
        self.strategy = strategy(StrategyOutput(self))
        own_paths = self.strategy.paths(epoch, feed, clients, self)
        self.paths: PathTable = own_paths if own_paths is not None else Paths(node, epoch, self, feed, clients)
        self.counters = RouterCounters()
        #: topic -> links that want it; NOWHERE among them if somebody does who cannot be reached.
        self._wanted: dict[bytes, list[str]] = {}
        self.losses = Losses(now=now, schedule=schedule, changed=self._wanted.clear)
        self.own = Outbound(node, epoch, self)
        self._topics = TopicsSeen()
        #: origin -> the last of its messages handed on.
        self._handed_on: VersionVector = {}
        #: origin -> epoch and number of its last loose messages.
        self._loose_seen: dict[str, tuple[int, int]] = {}
        self._announcing = False
        self._asking = False
        self._looking = False
        self._handlers: dict[int, Callable[[str, bytes], None]] = {
            Frame.SEQUENCED: self._sequenced,
            Frame.ROUTING: lambda link, body: self.strategy.receive(link, body),
            Frame.ANNOUNCE: self._announced,
            Frame.LOST: lambda link, body: self._lost(link, link_frames.decode(body, link_frames.Lost)),
            Frame.FETCH: lambda link, body: self._fetch(link, link_frames.decode(body, link_frames.Fetch)),
            Frame.PAGE: lambda link, body: self._page(link, link_frames.decode(body, link_frames.Page)),
            Frame.PROBE: lambda link, body: self.probes.probed(link, link_frames.decode(body, link_frames.ProbeFrame)),
            Frame.ECHO: lambda link, body: self.probes.echoed(link, link_frames.decode(body, link_frames.EchoFrame)),
            Frame.LETTER: self._letter,
            Frame.NEWS: lambda link, body: self._local.news_came(link, body),
        }

    # -- links ---------------------------------------------------------------------------------------------------

    def session_started(self, link: Link) -> None:
        """Nothing is known to a neighbour at first: it is told what we want, then who is here."""
        self._links[link.peer] = link
        self._wanted.clear()
        self.strategy.link_started(link.peer)
        self._announce_soon(ask=True)

    def session_ended(self, link: Link) -> None:
        peer = link.peer
        del self._links[peer]
        self.losses.link_ended(link, self.own.link_ended(peer))
        self.losses.way_lost(peer, peer, self.paths.behind(peer))
        self._wanted.clear()
        self.strategy.link_ended(peer)
        self.paths.link_ended(peer)
        self.probes.link_ended(peer)

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        """A batch from a neighbour.  One that talks nonsense is not believed any more: the session is given up."""
        kind = 0
        try:
            for kind, body in frames:
                if self._links.get(link.peer) is not link:
                    return  # something in this batch ended the session
                if kind == LOOSE:
                    self._loose_came(link.peer, body)
                    continue
                handler = self._handlers.get(kind)
                if handler is None:
                    raise LinkProtocolError(f"a frame of unknown kind {kind}")
                handler(link.peer, body)
        except LinkProtocolError as error:
            self._nonsense(link, str(error))
        except JournalError:
            raise  # the disk's fault
        except Exception as error:
            self._nonsense(link, f"a frame of kind {kind} raised {where(error)}")

    def _nonsense(self, link: Link, reason: str) -> None:
        self.counters.nonsense += 1
        self._local.nonsense(link.peer, reason)
        link.restart(reason)

    def _spoilt(self, link: str, source: str, error: LinkProtocolError) -> None:
        """A node further away has said what makes no sense, and those on the way could not know: its link is ended only
        if it is the neighbour itself."""
        if source == link:
            raise error
        self.counters.spoilt += 1
        self._local.spoilt(source, str(error))

    @property
    def has_links(self) -> bool:
        return bool(self._links)

    def links(self) -> list[str]:
        return list(self._links)

    def session_of(self, link: str) -> int:
        return self._links[link].session_id

    def link_to(self, origin: str) -> str | None:
        return self.paths.link_to(origin)

    def send(self, link: str, kind: int, body: bytes) -> None:
        found = self._links.get(link)
        if found is not None:
            found.note_control(FRAME_HEAD_BYTES + len(body))
            found.send_needed(kind, body)

    def send_control(self, link: str, kind: int, body: bytes) -> bool:
        """Behind everything that was to be said before: interest, then messages."""
        found = self._links.get(link)
        if found is None:
            return False
        self.strategy.flush()
        self.own.flush()
        if kind == Frame.FETCH:
            self.paths.introduce(link, self._node)
        if kind != Frame.PAGE:  # pages are messages
            found.note_control(FRAME_HEAD_BYTES + len(body))
        found.send(kind, body)
        return True

    def flush(self) -> None:
        """The end of a turn: what was gathered goes to the links."""
        if self._links:
            self.strategy.flush()
            self.own.flush()
            self.paths.turn_ended()
        if self.probes.waiting:
            self._announce_now()  # the members of a shared subscription must be known before it is confirmed
        self.probes.flush()

    # -- who is where --------------------------------------------------------------------------------------------

    def _announce_soon(self, *, ask: bool) -> None:
        self._asking = self._asking or ask
        if not self._announcing:
            self._announcing = True
            self._schedule(self._now() + GATHER_S, self._announce_now)

    def clients_are_at(self, address: str) -> None:
        """Where clients reach us, if nothing has been said about that yet."""
        if self.paths.clients_are_at(address) and self._links:
            self._announce_soon(ask=False)

    def close_to_clients(self, closed: bool) -> None:
        """Whether others are to send us clients."""
        if self.paths.closed != closed:
            self.paths.closed = closed
            if self._links:
                self._announce_soon(ask=False)

    def announce_pending(self) -> None:
        """News about us goes out now, ahead of what is said next."""
        self._announce_now()

    def _announce_now(self) -> None:
        """Announces what is pending, unless that has happened already."""
        if self._announcing:
            self._announce()

    def _announce(self) -> None:
        ask, self._asking, self._announcing = self._asking, False, False
        self.strategy.flush()
        self.own.flush()
        self.paths.announce(self._local.shares(), ask=ask)

    def asked(self) -> None:
        self._announce_soon(ask=False)

    def shares_changed(self) -> None:
        if self._links:
            self._announce_soon(ask=False)

    def shares_announced(self, origin: str, shares: list[tuple[bytes, int]]) -> None:
        self._local.shares_elsewhere(origin, shares)

    def ring_found(self, one: str, other: str) -> None:
        self._local.ring_found(one, other)

    def namesake_found(self, link: str) -> None:
        self._local.namesake_found(link)

    def in_turn(self, action: Callable[[], None]) -> None:
        self._local.in_turn(action)

    def _announced(self, link: str, body: bytes) -> None:
        announce = link_frames.decode(body, link_frames.Announce)
        check_announcement(announce)
        self.paths.announced(link, announce)

    def _lost(self, link: str, lost: link_frames.Lost) -> None:
        origins = [origin for origin in lost.origins if self.paths.link_to(origin) == link]
        self.losses.way_lost(link, lost.origins[0] if lost.origins else "", origins)
        self.paths.lost(link, lost)

    def path_changed(self, origin: str, link: str) -> None:
        self.losses.found(origin)
        self.strategy.origin_routed(origin, link)
        self.streams.path_changed(origin)
        self._local.origin_found(origin)

    def path_in_doubt(self, origin: str, link: str) -> None:
        """The way has changed; the origin is read again if it has more than we have."""
        self.losses.found(origin)
        self.strategy.origin_routed(origin, link)
        self.streams.in_doubt(origin)
        self._local.origin_found(origin)

    def frontier_heard(self, origin: str, frontier: Stamp) -> None:
        self.streams.heard_of(origin, frontier)

    def upward(self) -> tuple[str, ...] | None:
        return self._local.upward()

    def offers_changed(self) -> None:
        """Soon, as records come one by one."""
        if not self._looking:
            self._looking = True
            self._schedule(self._now() + LOST_S, self._look_at_offers)

    def _look_at_offers(self) -> None:
        self._looking = False
        for offer in self.paths.offers():
            self.streams.offered(offer)

    def path_left(self, origin: str, link: str) -> None:
        found = self._links.get(link)
        if found is not None:
            self.losses.left(found, origin, self.paths.behind(link))

    def path_lost(self, origin: str) -> None:
        self.strategy.origin_routed(origin, None)
        self.streams.path_lost(origin)
        self._local.shares_elsewhere(origin, None)
        self._local.origin_lost(origin)
        self.offers_changed()
        self._schedule(self._now() + LOST_S, partial(self._look_for, origin))

    def _look_for(self, origin: str) -> None:
        """Another way may have stood all the time."""
        if self.paths.link_to(origin) is None and self._links:
            self._announce_soon(ask=True)

    # -- interest ------------------------------------------------------------------------------------------------

    def want(self, topic_filter: bytes) -> None:
        self.strategy.want(topic_filter)

    def unwant(self, topic_filter: bytes) -> None:
        self.strategy.unwant(topic_filter)

    def when_known(self, action: Callable[[], None]) -> None:
        """Do this once every node that can be reached knows what we want now."""
        if not self._links or (self.strategy.everything() and not self._announcing):
            action()
        else:
            self.probes.when_heard(action, of_interest=True)

    def when_heard(self, action: Callable[[], None], *, of_interest: bool = False) -> None:
        """Do this once every node that can be reached has got what was sent to the links so far, and we have what those
        nodes had sent until then.  `of_interest`: more is wanted than before."""
        if self._links:
            self.probes.when_heard(action, of_interest=of_interest)
        else:
            action()

    def when_answered(self, action: Callable[[Answers], None]) -> None:
        """The same, and tell how far the messages of those nodes had come when they got it, and which of them have all
        that this one has sent: nothing is owed to them.  A node that is not named did not answer."""
        if self._links:
            self.probes.when_answered(action)
        else:
            action(Answers({}, set()))

    def is_synced(self, origin: str) -> bool:
        return self.streams.synced(origin)

    def have_not_heard(self, links: list[str]) -> None:
        for origin in list(self.paths.origins):
            if self.paths.link_to(origin) in links:
                self.streams.refetch(origin)

    def frontier(self) -> Stamp:
        return self._local.frontier()

    def changed(self, topic_filter: bytes | None) -> None:
        """Answers of the strategy may differ from now on, for topics that this filter matches (None: for all)."""
        if topic_filter is None or b"+" in topic_filter or b"#" in topic_filter:
            self._wanted.clear()
            self.own.changed(None)
        else:
            self._wanted.pop(topic_filter, None)
            self.own.changed(topic_filter)

    def links_for(self, topic: bytes) -> list[str]:
        """HOT.  Those that want this topic."""
        links = self._wanted.get(topic)
        if links is None:
            if len(self._wanted) >= REMEMBERED_MAX:
                self._wanted.clear()
            links = self.strategy.links_for(topic)
            if self.losses.misses(topic, links):
                links = [*links, NOWHERE]
            if len(topic) <= REMEMBERED_TOPIC_BYTES:
                self._wanted[topic] = links
        return links

    def send_sequenced(self, link: str, body: bytes, records: int, topic: bytes) -> None:
        """The topic is that of the only record."""
        found = self._links.get(link)
        if found is not None:
            found.send(SEQUENCED, body, topic if records == 1 else b"")
            self.counters.forwarded += records
            if self.watcher is not None:
                self.watcher.sent(link, read_opening(body)[0], body)

    def send_loose(self, link: str, body: bytes, messages: int, topic: bytes) -> None:
        """The topic is that of the only record, or empty."""
        found = self._links.get(link)
        if found is None:
            self.losses.nowhere(body, self.strategy.links_for)
        elif found.congested:
            self.losses.not_taken(found, body)
        else:
            found.send(LOOSE, body, topic)
            self.counters.forwarded += messages
            if self.watcher is not None:
                self.watcher.sent(link, read_opening(body)[0], body)

    # -- messages of others --------------------------------------------------------------------------------------

    def _sequenced(self, link: str, body: bytes) -> None:
        """HOT.  Live messages of one origin."""
        origin, epoch, position = read_opening(body)
        records = read_records(body, position)
        if not self.paths.leads_by(link, origin, epoch):
            self.counters.refused += len(records)
            if records and records[-1].sequence > last_of_epoch(self._handed_on, origin, epoch):
                self.paths.astray(origin, Stamp(epoch, records[-1].sequence))
            return
        known = self._topics.known
        for record in records:
            if record.topic not in known:
                records, body = self._admitted(records, body, position)
                break
        if records:
            self.paths.passed(origin, Stamp(epoch, records[-1].sequence))
        self._hand_on(link, origin, epoch, body, position, records)
        if not self.streams.synced(origin):
            self.streams.heard_of(origin, Stamp(epoch, records[-1].sequence) if records else BEFORE_ALL)
            return
        self._take(link, origin, epoch, body, records)

    def _without_reserved(
        self, records: list[LooseRecord], body: bytes, position: int
    ) -> tuple[list[LooseRecord], bytes]:
        kept = [record for record in records if self._topics.admits(record.topic)]
        self.counters.refused += len(records) - len(kept)
        body = cut(body, position, kept)
        return read_loose(body, position), body

    def is_sound(self, source: str, message: Message) -> bool:
        """May a message of a page be published?  Else it is left out: pages hold what was kept, perhaps by an earlier
        release that did not look."""
        try:
            if message.topic not in self._topics.known and not self._topics.admits(message.topic):
                self.counters.refused += 1
                return False
            check_message(message)
        except LinkProtocolError as error:
            self.counters.spoilt += 1
            self._local.spoilt(source, str(error))
            return False
        return True

    def _admitted(self, records: list[Record], body: bytes, position: int) -> tuple[list[Record], bytes]:
        """Those whose topics may be published on.  Nodes on the way look, too, so that nonsense ends the link of its
        author."""
        known = self._topics.known
        refused = 0
        for record in records:
            if record.topic not in known and not self._topics.admits(record.topic):
                refused += 1
        if not refused:
            return records, body
        self.counters.refused += refused
        body = cut(body, position, [record for record in records if not is_reserved(record.topic)])
        return read_records(body, position), body

    def _take(self, link: str, origin: str, epoch: int, body: bytes, records: list[Record]) -> None:
        """HOT.  Takes what our own clients want, of what is newer than the last."""
        vector = self.streams.vector
        seen = after = last_of_epoch(vector, origin, epoch)
        local = self._local
        taken = 0
        undecided: list[bytes] = []
        try:
            for record in records:
                if record.sequence > after:
                    seen = record.sequence
                    if record.flags & RETAIN or local.wants(record.topic):
                        message = read_message(body, record.start, origin, epoch)
                        publisher = message.publisher
                        try:
                            if message.properties or not publisher.isascii() or b"\0" in publisher:
                                check_message(message)
                            undecided = local.take(message)
                            if undecided:
                                seen = record.sequence - 1
                                break
                            taken += 1
                        except LinkProtocolError as error:
                            self._spoilt(link, origin, error)
        finally:
            # Also if one of them made no sense: what came before it has been taken and must not be again.
            self.counters.taken += taken
            if seen > after:
                vector[origin] = Stamp(epoch, seen)
        if undecided:
            self.streams.ask_for(origin, undecided)

    def _hand_on(self, link: str, origin: str, epoch: int, body: bytes, position: int, records: list[Record]) -> None:
        """To the other links that want them: the body as it came, or the pieces of it that are wanted there."""
        last = last_of_epoch(self._handed_on, origin, epoch)
        fresh = [record for record in records if record.sequence > last]
        self.counters.refused += len(records) - len(fresh)
        if not fresh:
            return
        self._handed_on[origin] = Stamp(epoch, fresh[-1].sequence)
        if len(self._links) == 1:
            return  # nobody else is there
        pieces: dict[str, list[Record]] = {}
        for record in fresh:
            for other in self.links() if record.flags & RETAIN else self.links_for(record.topic):
                if other != link:
                    pieces.setdefault(other, []).append(record)
        if origin in self.paths.untold:
            for other in pieces:
                self.paths.tell_ahead(other, origin)
        for other, some in pieces.items():
            whole = len(some) == len(records)
            self.send_sequenced(other, body if whole else cut(body, position, some), len(some), some[0].topic)
            self.paths.handed_on(other, origin, Stamp(epoch, some[-1].sequence))

    def loose_mark(self, origin: str) -> Identity | None:
        """The body of loose messages that is being taken in from an origin, or gathered here ("")."""
        if not origin:
            return Identity(self._node, *self.own.loose_gathered)
        seen = self._loose_seen.get(origin)
        return None if seen is None else Identity(origin, *seen)

    def loose_vector(self) -> VersionVector:
        """The last body of loose messages of each origin, ourselves included, that our clients have been given."""
        self.strategy.flush()
        self.own.flush()
        taken = {origin: Stamp(*seen) for origin, seen in self._loose_seen.items()}
        return {**taken, self._node: self.own.loose_sent}

    def _loose_came(self, link: str, body: bytes) -> None:
        """HOT.  QoS 0 messages of one origin."""
        origin, epoch, position = read_opening(body)
        number, position = read_number(body, position)
        records = read_loose(body, position)
        seen = self._loose_seen.get(origin)
        is_new = seen is None or (epoch, number) > seen
        if not self.paths.leads_by(link, origin, epoch) or not is_new:
            messages = sum([record.count for record in records])
            self.counters.refused += messages
            self.losses.count(ASTRAY, messages if is_new else 0)
            return
        self._loose_seen[origin] = (epoch, number)
        known = self._topics.known
        for record in records:
            if record.topic not in known and not self._topics.admits(record.topic):
                records, body = self._without_reserved(records, body, position)
                break
        if len(records) == 1:  # where messages come one by one, nothing has to be sorted
            self._hand_on_one(link, origin, records[0], body)
            return
        pieces: dict[str, list[LooseRecord]] = {}
        for record in records:
            for other in self.links_for(record.topic):
                if other != link:
                    pieces.setdefault(other, []).append(record)
            if self._local.wants(record.topic):
                self._take_loose(link, origin, record, body)
        for other, some in pieces.items():
            whole = len(some) == len(records)
            messages = sum([record.count for record in some])
            topic = some[0].topic if len(some) == 1 else b""
            self.send_loose(other, body if whole else cut(body, position, some), messages, topic)

    def _hand_on_one(self, link: str, origin: str, record: LooseRecord, body: bytes) -> None:
        """HOT.  The only record of a body of loose messages."""
        if self._local.wants(record.topic):
            self._take_loose(link, origin, record, body)
        for other in self.links_for(record.topic):
            if other != link:
                self.send_loose(other, body, record.count, record.topic)

    def _take_loose(self, link: str, origin: str, record: LooseRecord, body: bytes) -> None:
        """HOT."""
        if record.properties or record.shares:
            try:
                if record.properties:
                    check_properties(record.properties)
                self._local.take_loose(origin, record, body)
            except LinkProtocolError as error:
                self._spoilt(link, origin, error)
                return
        else:
            self._local.take_loose(origin, record, body)
        self.counters.taken += record.count

    # -- catching up ---------------------------------------------------------------------------------------------

    def _fetch(self, link: str, fetch: link_frames.Fetch) -> None:
        if not fetch.hops or not all(map(is_filter, fetch.filters or ())) or not all(map(is_share, fetch.groups)):
            return
        if not self.paths.answers(link, fetch.hops[0]):
            return
        if fetch.carrier == self._node:
            carried = self._local.carried_page(fetch)
            if carried is not None:
                page = self.streams.serve_carried(fetch, carried)
                self.send_control(fetch.hops[-1], Frame.PAGE, link_frames.encode(page))
            return
        if fetch.origin == self._node:
            if fetch.groups:
                reader, after = fetch.hops[0], self.streams.begins_after(fetch)
                self._local.decide_late(reader, fetch.groups, after, partial(self._serve, fetch))
            else:
                self._serve(fetch)
            return
        next_hop = self.paths.link_to(fetch.carrier or fetch.origin)
        if next_hop is None or self._node in fetch.hops:
            return  # the reader will learn that the way has changed, and ask again
        onward = structs.replace(fetch, hops=[*fetch.hops, self._node])
        self.paths.introduce(next_hop, fetch.hops[0])
        self.send_control(next_hop, Frame.FETCH, link_frames.encode(onward))

    def _serve(self, fetch: link_frames.Fetch) -> None:
        try:
            page = self.streams.serve(fetch)
        except JournalError:
            return  # the disk did not give what is there: the reader will ask again
        self.send_control(fetch.hops[-1], Frame.PAGE, link_frames.encode(page))

    def _page(self, link: str, page: link_frames.Page) -> None:
        if page.hops == [self._node]:
            if self.paths.link_to(self.streams.carrier_of(page.origin) or page.origin) != link:
                self.counters.refused += 1  # it comes by the way the question went, or is of another path
                return
            try:
                self.streams.page_came(page)
            except LinkProtocolError as error:
                self._spoilt(link, page.origin, error)
        elif len(page.hops) > 1 and page.hops[-1] == self._node:
            onward = structs.replace(page, hops=page.hops[:-1])
            self.send_control(onward.hops[-1], Frame.PAGE, link_frames.encode(onward))

    # -- from node to node ---------------------------------------------------------------------------------------

    def post(self, to: str, about: link_frames.About, body: bytes) -> bool:
        """To another node, behind everything said so far; False if there is no way to it."""
        link = self.paths.link_to(to)
        letter = link_frames.Letter(to, self._node, self._epoch, about, body)
        return link is not None and self._send_letter(link, self._node, link_frames.encode(letter))

    def _send_letter(self, link: str, sender: str, body: bytes) -> bool:
        """The reader takes all that its sender published before for read: a change of the sender's way goes ahead."""
        self.paths.tell_ahead(link, sender)
        return self.send_control(link, Frame.LETTER, body)

    def tell(self, links: list[str], body: bytes) -> None:
        """Say something to these neighbours."""
        for link in links:
            self.send_control(link, Frame.NEWS, body)

    def _letter(self, link: str, body: bytes) -> None:
        """Taken from the path to its sender alone, like messages: none can circle, and nobody speaks for those who are
        not behind it."""
        letter = link_frames.decode(body, link_frames.Letter)
        if self.paths.link_to(letter.sender) != link:
            self.counters.refused += 1
        elif letter.to == self._node:
            try:
                self._local.letter(letter)
            except LinkProtocolError as error:
                self._spoilt(link, letter.sender, error)
        else:
            onward = self.paths.link_to(letter.to)
            if onward is not None and onward != link:
                self._send_letter(onward, letter.sender, body)


def where(error: Exception) -> str:
    """The error, and the place in our code that it comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
    return f"{type(error).__name__}{place}: {error}"
