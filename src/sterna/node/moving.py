"""Sessions that change their node: who owns which, and the moves under way from and to this one.

The broker asks here before it lets a client in (`is_at_home`, `bring`), the router brings what other nodes say, and
`leaving.py` and `arriving.py` carry each move out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sterna.broker.beginning import UNKNOWN
from sterna.broker.broker import Broker
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration import messages
from sterna.migration.directory import NEW_SESSION_STEPS, Directory, Whose
from sterna.migration.messages import Digests, OwnerEntry, Owners
from sterna.migration.settings import MigrationSettings
from sterna.migration.tables import Arriving, Leaving, On
from sterna.mqtt.reasons import Reason
from sterna.node.arriving import Arrival
from sterna.node.fenced_sessions import FencedSessions
from sterna.node.leaving import Departure
from sterna.node.meeting import Meeting
from sterna.node.moving_counters import MovingCounters
from sterna.node.new_sessions import NewSessions
from sterna.node.plans import Plans
from sterna.node.predecessors import Predecessors
from sterna.node.transients import Transients
from sterna.node.waiting_clients import EXTRA_S, Parked, WaitingClients
from sterna.node.words import Words
from sterna.routing.link_frames import About
from sterna.vocabulary.identity import Stamp, VersionVector

if TYPE_CHECKING:
    from sterna.node.network import Network

#: What a link adds to what two nodes say to each other.
FRAME_OVERHEAD_BYTES = 512
#: Why a session stays where it is, as the node says that was to have it.
CLIENT_IS_BACK = "the client is back"
ANOTHER_USERS = "this client identifier belongs to another user"
#: Sessions that came here and went on, of which that is remembered.
TAKEN_MAX = 10_000
#: At most so often an operator is told of numbers that cannot be.
IMPOSSIBLE_TOLD_S = 60.0


class Moving:
    def __init__(self, broker: Broker, network: Network, settings: MigrationSettings) -> None:
        self.broker = broker
        self._network = network
        self.node = network.node
        self.router = network.router
        self.settings = settings
        self.grace_s = settings.patience_s
        self.counters = MovingCounters()
        whose = {client: Whose(*facts) for client, facts in broker.state.whose.items()}
        self.directory = Directory(self.node, broker.state.owners, whose, broker.log.owner)
        self.departures: dict[bytes, Departure] = {}
        self.arrivals: dict[bytes, Arrival] = {}
        self._waiting = WaitingClients(self)
        #: Sessions that came here lately, and under which number.
        self._taken: dict[tuple[bytes, int], None] = {}
        #: Clients that are about to get a new session -> the node that has the old one, and its number.
        self._replaced: dict[bytes, tuple[str, int]] = {}
        #: Clients whose sessions have just begun here: another node may yet say that another user has the identifier.
        self._newcomers: dict[bytes, Session] = {}
        #: Clients with new sessions that are not safe yet: nobody is to hear of them.
        self.unsafe: dict[bytes, None] = {}
        self._news: list[OwnerEntry] = []
        self._awaited: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        #: Nodes that cannot be reached any more -> since when; others were not there when this one came.
        self._lost_at: dict[str, float] = {}
        self._started_at = broker.now
        self._impossible_told_at = -IMPOSSIBLE_TOLD_S
        self.plans = Plans(self)
        self.fenced_sessions = FencedSessions(self)
        self.new_sessions = NewSessions(self)
        self.predecessors = Predecessors(self)
        self.transients = Transients(self)
        self._words = Words(self)
        self._meeting = Meeting(self, self._fetch_all)
        broker.attach_keeper(self)
        self._recover()

    def _recover(self) -> None:
        for session in list(self.broker.sessions.values()):
            session_transfer.raise_barrier(self.broker, session)
            if session.is_fenced:
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
        self.predecessors.recover(self.broker.sessions.values())

    def _number_again(self, session: Session) -> int:
        """Of a session that has none: it began before this node had joined others, or its number could not be."""
        return 1 if not self.broker.counters.impossible_entries else self.next_number(session.client_id)

    # -- what both sides of a move need --

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.broker.deadlines.at(self.broker.now + seconds, action)

    def send(self, node: str, message: messages.Message) -> None:
        body = messages.encode(message)
        if len(body) + FRAME_OVERHEAD_BYTES > self._network.links.settings.frame_bytes:
            # A link would break under it: the move is given up in the end, and the session stays where it is.
            self.counters.too_big += 1
            self.broker.tell(
                "a session is too big to be moved", {"client": message.client.decode(), "bytes": len(body)}
            )
            return
        if node == self.node:  # the client is back where it was before
            self.later(0.0, partial(self._words.came, node, body))
        else:
            self.router.post(node, About.MOVES, body)

    def digests_of_paths(self) -> dict[str, int]:
        return {origin: path.digest for origin, path in self.router.paths.known.items()}

    def ask_everybody(self, action: Callable[[VersionVector], None]) -> None:
        """How far had everybody's messages come when they heard what we want?"""
        if self.router.has_links:
            self.router.probes.ask(action)
        else:
            action({})

    def vector(self) -> VersionVector:
        """What we have read of everybody, our own messages included."""
        journal = self.broker.journal
        return {**self._network.settled_vector(), self.node: Stamp(journal.epoch, journal.next_offset - 1)}

    def has_nobody_but(self, node: str) -> bool:
        """Is it the only other one, and there as far as we can tell?"""
        link = self._network.links.links.get(self.router.link_to(node) or "")
        return self.router.paths.origins == [node] and link is not None and link.connected

    def has_heard_lately(self, node: str) -> bool:
        """It may vanish at any time; a link that misses a keep-alive may be dead without anybody knowing."""
        links = self._network.links
        link = links.links.get(self.router.link_to(node) or "")
        line = link.line if link is not None else None
        return line is not None and self.broker.now - line.heard <= links.settings.keep_alive_s + self.settings.retry_s

    def frontier(self) -> Stamp:
        """The last of our own messages that has been delivered."""
        return self._network.frontier()

    def has_read(self, node: str, stamp: Stamp) -> None:
        """It says so itself, by the way its messages take: a restart is to know."""
        self.router.streams.passed(node, stamp)
        self._network.note_vector()

    def heard_up_to(self) -> VersionVector:
        """What a session that begins to listen now has not heard: what came before."""
        return {**self.vector(), self.node: self.frontier()}

    def once(self, is_so: Callable[[], bool], action: Callable[[], None]) -> None:
        """Do this when it is so: now, or after the turn that made it so."""
        if is_so():
            action()
        else:
            self._awaited.append((is_so, action))

    def learn(self, client: bytes, node: str, number: int, user: str | None = None, *, noted: bool = False) -> None:
        if self.directory.learn(client, node, number, user, noted=noted):
            self._news.append(self.directory.entry(client))

    def flush(self) -> None:
        """The end of a turn."""
        if self._awaited:
            awaited, self._awaited = self._awaited, []
            for is_so, action in awaited:
                if is_so():
                    self.later(0.0, action)
                else:
                    self._awaited.append((is_so, action))
        if self._news:
            news, self._news = self._news, []
            links, after = self.router.links(), self.predecessors.news()
            for start in range(0, len(news), messages.OWNERS_A_FRAME):
                some = news[start : start + messages.OWNERS_A_FRAME]
                self.router.tell(links, messages.encode(Owners(some, after, is_fresh=True)))

    def farewell(self, connection: Connection, target: str) -> bytes:
        return self.plans.farewell(connection, target)

    # -- the broker asks --

    def is_at_home(self, client_id: bytes, *, clean: bool = False) -> bool:
        if not self.plans.is_open_to(client_id) or self.predecessors.holds_up(client_id):
            return False
        session = self.broker.sessions.get(client_id)
        arrival = self.arrivals.get(client_id)
        if session is not None:
            is_here = not session.is_moving and (arrival is None or not arrival.awaits_word)
            return is_here and not self._meeting.keeps_waiting(session)
        if arrival is not None:
            return False
        owner, _ = self.directory.get(client_id)
        return owner == self.node or (not owner and (clean or self._meeting.is_over))

    def bring(self, connection: Connection, user: str | None, then: Callable[[], None]) -> None:
        assert connection.connect is not None
        client = connection.connect.client_id
        if self.plans.turn_away(connection, client):
            return
        self._waiting.park(client, Parked(connection, user, then))
        self.fetch(client)

    def next_number(self, client_id: bytes) -> int:
        """Of a session that begins; one that moves counts on, so that a new session's stays higher."""
        return self.directory.next_number(client_id, self.broker.wall)

    def next_number_of_move(self, client_id: bytes) -> int:
        return self.directory.get(client_id)[1] + 1

    def opened(self, session: Session) -> bool:
        client = session.client_id
        departure = self.departures.get(client)
        if departure is not None:
            departure.trouble(CLIENT_IS_BACK)
        if session.number:
            if self.directory.get(client) == (self.node, session.number):
                return False
            owner, after = self._replaced.pop(client, ("", 0))
            missing = self.missing()
            is_new = bool(owner or missing or self._meeting.has_forgotten)
            if is_new:
                self.new_sessions.begun(session, after, self._unread(owner, missing), clean=_is_clean(session))
            self._newcomers[client] = session
            self.later(self.settings.patience_s, partial(self._is_no_newcomer, client))
            if is_new:
                # Nodes that hear of it end their own: not before it is safe that there is this one.
                self.directory.learn(client, self.node, session.number, session.user)
                self.unsafe[client] = None
                self.broker.when_safe(partial(self._tell_owner, client, session.number))
            else:
                self.learn(client, self.node, session.number, session.user)
            return True
        self.transients.opened(client, session.user)
        return False

    def _unread(self, owner: str, missing: list[str]) -> list[str]:
        """Nodes whose messages an old session may have delivered before they are read here."""
        if not owner:
            return [UNKNOWN] if self._meeting.has_forgotten else []
        unread = [origin for origin in self.router.paths.origins if not self.router.streams.synced(origin)]
        return [owner, *missing, *unread]

    def _is_no_newcomer(self, client: bytes) -> None:
        self._newcomers.pop(client, None)

    def missing(self) -> list[str]:
        """Nodes that may give our clients new sessions, because neither of us can reach the other."""
        if self.settings.owner_unreachable == "refuse":
            return []
        link_to = self.router.link_to
        return [origin for origin in self.router.streams.vector if origin != self.node and link_to(origin) is None]

    def subscribed(self, session: Session, topic_filter: bytes) -> None:
        self.new_sessions.subscribed(session, topic_filter)

    def ended(self, session: Session) -> None:
        client = session.client_id
        self.transients.ended(client)
        self.new_sessions.ended(client)
        departure = self.departures.get(client)
        if departure is not None:
            departure.trouble("the session has ended")
        if session.number:
            self.learn(client, "", max(session.number, self.directory.get(client)[1]) + 1)

    def _tell_owner(self, client: bytes, number: int, safe: bool) -> None:
        self.unsafe.pop(client, None)
        if self.directory.get(client) == (self.node, number):
            self._news.append(self.directory.entry(client))

    def when_heard(self, action: Callable[[], None]) -> None:
        if self.missing():
            self.broker.when_safe(lambda safe: self.router.when_heard(action))
        else:
            self.router.when_heard(action)

    # -- clients that wait for their sessions --

    def fetch(self, client: bytes) -> None:
        """See that a client that waits gets its session."""
        parked = self._waiting.still_there(client)
        if not parked:
            return
        if self.is_at_home(client):
            self._waiting.release(client)
            return
        session = self.broker.sessions.get(client)
        if self._is_in_doubt_for_long(client):
            self._owner_unreachable(client, self.departures[client].target)
            return
        if client in self.arrivals or session is not None:
            return  # it is looked at again when that is settled, or those are met who may know better
        owner, _ = self.directory.get(client)
        if not owner:
            return  # until we have met somebody who may know better
        if self.router.link_to(owner) is None:
            self._owner_unreachable(client, owner)
            return
        arrival = Arrival(self, client, owner, self.next_number_of_move(client))
        newest = parked[-1]
        arrival.user = newest.user
        arrival.ends = newest.connection.connect is not None and newest.connection.connect.clean_start
        self.arrivals[client] = arrival
        arrival.begin(pull=True)

    def _fetch_all(self) -> None:
        for client in self._waiting.everybody():
            self.fetch(client)

    def _is_in_doubt_for_long(self, client: bytes) -> bool:
        """Has it been handed to a node that may have it or not, and cannot be asked?"""
        departure = self.departures.get(client)
        return (
            departure is not None
            and departure.state is Leaving.IN_DOUBT
            and self.router.link_to(departure.target) is None
            and self.broker.now - departure.started_at > self.settings.patience_s
        )

    def _owner_unreachable(self, client: bytes, owner: str) -> None:
        left_s = self.absence_left_s(owner)
        if left_s > 0:
            # It waits: until that node is found (`path_changed`), it may have a new session, or for too long.
            if left_s <= self.settings.patience_s + EXTRA_S:
                self.later(left_s, partial(self.fetch, client))
            return
        after = self.directory.get(client)[1]
        departure = self.departures.pop(client, None)
        if departure is not None:
            # Whether that node has it, it will be asked when it is back; until then it is kept.
            self._replaced[client] = owner, departure.session.number
            self.directory.learn(client, owner, departure.number, departure.session.user)
            self.fenced_sessions.fence(departure.session)
            if client in self.broker.sessions:
                self.later(self.settings.retry_s / 5, partial(self.fetch, client))
                return
        self.counters.new_sessions += 1
        self._replaced.setdefault(client, (owner, after))
        self.broker.report("a new session: the client's node cannot be reached", client=client.decode(), node=owner)
        self.directory.learn(client, "", self.directory.get(client)[1] + NEW_SESSION_STEPS)
        self._waiting.release(client)

    def absence_left_s(self, owner: str) -> float:
        """How long a node that cannot be reached has to stay away before its clients get new sessions; infinity if
        they never do."""
        if self.settings.owner_unreachable == "refuse":
            return math.inf
        return self._lost_at.get(owner, self._started_at) + self.settings.owner_absent_s - self.broker.now

    # -- moves tell how they ended --

    def depart(self, session: Session, target: str, number: int, *, by_plan: bool) -> None:
        departure = self.departures[session.client_id] = Departure(self, session, target, number, by_plan=by_plan)
        departure.begin()

    def departed(self, departure: Departure) -> None:
        client = departure.session.client_id
        if self.departures.get(client) is departure:
            del self.departures[client]
        self.plans.departed(departure)
        if departure.state is Leaving.GONE:
            self.counters.departed += 1
            self.broker.tell("session moved", {"client": client.decode(), "to": departure.target})
        else:
            self.counters.rolled_back += 1
            self._check_owner(client)
        self.fetch(client)

    def took_over(self, arrival: Arrival) -> None:
        self.counters.arrived += 1
        session = self.broker.sessions.get(arrival.client)
        self.learn(arrival.client, self.node, arrival.number, session.user if session is not None else None, noted=True)
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
        if arrival.state is Arriving.SERVING:
            if not arrival.awaits_word and not self.predecessors.holds_up(arrival.client):
                self._waiting.release(arrival.client)
        elif arrival.reason == "user":
            self._waiting.fail(arrival.client, Reason.NOT_AUTHORIZED, ANOTHER_USERS)
        elif arrival.reason == CLIENT_IS_BACK:  # later than it came here: whoever waits here does not take that from it
            self._waiting.fail(arrival.client, Reason.SERVER_UNAVAILABLE, "its client has come to another node since")
        elif arrival.client in self._waiting and arrival.reason:
            # Not in a loop: whatever was in the way may take a moment.
            self.later(self.settings.retry_s / 5, partial(self.fetch, arrival.client))
        else:
            self.fetch(arrival.client)

    def arrived(self, arrival: Arrival) -> None:
        if self.arrivals.get(arrival.client) is arrival:
            del self.arrivals[arrival.client]
        if arrival.state is Arriving.DROPPED and arrival.reason:
            self.counters.given_up += 1
        self._check_owner(arrival.client)

    # -- who owns what --

    def directed_came(self, source: str, body: bytes) -> None:
        self._words.came(source, body)

    def link_started(self, peer: str) -> None:
        self.router.tell([peer], messages.encode(Digests(self.directory.digests())))
        self._meeting.link_started()

    def origin_lost(self, origin: str) -> None:
        self._lost_at[origin] = self.broker.now
        for arrival in list(self.arrivals.values()):
            if arrival.source == origin and arrival.state is Arriving.AWAITING:
                arrival.trouble("its node cannot be reached")  # who waits for it is told when that is found again

    def path_changed(self, origin: str) -> None:
        """Whoever may know how a move ended can be asked again."""
        self._lost_at.pop(origin, None)
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
        self._words.told(link, body)

    def impossible(self, node: str, client: bytes, number: int) -> None:
        """A node names a number that no clock can have given: it is not believed, nor passed on."""
        self.counters.impossible += 1
        if self.broker.now >= self._impossible_told_at + IMPOSSIBLE_TOLD_S:
            self._impossible_told_at = self.broker.now
            reason = f"number {number} of an owner; see node {node}, and its clock"
            self.broker.report("a node said what cannot be", node=node, client=client.decode(), reason=reason)

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
                self.learn(client, "", number + 1)  # we do not have it, or no longer
            elif session.number < number:
                session.number = number
                self.broker.log.touched(session)
        elif departure is not None and (departure.target, departure.number) == (owner, number):
            departure.on(On.MIGSYNCACK_WHOLE)
        elif arrival is not None and not arrival.served:
            if number >= arrival.number or (arrival.state is Arriving.AWAITING and owner != arrival.source):
                arrival.trouble("another node has come to own it")
        elif session is None or session.is_moving:
            return  # how that ends decides
        elif self._has_another_user(session, self.directory.whose(client), owner):
            self._settle_users(session, number, before, is_fresh=is_fresh)
        elif not session.number:
            if session.connection is not None and owner:
                self.take_over(session)
        elif not owner:
            session.number = number + 1  # it is here all the same
            self.broker.log.touched(session)
            self.learn(client, self.node, session.number, session.user)
        else:
            self.fence(session)

    # -- one identifier, two users: the first has it --

    def belongs_to_another(self, client_id: bytes, user: str | None) -> bool:
        is_elsewhere = self.directory.get(client_id)[0] not in ("", self.node)
        return is_elsewhere and self.directory.whose(client_id).user not in (None, user)

    def _has_another_user(self, session: Session, whose: Whose, owner: str) -> bool:
        """One without a user is anybody's, as on one node."""
        return bool(owner or whose.stands) and session.user is not None and whose.user != session.user

    def _settle_users(self, session: Session, number: int, before: Whose | None, *, is_fresh: bool) -> None:
        """Another node says that another user has this identifier.

        One who is about to be let in goes; so does one against whom that stands.  One who is here already stays if the
        other one is about to be let in, whatever the clocks say, and else if it came first.
        """
        client, theirs = session.client_id, self.directory.whose(session.client_id)
        connection = session.connection
        is_in = connection is None or connection.state == ConnectionState.CONNECTED
        is_newcomer = self._newcomers.get(client) is session and not is_in
        since = before.since if before is not None and before.user == session.user else session.number
        ours = Whose(session.user, since or int(self.transients.came(client) * 1000), True)
        if theirs.stands or is_newcomer or not (is_fresh or ours.was_before(theirs)):
            self.yield_to_first(session, is_newcomer=is_newcomer)
            return
        self.counters.identifiers_kept += 1
        if session.number:
            session.number = number + 1
            self.broker.log.touched(session)
        # A session that nobody keeps has no owner; that it stands is to be heard ahead of the answer to any probe.
        self.directory.learn(client, self.node if session.number else "", number + 1, *ours)
        owners = Owners([self.directory.entry(client)], is_fresh=True)
        self.router.tell(self.router.links(), messages.encode(owners))

    def yield_to_first(self, session: Session, *, is_newcomer: bool = False) -> None:
        """Another user had its identifier before."""
        self.counters.identifiers_given_up += 1
        self._newcomers.pop(session.client_id, None)
        session.number = 0  # it is not for us to say that nobody owns it
        if is_newcomer:
            session.will = None  # its client was never let in
        if session.connection is not None:
            session.connection.fail(Reason.NOT_AUTHORIZED, ANOTHER_USERS)
        self.broker.lifecycle.end_session(session)

    def take_over(self, session: Session) -> None:
        connection = session.connection
        if connection is not None:
            self.broker.lifecycle.take_over(connection)

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
