"""The manager of moves: which node owns which session, and the moves under way from and to this one.

The broker asks here before it lets a client in (`is_at_home`, `bring`).  Messages of other nodes come through
`move_dispatch.py`, and `departure.py` and `arrival.py` carry each move out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sterna.broker.beginning import in_doubt
from sterna.broker.foreign import is_foreign
from sterna.broker.packets.ack_only_reader import AckOnlyReader
from sterna.broker.session.connection import Connection
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration import messages
from sterna.migration.arrival import Arrival
from sterna.migration.departure import ClientsOnTheWay, Departure
from sterna.migration.directory import Directory, Whose
from sterna.migration.fenced_sessions import FencedSessions
from sterna.migration.identifier_users import ANOTHER_USERS, IdentifierUsers
from sterna.migration.messages import Digests
from sterna.migration.move_dispatch import MoveDispatch
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import CLIENT_IS_BACK, NOT_COME
from sterna.migration.new_sessions import NewSessions
from sterna.migration.node_absence import NodeAbsence
from sterna.migration.owner_news import OwnerNews
from sterna.migration.planned_moves import PlannedMoves
from sterna.migration.publisher_order import PublisherOrder
from sterna.migration.restart_grace import RestartGrace
from sterna.migration.spent_numbers import SpentNumbers
from sterna.migration.tables import ArrivalState, DepartureState, On
from sterna.migration.transient_claims import TransientClaims
from sterna.migration.waiting_clients import EXTRA_S, Parked, WaitingClients
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.bounds import NEW_SESSION_STEPS

#: Sessions that came here and went on, of which that is remembered.
TAKEN_MAX = 10_000
#: Sessions that went to other nodes, of which `/migrations` tells.
MOVED_SHOWN = 20


class Moved(NamedTuple):
    client: bytes
    target: str
    at: float
    took_s: float


class MoveManager:
    def __init__(self, host: MoveHost) -> None:
        broker = host.broker
        self.host = host
        self.broker = broker
        self.node = host.node
        self.router = host.router
        self.settings = host.settings
        self.counters = host.counters
        whose = {client: Whose(*facts) for client, facts in broker.state.whose.items()}
        self.directory = Directory(self.node, broker.state.owners, whose, broker.log.owner)
        self.departures: dict[bytes, Departure] = {}
        self.arrivals: dict[bytes, Arrival] = {}
        #: The last of those that went, for an operator who looks too late to see them go.
        self.moved: deque[Moved] = deque(maxlen=MOVED_SHOWN)
        self.spent_numbers = SpentNumbers()
        #: Sessions that came here lately, and under which number.
        self._taken: dict[tuple[bytes, int], None] = {}
        #: Clients that are about to get a new session -> the node that has the old one, and its number.
        self._replaced: dict[bytes, tuple[str, int]] = {}
        self.news = OwnerNews(host, self.directory)
        self._absence = NodeAbsence(host)
        self._waiting = WaitingClients(host, self.directory, self._absence)
        self._users = IdentifierUsers(host, self.directory)
        self.plans = PlannedMoves(host, self.directory, self.departures, self._depart_by_plan)
        self.fenced_sessions = FencedSessions(host, self.directory)
        self.new_sessions = NewSessions(host, self.directory)
        self.publisher_order = PublisherOrder(host, self._hear_again)
        #: Clients that are heard only when what they said elsewhere has come here.
        self._unheard: dict[bytes, AckOnlyReader] = {}
        self._claims = TransientClaims(host, self._take_over, self._yield_to_first)
        self._dispatch = MoveDispatch(
            host,
            self,
            self.directory,
            self.news,
            self.plans,
            self.fenced_sessions,
            self.new_sessions,
            self._claims,
        )
        segments = broker.journal.segments()
        self._restart_grace = RestartGrace(
            host,
            self._fetch_all,
            is_first_start=broker.journal.is_first_start,
            silent_s=broker.wall - (segments[-1].newest_us / 1e6 if segments else 0.0),
        )
        host.receive = self._dispatch.came
        broker.attach_keeper(self)
        self._recover()

    @property
    def clients(self) -> ClientsOnTheWay:
        return self.plans

    def _recover(self) -> None:
        for session in list(self.broker.sessions.values()):
            session_transfer.raise_barrier(self.broker, session)
            if session.is_fenced or is_foreign(session):
                continue
            session.number = session.number or self._number_again(session)
            self.directory.learn(session.client_id, self.node, session.number, session.user)
            owner, number = self.directory.get(session.client_id)
            if session.leaving is not None:
                self.depart(session, *session.leaving, by_plan=False)
            elif owner != self.node:
                self.owner_changed(session.client_id, owner, number)
            else:
                session.number = number
        for client, (owner, number) in list(self.broker.state.owners.items()):
            if owner == self.node and client not in self.broker.sessions:
                self.directory.learn(client, "", number + 1)
        self.fenced_sessions.recover()
        self.new_sessions.recover()
        self.publisher_order.recover(self.broker.state.came)

    def _number_again(self, session: Session) -> int:
        """Of a session that has none: it began before this node had joined others, or its number could not be."""
        return 1 if not self.broker.counters.impossible_entries else self.next_number(session.client_id)

    def flush(self) -> None:
        """The end of a turn."""
        self.host.look_again()
        self._dispatch.serve_waiting()
        self.news.flush(self.publisher_order.news)

    # -- the broker asks --

    def is_at_home(self, client_id: bytes, *, clean: bool = False) -> bool:
        if not self.plans.is_open_to(client_id):
            return False
        session = self.broker.sessions.get(client_id)
        arrival = self.arrivals.get(client_id)
        if session is not None:
            return not session.is_moving and not self._restart_grace.keeps_waiting(
                has_in_flight=bool(in_doubt(session))
            )
        if arrival is not None:
            return False
        owner, _ = self.directory.get(client_id)
        return owner == self.node or (not owner and (clean or self._restart_grace.is_over))

    def bring(
        self, connection: Connection, user: str | None, greet: Callable[[], None], then: Callable[[], None]
    ) -> None:
        assert connection.connect is not None
        client = connection.connect.client_id
        if self.plans.turn_away(connection, client):
            return
        self._waiting.park(client, Parked(connection, user, greet, then))
        self.fetch(client)

    def next_number(self, client_id: bytes) -> int:
        """Of a session that begins; one that moves counts on, so that a new session's stays higher."""
        return self.directory.next_number(client_id, self.broker.wall)

    def next_number_of_move(self, client_id: bytes) -> int:
        """Of two offers the later one has the higher number: they may differ in what the client wants to hear."""
        return self.spent_numbers.unspent(client_id, self.directory.get(client_id)[1] + 1)

    def opened(self, session: Session) -> bool:
        client = session.client_id
        departure = self.departures.get(client)
        if departure is not None:
            departure.trouble(CLIENT_IS_BACK)
        self._dispatch.waiting_pulls.client_is_back(client)
        self.plans.client_is_back(client)
        if session.number:
            if self.directory.get(client) == (self.node, session.number):
                return False
            owner, after = self._replaced.pop(client, ("", 0))
            is_new = bool(owner or self._absence.missing() or self._restart_grace.has_forgotten)
            if is_new:
                self.new_sessions.begun(session, owner, after, clean=_is_clean(session))
            self._users.opened(session)
            if is_new:
                self.news.learn_new_session(client, session.number, session.user)
                self.broker.commitments.when_safe(partial(self._is_safe, client, session.number))
            else:
                self.news.learn(client, self.node, session.number, session.user)
            return True
        self._claims.opened(client, session.user)
        return False

    def welcomed(self, session: Session) -> bool:
        """Messages that may be repeated, or would overtake others, wait; the client does not."""
        client, connection = session.client_id, session.connection
        arrival = self.arrivals.get(client)
        if arrival is not None and connection is not None and connection.is_second:
            arrival.was_led = True  # its gateway knows what it has had
        elif arrival is not None and arrival.awaits_word:
            arrival.hold_back()
        if connection is None or not self.publisher_order.holds_up(client):
            return True
        reader = self._unheard[client] = AckOnlyReader(self.broker.acknowledgements, lambda: None)
        connection.freeze(reader)
        return False

    def _hear_again(self, client: bytes) -> None:
        reader, session = self._unheard.pop(client, None), self.broker.sessions.get(client)
        connection = session.connection if session is not None else None
        if connection is not None and reader is not None and connection.parting is reader:
            connection.thaw()

    def subscribed(self, session: Session, topic_filter: bytes) -> None:
        self.new_sessions.subscribed(session, topic_filter)

    def ended(self, session: Session) -> None:
        client = session.client_id
        self._claims.ended(client)
        self.new_sessions.ended(client)
        departure = self.departures.get(client)
        if departure is not None:
            departure.trouble("the session has ended")
        if session.number:
            self.news.learn(client, "", max(session.number, self.directory.get(client)[1]) + 1)

    def _is_safe(self, client: bytes, number: int, safe: bool) -> None:
        self.news.is_safe(client, number)

    def when_heard(self, action: Callable[[], None]) -> None:
        if self._absence.missing():
            self.broker.commitments.when_safe(lambda safe: self.router.when_heard(action))
        else:
            self.router.when_heard(action)

    # -- clients that wait for their sessions --

    def fetch(self, client: bytes) -> None:
        """See that a client that waits gets its session."""
        parked = self._waiting.still_there(client)
        if not parked:
            return
        session = self.broker.sessions.get(client)
        is_served_elsewhere = self._waiting.only_second(client)
        if self.is_at_home(client) and not (is_served_elsewhere and session is None):
            self._waiting.release(client)
            return
        if self._is_in_doubt_for_long(client) and not is_served_elsewhere:
            self._owner_unreachable(client, self.departures[client].target)
            return
        if client in self.arrivals:
            self.listens(self.arrivals[client])
            self.arrivals[client].on(On.CAME)
            return  # it is looked at again when that is settled
        if session is not None or is_served_elsewhere:
            return  # until those are met who may know better, or its session comes
        owner, _ = self.directory.get(client)
        if not owner:
            return  # until we have met somebody who may know better
        if self.router.link_to(owner) is None:
            self._owner_unreachable(client, owner)
            return
        arrival = self.expect(client, owner, self.next_number_of_move(client))
        newest = parked[-1]
        arrival.user = newest.user
        arrival.ends = newest.connection.connect is not None and newest.connection.connect.clean_start
        arrival.begin(pull=True)

    def _fetch_all(self) -> None:
        for client in self._waiting.everybody():
            self.fetch(client)

    def _is_in_doubt_for_long(self, client: bytes) -> bool:
        """Has it been handed to a node that may have it or not, and cannot be asked?"""
        departure = self.departures.get(client)
        return (
            departure is not None
            and departure.state is DepartureState.IN_DOUBT
            and self.router.link_to(departure.target) is None
            and self.broker.now - departure.started_at > self.settings.patience_s
        )

    def _owner_unreachable(self, client: bytes, owner: str) -> None:
        left_s = self._absence.left_s(owner)
        if not self._restart_grace.is_over:
            return  # a neighbour may know better
        if left_s > 0:
            # It waits: until that node is found (`path_changed`), it may have a new session, or for too long.
            if left_s <= self.settings.patience_s + EXTRA_S:
                self.host.later(left_s, partial(self.fetch, client))
            return
        after = self.directory.get(client)[1]
        departure = self.departures.pop(client, None)
        if departure is not None:
            # Whether that node has it, it will be asked when it is back; until then it is kept.
            self._replaced[client] = owner, departure.session.number
            self.directory.learn(client, owner, departure.number, departure.session.user)
            self.fenced_sessions.fence(departure.session)
            if client in self.broker.sessions:
                self.host.later(self.settings.retry_s / 5, partial(self.fetch, client))
                return
        self.counters.new_sessions += 1
        self._replaced.setdefault(client, (owner, after))
        self.broker.report("a new session: the client's node cannot be reached", client=client.decode(), node=owner)
        self.directory.learn(client, "", self.directory.get(client)[1] + NEW_SESSION_STEPS)
        self._waiting.release(client)

    # -- moves tell how they ended --

    def depart(self, session: Session, target: str, number: int, *, by_plan: bool) -> None:
        arrival = self.arrivals.get(session.client_id)
        if arrival is not None:
            arrival.send_again()
        departure = Departure(self.host, self, session, target, number, by_plan=by_plan)
        self.departures[session.client_id] = departure
        departure.begin()

    def _depart_by_plan(self, session: Session, target: str) -> None:
        self.depart(session, target, self.next_number_of_move(session.client_id), by_plan=True)

    def expect(self, client: bytes, source: str, number: int) -> Arrival:
        arrival = self.arrivals[client] = Arrival(self.host, self, client, source, number)
        return arrival

    def has_moved(self, departure: Departure) -> None:
        session = departure.session
        self.news.learn_moved(session.client_id, departure.target, departure.number, session.user)
        self.publisher_order.went(departure.target)

    def departed(self, departure: Departure) -> None:
        client = departure.session.client_id
        if self.departures.get(client) is departure:
            del self.departures[client]
        is_put_off = self.plans.departed(departure)
        if departure.state is DepartureState.GONE:
            self.counters.departed += 1
            now = self.broker.now
            self.moved.append(Moved(client, departure.target, now, now - departure.started_at))
            self.broker.counters.moves_took.observe(now - departure.started_at)
            self.broker.tell("session moved", {"client": client.decode(), "to": departure.target})
        else:
            self.counters.rolled_back += not is_put_off
            self.counters.came_back += departure.by_plan and departure.reason == CLIENT_IS_BACK
            self.counters.did_not_come += departure.reason == NOT_COME
            self.spent_numbers.spend(client, departure.number)
            self._check_owner(client)
        self.fetch(client)

    def has_come(self, client: bytes) -> bool:
        return bool(self._waiting.still_there(client))

    def listens(self, arrival: Arrival) -> None:
        offer = arrival.offer
        if offer is not None and offer.is_greeted:
            self._waiting.greet(arrival.client, offer.user)

    def took_over(self, arrival: Arrival) -> None:
        self.counters.arrived += 1
        session = self.broker.sessions.get(arrival.client)
        self.news.learn(
            arrival.client, self.node, arrival.number, session.user if session is not None else None, noted=True
        )
        self._taken[arrival.client, arrival.number] = None
        if len(self._taken) > TAKEN_MAX:
            del self._taken[next(iter(self._taken))]
        if session is not None:
            self.new_sessions.arrived(session)

    def has_taken(self, client: bytes, number: int) -> bool:
        """Did a session that somebody else owns now come here under this number?  If clients may get new sessions only
        what is remembered counts: else it goes on being theirs who ask, and they learn that it is owned elsewhere."""
        return self.settings.owner_unreachable == "refuse" or (client, number) in self._taken

    def settled(self, arrival: Arrival) -> None:
        """The client's session is here, or will not come this way."""
        if arrival.served and not arrival.awaits_word:
            arrival.send_again()
        elif not arrival.served:
            self._waiting.fail_second(arrival.client)
        if arrival.state is ArrivalState.SERVING:
            self._waiting.release(arrival.client)
        elif arrival.reason == "user":
            self._waiting.fail(arrival.client, Reason.NOT_AUTHORIZED, ANOTHER_USERS)
        elif arrival.reason == CLIENT_IS_BACK:  # later than it came here: a client that waits here does not take that
            self._waiting.fail(arrival.client, Reason.SERVER_UNAVAILABLE, "its client has come to another node since")
        elif arrival.client in self._waiting and arrival.reason:
            # Not in a loop: the obstacle may take a moment.
            self.host.later(self.settings.retry_s / 5, partial(self.fetch, arrival.client))
        else:
            self.fetch(arrival.client)

    def arrived(self, arrival: Arrival) -> None:
        if self.arrivals.get(arrival.client) is arrival:
            del self.arrivals[arrival.client]
        if arrival.state is ArrivalState.DROPPED:
            self.spent_numbers.spend(arrival.client, arrival.number)
            self.counters.given_up += bool(arrival.reason)
        self._check_owner(arrival.client)

    # -- who owns what --

    def directed_came(self, source: str, body: bytes) -> None:
        self._dispatch.came(source, body)

    def link_started(self, peer: str) -> None:
        self.router.tell([peer], messages.encode(Digests(self.directory.digests())))
        self._restart_grace.link_started()

    def origin_lost(self, origin: str) -> None:
        self._absence.lost(origin)
        for arrival in list(self.arrivals.values()):
            if arrival.source == origin and arrival.state in (ArrivalState.AWAITING, ArrivalState.PREPARED):
                arrival.trouble("its node cannot be reached")  # who waits for it is told when that is found again

    def path_changed(self, origin: str) -> None:
        """A node that may know how a move ended can be asked again."""
        self._absence.found(origin)
        self.fenced_sessions.node_found(origin)
        self.new_sessions.node_found(origin)
        for departure in list(self.departures.values()):
            if departure.target == origin:
                departure.path_found()
        for arrival in list(self.arrivals.values()):
            if arrival.source == origin:
                arrival.path_found()
        self._fetch_all()

    def news_came(self, link: str, body: bytes) -> None:
        self._dispatch.told(link, body)

    def _check_owner(self, client: bytes) -> None:
        owner, number = self.directory.get(client)
        session = self.broker.sessions.get(client)
        if session is not None and owner != self.node and number:
            self.owner_changed(client, owner, number)

    def owner_changed(
        self, client: bytes, owner: str, number: int, before: Whose | None = None, *, is_fresh: bool = False
    ) -> None:
        """The directory says something new about a client: is it one of ours?  `before`: whose it was, as we knew."""
        self.fenced_sessions.owner_changed(client)
        session = self.broker.sessions.get(client)
        departure, arrival = self.departures.get(client), self.arrivals.get(client)
        if owner == self.node:
            if session is None or session.is_arriving:
                self.news.learn(client, "", number + 1)  # we do not have it, or no longer
            elif session.number < number:
                session.number = number
                self.broker.log.touched(session)
        elif departure is not None and (departure.target, departure.number) == (owner, number):
            departure.on(On.MIGSYNCACK_WHOLE)
        elif arrival is not None and not arrival.served:
            is_awaited = arrival.state is ArrivalState.AWAITING
            if not owner and is_awaited:
                return  # the node that was asked knows better whether it has the session, and answers
            if number >= arrival.number or (is_awaited and owner != arrival.source):
                arrival.trouble("another node has come to own it")
        elif session is None or session.is_moving:
            return  # how that ends decides
        elif self._users.has_another(session, owner):
            self._users.settle(session, number, before, self._claims.came(client), is_fresh=is_fresh)
        elif not session.number:
            if session.connection is not None and owner:
                self.host.take_over(session)
        elif not owner:
            session.number = number + 1  # it is here all the same
            self.broker.log.touched(session)
            self.news.learn(client, self.node, session.number, session.user)
        else:
            self.fence(session)

    def belongs_to_another(self, client_id: bytes, user: str | None) -> bool:
        return self._users.belongs_to_another(client_id, user)

    def _take_over(self, client: bytes) -> None:
        self.host.take_over(self.broker.sessions[client])

    def _yield_to_first(self, client: bytes) -> None:
        self._users.yield_to_first(self.broker.sessions[client])

    def fence(self, session: Session) -> None:
        """Another node has come to own its client's session while we could not be reached."""
        self.counters.fenced += 1
        departure = self.departures.get(session.client_id)
        if departure is not None:
            departure.trouble("another node has come to own it")
        self.fenced_sessions.fence(session)


def _is_clean(session: Session) -> bool:
    """Does its client want nothing of what was before?"""
    connect = session.connection.connect if session.connection is not None else None
    return connect is not None and connect.clean_start
