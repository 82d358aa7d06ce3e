"""The product's overlay and strategy `mobile` on the radio: every station is a node, whatever its role.

Overlay and strategy are the code that runs in nodes, with their frames encoded and parsed.  Link sessions are those of
`overlay_links`.  Messages follow a short form of the router's rules: an origin numbers its events and keeps them; they
are taken from the path to their origin only, if newer than the last; a reader whose path has changed asks the origin
for what it lacks once it hears that there is more.  There is no MQTT, no journal on disk and no carrier here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from sterna.overlay.mobile import MobileOverlay
from sterna.routing.mobile import MobileRouting
from sterna.routing.strategy import RoutingSettings, Shares
from sterna.simulation.papers.leader_tree import PERIOD_S
from sterna.simulation.papers.ledger import EventLedger
from sterna.simulation.papers.messages import EVENT_BYTES, NAME_BYTES, Name, PaperEvent
from sterna.simulation.papers.overlay_links import PaperLinkUser, RadioLinks
from sterna.simulation.papers.overlay_tree import radio_settings
from sterna.simulation.radio.port import RadioPort
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

EPOCH = 1
FRAME_HEAD_BYTES = 3
EVENTS_IN_PAGE_MAX = 8
FETCH_AGAIN_S = 6.0
NEWS_S = 5.0


class Sequenced(msgspec.Struct, frozen=True):
    origin: Name
    sequence: int
    event: PaperEvent

    @property
    def size(self) -> int:
        return FRAME_HEAD_BYTES + NAME_BYTES + EVENT_BYTES


class EventFetch(msgspec.Struct, frozen=True):
    origin: Name
    reader: Name
    after: int

    @property
    def size(self) -> int:
        return FRAME_HEAD_BYTES + 2 * NAME_BYTES + 4


class EventPage(msgspec.Struct, frozen=True):
    origin: Name
    reader: Name
    after: int
    upto: int
    last: bool
    events: tuple[PaperEvent, ...]

    @property
    def size(self) -> int:
        return FRAME_HEAD_BYTES + 2 * NAME_BYTES + 8 + EVENT_BYTES * len(self.events)


class _OriginReading:
    """One origin, as this node reads it."""

    __slots__ = ("asked_at", "is_doubtful", "upto")

    def __init__(self) -> None:
        self.upto = 0
        self.is_doubtful = True
        self.asked_at: float | None = None


class SternaNode(PaperLinkUser):
    def __init__(self, port: RadioPort, filters: list[str], ledger: EventLedger) -> None:
        self._port = port
        self._ledger = ledger
        self._filters = dict.fromkeys(filters)
        self._own: list[PaperEvent] = []
        self._readings: dict[Name, _OriginReading] = {}
        self._passed: dict[Name, int] = {}
        self._links = RadioLinks(port, self, lambda body: isinstance(body, Sequenced | EventPage))
        rng = Random(int(port.random() * 2**53))
        settings = radio_settings(port.name)
        self._links.overlay = self._overlay = MobileOverlay(
            settings, self._links, now=self._now, schedule=self._schedule, rng=rng
        )
        self._routing = MobileRouting(
            port.name, self, now=self._now, schedule=self._schedule, settings=RoutingSettings(news_s=NEWS_S)
        )
        self._routing.paths(EPOCH, "", "", self)
        for one in filters:
            self._routing.want(one.encode())

    def start(self) -> None:
        self._routing.flush()
        self._port.after(self._port.random() * PERIOD_S, self._overlay.start)

    def heard(self, message: Any, sender: Name) -> None:
        self._links.heard(message, sender)

    def undelivered(self, message: Any, to: Name) -> None:
        self._links.undelivered(message, to)

    @property
    def changes(self) -> int:
        return self._links.changes

    @property
    def depth(self) -> int:
        return self._links.hops

    def publish(self, event: PaperEvent) -> None:
        topic = event.topic.encode()
        self._own.append(event)
        known = [name for name in self._ledger.wanted[event.topic] if topic in self._routing.filters_of(name)]
        self._ledger.route(event, known)
        self._send_on(Sequenced(self._port.name, len(self._own), event), "")
        self._routing.turn_ended()

    # Messages.

    def received(self, peer: Name, body: Any) -> None:
        match body:
            case bytes():
                self._routing.receive(peer, body)
            case Sequenced():
                self._sequenced(peer, body)
            case EventFetch():
                self._fetch_came(body)
            case EventPage():
                self._page_came(body)

    def _sequenced(self, peer: Name, body: Sequenced) -> None:
        origin, sequence = body.origin, body.sequence
        if not self._routing.leads_by(peer, origin, EPOCH) or sequence <= self._passed.get(origin, 0):
            return
        self._passed[origin] = sequence
        moved = Sequenced(origin, sequence, body.event.one_hop_on())
        self._send_on(moved, peer)
        self._routing.passed(origin, Stamp(EPOCH, sequence))
        if body.event.topic not in self._filters:
            return
        reading = self._reading(origin)
        if reading.is_doubtful:
            self._ask(origin, reading)
        elif sequence > reading.upto:
            reading.upto = sequence
            self._ledger.deliver(moved.event, self._port.name, self._port.now)

    def _send_on(self, body: Sequenced, came_by: Name) -> None:
        for link in self._routing.links_for(body.event.topic.encode()):
            if link != came_by:
                self._routing.tell_ahead(link, body.origin)
                self._links.send(link, body, body.size)
                self._routing.handed_on(link, body.origin, Stamp(EPOCH, body.sequence))

    def _reading(self, origin: Name) -> _OriginReading:
        return self._readings.setdefault(origin, _OriginReading())

    def _ask(self, origin: Name, reading: _OriginReading) -> None:
        """Unless it was asked a moment ago."""
        now = self._port.now
        if reading.asked_at is not None and now - reading.asked_at < FETCH_AGAIN_S:
            return
        link = self._routing.link_to(origin)
        if link is None:
            return
        reading.asked_at = now
        self._pass_on(EventFetch(origin, self._port.name, reading.upto), link)
        self._port.after(FETCH_AGAIN_S, self._ask_again, origin)

    def _ask_again(self, origin: Name) -> None:
        reading = self._readings[origin]
        if reading.is_doubtful and reading.asked_at is not None:
            self._ask(origin, reading)

    def _pass_on(self, fetch: EventFetch, link: Name) -> None:
        self._routing.introduce(link, fetch.reader)
        self._links.send(link, fetch, fetch.size)

    def _fetch_came(self, fetch: EventFetch) -> None:
        if fetch.origin != self._port.name:
            link = self._routing.link_to(fetch.origin)
            if link is not None:
                self._pass_on(fetch, link)
            return
        wanted = self._routing.filters_of(fetch.reader)
        found: list[PaperEvent] = []
        upto = fetch.after
        for event in self._own[fetch.after :]:
            if event.topic.encode() in wanted:
                if len(found) == EVENTS_IN_PAGE_MAX:
                    break
                found.append(event)
            upto += 1
        page = EventPage(fetch.origin, fetch.reader, fetch.after, upto, upto == len(self._own), tuple(found))
        self._page_on(page)

    def _page_on(self, page: EventPage) -> None:
        link = self._routing.link_to(page.reader)
        if link is not None:
            self._routing.tell_ahead(link, page.origin)
            self._links.send(link, page, page.size)

    def _page_came(self, page: EventPage) -> None:
        moved = msgspec.structs.replace(page, events=tuple(event.one_hop_on() for event in page.events))
        if page.reader != self._port.name:
            self._page_on(moved)
            return
        reading = self._reading(page.origin)
        if page.after != reading.upto or not reading.is_doubtful:
            return
        reading.upto, reading.asked_at = page.upto, None
        for event in moved.events:
            self._ledger.deliver(event, self._port.name, self._port.now)
        if page.last:
            reading.is_doubtful = False
        else:
            self._ask(page.origin, reading)

    # Links.

    def link_started(self, peer: Name) -> None:
        self._routing.link_started(peer)

    def link_ended(self, peer: Name) -> None:
        self._routing.link_ended(peer)

    # The router, as the strategy uses it.

    def send(self, link: Name, body: bytes) -> None:
        self._links.send(link, body, FRAME_HEAD_BYTES + len(body))

    def refetch(self, origin: Name) -> None:
        self._doubt(origin)

    def changed(self, topic_filter: bytes | None) -> None:
        """Nothing is remembered of its answers."""

    def no_longer_wanted(self, link: Name, filters: list[bytes]) -> None:
        """Nothing is counted."""

    def session_of(self, link: Name) -> int:
        return self._links.sessions[link].identity

    def path_in_doubt(self, origin: Name, link: Name) -> None:
        self._doubt(origin)

    def _doubt(self, origin: Name) -> None:
        if self._filters:
            reading = self._reading(origin)
            reading.is_doubtful, reading.asked_at = True, None

    def frontier_heard(self, origin: Name, frontier: Stamp) -> None:
        reading = self._readings.get(origin)
        if reading is not None and reading.is_doubtful and frontier > Stamp(EPOCH, reading.upto):
            self._ask(origin, reading)

    def path_left(self, origin: Name, link: Name) -> None:
        """Nothing is counted."""

    def path_lost(self, origin: Name) -> None:
        self._doubt(origin)

    def shares_announced(self, origin: Name, shares: Shares) -> None:
        """There are none."""

    def namesake_found(self, link: Name) -> None:
        raise AssertionError("every station has a name of its own")

    def offers_changed(self) -> None:
        """Nobody carries anything."""

    def frontier(self) -> Stamp:
        return Stamp(EPOCH, len(self._own)) if self._own else BEFORE_ALL

    def upward(self) -> tuple[Name, ...] | None:
        return self._overlay.upward

    def _now(self) -> float:
        return self._port.now

    def _schedule(self, at: float, action: Callable[[], object]) -> None:
        self._port.after(at - self._port.now, action)
