"""Dispatches messages of other nodes: news for everybody, and messages about one session to its move under way.

One table names for each kind of message who takes it.  A message that belongs to no move is old, repeated or forged: it
is counted, and answered where the other side may be waiting to hear how a move ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sterna.broker.session.session import Session
from sterna.migration import messages
from sterna.migration.arrival import Arrival
from sterna.migration.departure import Departure
from sterna.migration.directory import Directory, Whose
from sterna.migration.fenced_sessions import FencedSessions
from sterna.migration.messages import (
    WHOLE,
    Absent,
    Claims,
    Digests,
    Evacuate,
    HandOver,
    HandOverAck,
    HandOverPage,
    HandOverWanted,
    MigAbort,
    MigAck,
    Migrate,
    MigRefuse,
    MigSync,
    MigSyncAck,
    MigTo,
    MigToAck,
    OwnerEntry,
    Owners,
    Pull,
)
from sterna.migration.move_side import has_room
from sterna.migration.new_sessions import NewSessions
from sterna.migration.node_move_host import NodeMoveHost
from sterna.migration.owner_news import OwnerNews
from sterna.migration.planned_moves import PlannedMoves
from sterna.migration.publisher_order import PublisherOrder
from sterna.migration.spent_numbers import SpentNumbers
from sterna.migration.tables import Arriving, On
from sterna.migration.transient_claims import TransientClaims
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp


class Moves(Protocol):
    """The moves under way, and how others are begun or ended."""

    @property
    def departures(self) -> Mapping[bytes, Departure]: ...
    @property
    def arrivals(self) -> Mapping[bytes, Arrival]: ...
    @property
    def publisher_order(self) -> PublisherOrder: ...
    @property
    def spent_numbers(self) -> SpentNumbers: ...
    def depart(self, session: Session, target: str, number: int, *, by_plan: bool) -> None: ...
    def expect(self, client: bytes, source: str, number: int) -> Arrival: ...
    def fence(self, session: Session) -> None: ...
    def has_taken(self, client: bytes, number: int) -> bool: ...
    def owner_changed(
        self, client: bytes, owner: str, number: int, before: Whose | None = None, *, is_fresh: bool = False
    ) -> None: ...


class MoveDispatch:
    def __init__(
        self,
        host: NodeMoveHost,
        moves: Moves,
        directory: Directory,
        news: OwnerNews,
        plans: PlannedMoves,
        fenced_sessions: FencedSessions,
        new_sessions: NewSessions,
        claims: TransientClaims,
    ) -> None:
        self._host = host
        self._moves = moves
        self._directory = directory
        self._news = news
        self._plans = plans
        self._fenced_sessions = fenced_sessions
        self._new_sessions = new_sessions
        self._claims = claims
        #: For each kind of message about one session, or one node: who takes it from the node that sent it.
        self.takers: dict[type, Callable[[str, Any], None]] = {
            Evacuate: plans.told_to_evacuate,
            Migrate: plans.ordered,
            Pull: self._pulled,
            MigTo: self._offered,
            MigSync: self._for_arrival,
            MigAck: self._for_arrival,
            MigAbort: self._for_arrival,
            Absent: self._for_arrival,
            MigToAck: self._for_departure,
            MigSyncAck: self._for_departure,
            MigRefuse: self._for_departure,
            HandOver: new_sessions.came,
            HandOverPage: new_sessions.came,
            HandOverWanted: fenced_sessions.came,
            HandOverAck: fenced_sessions.came,
        }
        #: For each kind of news: who takes it from the neighbour that told it.
        self.news_takers: dict[type, Callable[[str, Any], None]] = {
            Owners: self._owners_told,
            Digests: self._digests_told,
            Claims: self._claims_told,
        }

    def came(self, source: str, body: bytes) -> None:
        try:
            message = messages.decode(body)
        except LinkProtocolError:
            self._host.counters.refused += 1
            return
        self.takers[type(message)](source, message)

    def told(self, link: str, body: bytes) -> None:
        """A neighbour has sent news for everybody: who owns what and who is where."""
        news = messages.decode_news(body)
        self.news_takers[type(news)](link, news)

    # -- news --

    def _owners_told(self, link: str, news: Owners) -> None:
        directory, router = self._directory, self._host.router
        fresh: list[tuple[OwnerEntry, Whose]] = []
        for entry in news.entries:
            before = directory.whose(entry[0])
            if self._news.is_impossible(link, entry[0], entry[2]):
                continue
            if directory.learn(*entry):
                fresh.append((entry, before))
            else:
                self._new_sessions.named(*entry[:3])
        if fresh:
            entries = [entry for entry, _ in fresh]
            others = [other for other in router.links() if other != link]
            router.tell(others, messages.encode(Owners(entries, news.after, news.is_fresh)))
            self._moves.publisher_order.told(news.after, entries)
            for (client, owner, number, *_), before in fresh:
                self._moves.owner_changed(client, owner, number, before, is_fresh=news.is_fresh)

    def _digests_told(self, link: str, news: Digests) -> None:
        for page in self._directory.differing(news.numbers):
            known = [one for one in page if one[0] not in self._news.unsafe]
            self._host.router.tell([link], messages.encode(Owners(known)))

    def _claims_told(self, link: str, news: Claims) -> None:
        router = self._host.router
        if router.link_to(news.node) == link:
            router.tell([other for other in router.links() if other != link], messages.encode(news))
            for entry in news.entries:
                self._claims.claimed(news.node, *entry)
        else:
            self._host.counters.refused += 1

    # -- moves that begin --

    def _pulled(self, source: str, pull: Pull) -> None:
        client, host, moves = pull.client, self._host, self._moves
        if self._news.is_impossible(source, client, pull.number):
            return
        session = host.broker.sessions.get(client)
        owner, number = self._directory.get(client)
        if session is not None and session.is_moving:
            return  # it will be asked for again
        if session is not None and session.user not in (None, pull.user):
            host.send(source, MigRefuse(client, pull.number, "user"))
            return
        if session is not None and session.number >= pull.number:
            host.send(source, Absent(client, pull.number, host.node, session.number, session.user))
            return
        was_called = session is not None and session.is_called
        departure = moves.departures.get(client)
        if departure is not None and departure.target == source:
            departure.on(On.PULL)
        elif departure is not None and departure.by_plan:
            departure.trouble("its client has come to another node")
        if session is not None and client not in moves.departures:
            host.take_over(session)
            session = host.broker.sessions.get(client)
        if session is None:
            user = self._directory.whose(client).user
            host.send(source, Absent(client, pull.number, owner if owner != source else "", number, user))
        elif pull.ends:
            host.broker.lifecycle.end_session(session)
            owner, number = self._directory.get(client)
            absent = Absent(client, pull.number, "", number)
            host.broker.commitments.when_safe(lambda safe: host.send(source, absent))
        elif client not in moves.departures and has_room(moves.departures.values(), host.settings.at_once):
            session.is_called = was_called  # it was this node that sent its client away: its will waits
            moves.depart(session, source, moves.spent_numbers.unspent(client, pull.number), by_plan=False)

    def _offered(self, source: str, offer: MigTo) -> None:
        client, host, moves = offer.client, self._host, self._moves
        if self._news.is_impossible(source, client, offer.number):
            return
        owner, number = self._directory.get(client)
        session = host.broker.sessions.get(client)
        arrival = moves.arrivals.get(client)
        if offer.epoch not in (None, host.epoch):
            self._say_how_it_stands(source, client, offer.number)  # it was said to an earlier start of this node
            return
        if moves.spent_numbers.covers(client, offer.number):
            host.send(source, MigRefuse(client, offer.number, "it has come to nothing under this number"))
            return
        if arrival is not None and arrival.source == source and not arrival.served and offer.number > number:
            if arrival.offered(offer):
                return
            arrival.trouble("it is offered anew")
            session = host.broker.sessions.get(client)
        # Two nodes may begin a session under the same number; the directory decides between them, not who moves first.
        is_rival = session is not None and owner == host.node and number + 1 >= offer.number
        if number >= offer.number or is_rival or (session is not None and session.is_moving):
            self._say_how_it_stands(source, client, offer.number)
            return
        if session is not None:
            moves.fence(session)
            if client in host.broker.sessions:
                return  # it is being fenced; the other one will be offered again
        if reason := self._why_not(offer):
            moves.spent_numbers.spend(client, offer.number)
            host.send(source, MigRefuse(client, offer.number, reason))
            return
        arrival = moves.expect(client, source, offer.number)
        arrival.begin(pull=False)
        arrival.offered(offer)

    def _why_not(self, offer: MigTo) -> str:
        """Why this node does not take a session; "" if it does."""
        broker = self._host.broker
        if self._plans.evacuation is not None:
            return "it is being evacuated"
        if len(broker.sessions) >= broker.limits.sessions:
            return "it has as many sessions as it may"
        if not has_room(self._moves.arrivals.values(), self._host.settings.at_once):
            return "too much is arriving there"
        if offer.by_plan and not broker.access.may_come(offer.user, offer.client.decode()):
            return "it would not let its client in" if offer.user is None else f"it does not know user {offer.user}"
        if offer.on_arrival and broker.lifecycle.clients_connected >= broker.limits.connections:
            return "it has as many connections as it may"
        return ""

    def _say_how_it_stands(self, source: str, client: bytes, number: int) -> None:
        """To a node that asks about a move of which we know nothing more: did it come about?"""
        session = self._host.broker.sessions.get(client)
        owner, known = self._directory.get(client)
        is_here = session is not None and not session.is_arriving and session.number >= number
        if is_here and session is not None and session.beginning is not None:
            is_here = session.beginning.number < number  # else it began without what was to come
        is_here = is_here or self._fenced_sessions.has(client, number)
        if is_here or (known >= number and owner != source and self._moves.has_taken(client, number)):
            self._host.send(source, MigSyncAck(client, number, WHOLE))
        else:
            self._moves.spent_numbers.spend(client, number)
            self._host.send(source, MigRefuse(client, number, "there is no such move"))

    # -- moves under way --

    def _for_arrival(self, source: str, message: MigSync | MigAbort | MigAck | Absent) -> None:
        arrival = self._moves.arrivals.get(message.client)
        if arrival is None or (arrival.source, arrival.number) != (source, message.number):
            self._host.counters.refused += 1
            if isinstance(message, MigSync | MigAbort):
                self._say_how_it_stands(source, message.client, message.number)
            return
        known = True
        if isinstance(message, MigSync):
            arrival.page_came(message)
        elif isinstance(message, MigAck):
            known = arrival.old_owner_is_done(message)
        elif isinstance(message, MigAbort):
            arrival.reason = message.reason or "taken back"
            known = arrival.on(On.MIGABORT)
        else:
            self._absent(arrival, message)
        self._host.counters.refused += not known

    def _absent(self, arrival: Arrival, absent: Absent) -> None:
        """The one we asked does not have it."""
        if arrival.state is not Arriving.AWAITING:
            return
        client, directory = arrival.client, self._directory
        if self._news.is_impossible(arrival.source, client, absent.owner_number):
            return
        if absent.owner not in ("", self._host.node):
            directory.learn(client, absent.owner, absent.owner_number, absent.owner_user)
        owner, number = directory.get(client)
        if owner in (arrival.source, self._host.node) and absent.owner != arrival.source:
            directory.learn(client, "", max(number, absent.owner_number) + 1)
        arrival.on(On.ABSENT)

    def _for_departure(self, source: str, message: MigToAck | MigSyncAck | MigRefuse) -> None:
        departure = self._moves.departures.get(message.client)
        if departure is None or (departure.target, departure.number) != (source, message.number):
            self._for_nobody(source, message)
        elif isinstance(message, MigToAck):
            vector = {origin: Stamp(epoch, sequence) for origin, epoch, sequence in message.vector}
            departure.theirs(vector, message.heard, is_first=message.is_first)
        elif isinstance(message, MigRefuse):
            departure.reason = message.reason
            self._host.counters.refused += not departure.on(On.AHEAD if message.is_ahead else On.MIGREFUSE)
        elif message.page == WHOLE:
            self._host.counters.refused += not departure.on(On.MIGSYNCACK_WHOLE)
        else:
            departure.acknowledged(message.page)

    def _for_nobody(self, source: str, message: MigToAck | MigSyncAck | MigRefuse) -> None:
        """An answer to what we no longer ask."""
        self._host.counters.refused += 1
        arrival = self._moves.arrivals.get(message.client)
        if isinstance(message, MigSyncAck | MigRefuse):
            is_there = isinstance(message, MigSyncAck) and message.page == WHOLE
            self._fenced_sessions.settle(message.client, source, message.number, is_there=is_there)
        if isinstance(message, MigToAck):
            self._host.send(source, MigAbort(message.client, message.number, "taken back"))
        elif isinstance(message, MigSyncAck):
            self._host.send(source, MigAck(message.client, message.number))
        elif arrival is not None and (arrival.source, arrival.number) == (source, message.number):
            arrival.reason = message.reason
            arrival.on(On.MIGREFUSE)
