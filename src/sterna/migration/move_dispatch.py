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
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import TOO_MUCH_ARRIVES, WAITING_MAX, has_room
from sterna.migration.new_sessions import NewSessions
from sterna.migration.owner_news import OwnerNews
from sterna.migration.planned_moves import PlannedMoves
from sterna.migration.publisher_order import PublisherOrder
from sterna.migration.spent_numbers import SpentNumbers
from sterna.migration.tables import ArrivalState, On
from sterna.migration.transient_claims import TransientClaims
from sterna.migration.waiting_pulls import WaitingPulls
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp

#: Takes a message from the node that sent it.
Taker = Callable[[str, Any], None]


def _nothing(source: str, message: Any) -> None:
    """There is no such move, and nobody need hear of that."""


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
        host: MoveHost,
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
        self.waiting_pulls = WaitingPulls(host)
        #: For each kind of message about one session, or one node: who takes it from the node that sent it.
        self.takers: dict[type, Taker] = {
            Evacuate: plans.told_to_evacuate,
            Migrate: plans.ordered,
            Pull: self._pulled,
            MigTo: self._offered,
            MigSync: self._for_arrival(self._page_came, self._asked_how_it_stands),
            MigAck: self._for_arrival(Arrival.old_owner_is_done),
            MigAbort: self._for_arrival(self._taken_back, self._asked_how_it_stands),
            Absent: self._for_arrival(self._absent),
            MigToAck: self._for_departure(self._hears, self._no_longer_offered),
            MigSyncAck: self._for_departure(self._is_written, self._no_longer_sent),
            MigRefuse: self._for_departure(self._refused, self._refused_nothing),
            HandOver: new_sessions.offered,
            HandOverPage: new_sessions.page_came,
            HandOverWanted: fenced_sessions.wanted,
            HandOverAck: fenced_sessions.acknowledged,
        }
        #: For each kind of news: who takes it from the neighbour that told it.
        self.news_takers: dict[type, Taker] = {
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
        if not self._news.is_impossible(source, pull.client, pull.number):
            self._bring(source, pull, was_called=False)

    def serve_waiting(self) -> None:
        """Moves have come to an end, or wait for their clients: others may begin."""
        while len(self.waiting_pulls) and self._may_depart():
            if (found := self.waiting_pulls.next()) is not None:
                self._bring(found.source, found.pull, was_called=found.was_called)

    def _may_depart(self) -> bool:
        return has_room(self._moves.departures.values(), self._host.settings.at_once)

    def _bring(self, source: str, pull: Pull, *, was_called: bool) -> None:
        """`was_called`: its client had been sent away when this was asked for first."""
        client, host, moves = pull.client, self._host, self._moves
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
        was_called = was_called or (session is not None and session.is_called)
        departure = moves.departures.get(client)
        if departure is not None and departure.target == source:
            departure.pulled()
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
        elif client in moves.departures:
            return  # how that ends decides; it will be asked for again
        elif not self._may_depart():
            self.waiting_pulls.put(source, pull, was_called=was_called)
        else:
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
        arrivals, at_once = self._moves.arrivals.values(), self._host.settings.at_once
        # A client that is on its way here already would ask for its session by itself.
        if not has_room(arrivals, at_once) and not (offer.is_called and len(arrivals) < WAITING_MAX * at_once):
            return TOO_MUCH_ARRIVES
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

    def _for_arrival(self, take: Callable[[Arrival, Any], bool], astray: Taker = _nothing) -> Taker:
        """`take` says whether it meant something to the arrival; `astray` is called if there is no such move."""

        def came(source: str, message: MigSync | MigAbort | MigAck | Absent) -> None:
            arrival = self._moves.arrivals.get(message.client)
            if arrival is None or (arrival.source, arrival.number) != (source, message.number):
                self._host.counters.refused += 1
                astray(source, message)
            else:
                self._host.counters.refused += not take(arrival, message)

        return came

    def _asked_how_it_stands(self, source: str, message: MigSync | MigAbort) -> None:
        self._say_how_it_stands(source, message.client, message.number)

    @staticmethod
    def _page_came(arrival: Arrival, page: MigSync) -> bool:
        arrival.page_came(page)
        return True

    @staticmethod
    def _taken_back(arrival: Arrival, abort: MigAbort) -> bool:
        arrival.reason = abort.reason or "taken back"
        return arrival.on(On.MIGABORT)

    def _absent(self, arrival: Arrival, absent: Absent) -> bool:
        """The one we asked does not have it."""
        client, directory = arrival.client, self._directory
        is_old = arrival.state is not ArrivalState.AWAITING
        if is_old or self._news.is_impossible(arrival.source, client, absent.owner_number):
            return True
        if absent.owner not in ("", self._host.node):
            directory.learn(client, absent.owner, absent.owner_number, absent.owner_user)
        owner, number = directory.get(client)
        if owner in (arrival.source, self._host.node) and absent.owner != arrival.source:
            directory.learn(client, "", max(number, absent.owner_number) + 1)
        arrival.on(On.ABSENT)
        return True

    def _for_departure(self, take: Callable[[Departure, Any], bool], astray: Taker) -> Taker:
        """The same for a departure: `astray` gets an answer to what we no longer ask."""

        def came(source: str, message: MigToAck | MigSyncAck | MigRefuse) -> None:
            departure = self._moves.departures.get(message.client)
            if departure is None or (departure.target, departure.number) != (source, message.number):
                self._host.counters.refused += 1
                astray(source, message)
            else:
                self._host.counters.refused += not take(departure, message)

        return came

    @staticmethod
    def _hears(departure: Departure, answer: MigToAck) -> bool:
        vector = {origin: Stamp(epoch, sequence) for origin, epoch, sequence in answer.vector}
        departure.theirs(vector, answer.heard, is_first=answer.is_first, is_asked=answer.is_asked)
        return True

    def _no_longer_offered(self, source: str, answer: MigToAck) -> None:
        self._host.send(source, MigAbort(answer.client, answer.number, "taken back"))

    @staticmethod
    def _is_written(departure: Departure, answer: MigSyncAck) -> bool:
        if answer.page == WHOLE:
            return departure.on(On.MIGSYNCACK_WHOLE)
        departure.acknowledged(answer.page)
        return True

    def _no_longer_sent(self, source: str, answer: MigSyncAck) -> None:
        self._fenced_sessions.settle(answer.client, source, answer.number, is_there=answer.page == WHOLE)
        self._host.send(source, MigAck(answer.client, answer.number))

    @staticmethod
    def _refused(departure: Departure, refusal: MigRefuse) -> bool:
        departure.reason = refusal.reason
        return departure.on(On.AHEAD if refusal.is_ahead else On.MIGREFUSE)

    def _refused_nothing(self, source: str, refusal: MigRefuse) -> None:
        """It is no offer of ours that is refused: it may be what we asked for."""
        self._fenced_sessions.settle(refusal.client, source, refusal.number, is_there=False)
        arrival = self._moves.arrivals.get(refusal.client)
        if arrival is not None and (arrival.source, arrival.number) == (source, refusal.number):
            arrival.reason = refusal.reason
            arrival.on(On.MIGREFUSE)
