"""A session on the node it leaves: does what `migration.tables.LEAVING` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

from msgspec import structs

from sterna.broker.session.connection import Connection
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import SubscriptionFields, subscription_fields
from sterna.broker.transfer import session_transfer
from sterna.broker.transfer.expression_transfer import parts_of
from sterna.migration.messages import MigAbort, MigAck, MigSync, MigTo
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import AGAIN_S, NOT_COME, MoveSide
from sterna.migration.session_pages import PAGE_BYTES, Pages
from sterna.migration.tables import LEAVING, DepartureState, Do, On
from sterna.operators.grammar import is_expression
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, VersionVector

#: How often a client could have answered before it is no longer waited for.
ROUND_TRIPS = 2.0
#: Size of a subscription besides its filter.
FIELDS_BYTES = 16


class ClientsOnTheWay(Protocol):
    """Notices of a move to clients and to their gateways."""

    def is_led(self, connection: Connection, target: str) -> bool:
        """Is there a gateway that connects the client to that node while it is served here?"""

    def is_redirected(self, connection: Connection, target: str) -> bool:
        """Is there a gateway that can only be told to leave this node for that one?"""

    def prepare(self, session: Session, target: str) -> None:
        """Have its gateway make a connection to that node."""

    def stopped(self, session: Session) -> None:
        """All that this node had for it has been sent."""

    def cancel(self, session: Session) -> None: ...
    def farewell(self, connection: Connection, target: str) -> bytes: ...
    def may_be_called(self, session: Session, target: str) -> bool:
        """Is it as good as known that the node is ready for the client?"""

    def taken(self, session: Session, target: str, answer_s: float | None) -> None:
        """The node takes it, and said so after this time; None: it had to wait for the client."""


class DepartureOwner(Protocol):
    """Keeps the moves from this node that are under way, and hears how each one goes."""

    @property
    def departures(self) -> Mapping[bytes, Departure]: ...
    @property
    def clients(self) -> ClientsOnTheWay: ...
    def next_number_of_move(self, client_id: bytes) -> int: ...
    def has_moved(self, departure: Departure) -> None:
        """It is noted that the other node owns the session."""

    def departed(self, departure: Departure) -> None:
        """It is over, either way."""


class Departure(MoveSide):
    progress = On.MIGSYNCACK
    _host: MoveHost

    def __init__(
        self, host: MoveHost, owner: DepartureOwner, session: Session, target: str, number: int, *, by_plan: bool
    ) -> None:
        self.target = target
        in_doubt = session.leaving is not None
        #: Its client is served here until it has come to the other node, and the session follows it.
        connection = session.connection if by_plan else None
        self._on_arrival = connection is not None and not owner.clients.is_redirected(connection, target)
        #: A gateway connects it there, and it need not be sent.
        self._is_led = connection is not None and owner.clients.is_led(connection, target)
        may_go_at_once = not in_doubt and not self._on_arrival and not _computes(session)
        #: Many of them together would have the other node read everybody anew again and again.
        may_go_at_once = may_go_at_once and not any(one.target == target for one in owner.departures.values())
        #: Which start of the other node is spoken to: an answer of its last one is not to be taken for one of it.
        self._their_epoch = host.epoch_of(target)
        #: Nobody is asked first: the session is sent along with the offer.  A node that pulls it is there.
        self._at_once = may_go_at_once and (not by_plan or host.has_heard_lately(target))
        #: Its client is sent along with the offer.
        self._is_called = self._on_arrival and not self._is_led and owner.clients.may_be_called(session, target)
        state = DepartureState.SETTLING if self._is_called else DepartureState.OFFERED
        state = DepartureState.IN_DOUBT if in_doubt else DepartureState.DRAINING if self._at_once else state
        super().__init__(host, LEAVING, state, target, number)
        #: It could, but is the other node there?  A session that is sent to one that is not is in doubt.
        self._asks_first = may_go_at_once and not self._at_once
        self._broker = host.broker
        self._owner = owner
        self.session = session
        self.by_plan = by_plan
        #: Its client is not there yet, and is to be sent.
        self._goes_first = False
        #: The window it had; None while it has it.
        self._window: int | None = None
        self._offered: list[SubscriptionFields] = []
        self._paths: dict[str, int] = {}
        #: From where on the other node hears everything, once it has said so; and since when it has been asked.
        self._theirs: VersionVector = {}
        self._is_answered = False
        self._offered_at = -math.inf
        self._heard: set[str] = set()
        #: The other node is to ask everybody: it could not be told otherwise that nothing is missing.
        self._has_all_asked = False
        #: How far everybody had come when we asked; None if there was no need to.
        self._frontiers: VersionVector | None = None
        self._ours: VersionVector = {}
        self._loose: VersionVector = {}
        self._was_frozen = in_doubt
        self._kept_up = False
        #: It was connected when the last page was made, and was not when its client was to be sent on.
        self._is_gone = self._politely = False
        self._was_connected = False
        self._held: set[bytes] = set()
        self._prepared = False
        self._pages: Pages | None = None
        self._page: MigSync | None = None
        #: The last that was sent.
        self._sent_page = -1
        #: Packet identifiers in flight when it stopped, and until when they may be acknowledged.
        self._in_flight: set[int] = set()
        self._drained_by = 0.0
        self._acknowledged: list[int] = []
        self._received: list[int] = []

    @property
    def state(self) -> DepartureState:
        return cast(DepartureState, self._machine.state)

    @property
    def is_led(self) -> bool:
        return self._is_led

    def begin(self) -> None:
        if self._is_led:
            self._prepare()
        _FIRST[self.state](self)
        self._ask_again_later()

    def _is_under_way(self) -> bool:
        return self._owner.departures.get(self.session.client_id) is self

    def _do(self, what: Do) -> None:
        _DOES[what](self)

    # -- what the table says --

    def _offer(self) -> None:
        if self._asks_first:
            self._host.when_answered(self._answered)
        else:
            self._send_offer()

    def _answered(self, frontiers: VersionVector) -> None:
        self._asks_first = False
        if self.state is not DepartureState.OFFERED:
            return
        if self.target in frontiers:
            self._at_once = True
            self.on(On.HEARD)
        else:
            self._send_offer()

    def _send_offer(self) -> None:
        """As among many."""
        self._offered = self._wants()
        self._send_migto()

    def _offer_anew(self) -> None:
        """It goes on here until the other node has found out from where on it hears everything."""
        self._take_number()
        self._at_once = self._was_frozen = False
        self._pages = self._page = None
        self._sent_page = -1
        self._send_offer()

    def _wants(self) -> list[SubscriptionFields]:
        return [subscription_fields(s) for s in self.session.subscriptions.values()]

    def _send_migto(self) -> None:
        if self._asks_first:
            return
        self._notice_restart()
        self._offered_at = self._host.now
        session = self.session
        vector = _entries(self._ours) if self._at_once else None
        self._paths = self._host.digests_of_paths()
        about = (session.client_id, self.number, session.version, session.user)
        parts = in_parts(self._offered)
        windows = parts_of(self._broker, session)
        is_greeted = self._on_arrival and session_transfer.may_be_greeted(session)
        for part, subscriptions in enumerate(parts):
            offer = MigTo(
                *about,
                subscriptions,
                self.by_plan,
                part,
                len(parts),
                windows=[] if part else windows,
                vector=vector,
                on_arrival=self._on_arrival,
                epoch=self._their_epoch,
                asks=self._has_all_asked,
                is_greeted=is_greeted,
                is_called=self._is_called,
            )
            self._host.send(self.target, offer)

    def _notice_restart(self) -> None:
        """Offer it to the new start of the other node under another number; a session that was sent is asked about."""
        epoch = self._host.epoch_of(self.target)
        if epoch is not None and epoch != self._their_epoch and not self._was_frozen:
            self._their_epoch = epoch
            self._take_number()

    def _take_number(self) -> None:
        self.number = max(self.number + 1, self._owner.next_number_of_move(self.session.client_id))

    def pulled(self) -> None:
        """The other node has no offer: say it again, unless it met this question on its way."""
        is_new_start = self._host.epoch_of(self.target) != self._their_epoch
        if is_new_start or self._host.now - self._offered_at >= self._host.settings.retry_s:
            self.on(On.PULL)

    def theirs(self, vector: VersionVector, heard: list[str], *, is_first: bool, is_asked: bool) -> None:
        """The other node has answered with MIGTOACK."""
        is_offered = self.state is DepartureState.OFFERED
        if is_offered or not self._is_answered:
            if not is_asked and not self._has_all_of(heard):
                self._has_all_asked = True
                self._send_migto()
                return
            self._is_answered = True
            self._theirs, self._heard = vector, set(heard)
            if self.by_plan:
                answer_s = None if self._is_called else self._host.now - self._offered_at
                self._owner.clients.taken(self.session, self.target, answer_s)
        if is_offered:
            self._goes_first = is_first
            if not self._on_arrival:
                self._prepare()
            self.on(On.MIGTOACK)
        elif not is_first:
            self._goes_first = False
            self.on(On.MIGTOACK)

    def _has_all_of(self, heard: list[str]) -> bool:
        """The other node asked nobody: has all come here that passed before its answer?  Not if a way has changed, and
        not of a node that it does not hear."""
        now, streams = self._host.digests_of_paths(), self._host.router.streams
        is_heard = {*heard, self._host.node} == {*now, self._host.node}
        return is_heard and now == self._paths and all(map(streams.in_step, now))

    def _prepare(self) -> None:
        self._prepared = True
        self._owner.clients.prepare(self.session, self.target)

    def _catch_up(self) -> None:
        """Serve the session until nothing is left that the other node has not heard.

        Links keep the order.  So everything that somebody published before the other node heard from it came here
        before the other node's answer did, unless the way from there has changed meanwhile.
        """
        if self.state is not DepartureState.CATCHING_UP:
            return
        if self._is_behind():
            self._paths = self._host.digests_of_paths()
            self._host.when_answered(self._heard_from)
        self._host.once(self._is_to_catch_up_no_more, self._read_enough)

    def _is_to_catch_up_no_more(self) -> bool:
        return self.state is not DepartureState.CATCHING_UP or not self._is_behind()

    def _read_enough(self) -> None:
        if self.state is DepartureState.CATCHING_UP:
            self._broker.commitments.when_safe(self._caught_up)

    def _heard_from(self, frontiers: VersionVector) -> None:
        self._frontiers = frontiers
        self._heard.clear()  # that was by another way
        self._host.later(self._host.settings.retry_s / 5, self._ask_again)

    def _ask_again(self) -> None:
        if self.state is DepartureState.CATCHING_UP and self._is_behind():
            self._paths = self._host.digests_of_paths()
            self._host.when_answered(self._heard_from)

    def _caught_up(self, safe: bool) -> None:
        if safe:
            self.on(On.CAUGHT_UP_FIRST if self._goes_first else On.CAUGHT_UP)
        else:
            self._host.later(AGAIN_S, self._catch_up)  # what was read is about to be taken back

    def _is_behind(self) -> bool:
        """Is there a node whose messages we may not have read as far as needed?"""
        streams = self._host.router.streams
        vector, barrier = streams.vector, self.session.barrier
        now: dict[str, int] | None = None
        for origin, stamp in self._theirs.items():
            is_read = vector.get(origin, BEFORE_ALL) >= stamp or barrier.get(origin, BEFORE_ALL) >= stamp
            if is_read or origin == self._host.node:
                continue
            now = self._host.digests_of_paths() if now is None else now
            is_steady = origin in now and now[origin] == self._paths.get(origin) and streams.in_step(origin)
            is_told = self._answered_behind(origin) or (self._frontiers or {}).get(origin, BEFORE_ALL) >= stamp
            if not is_steady or not is_told:
                return True
        return False

    def _answered_behind(self, origin: str) -> bool:
        """Did the other node's answer come behind all that it had heard of this origin: by the same link?

        By another link, messages may be slower than the answer.  Links form a tree, in which the other node would hear
        such an origin through us; but while the tree takes another shape, an old link, dead by now, may lead there.
        """
        link_to = self._host.router.link_to
        return origin in self._heard and link_to(origin) == link_to(self.target)

    # -- the client goes first --

    def _offer_and_settle(self) -> None:
        self._send_offer()
        self._settle()

    def _settle(self) -> None:
        """Nothing that it has acknowledged is to be sent to it again where it goes.  A gateway sees to that itself."""
        if self._is_led:
            self._settled()
            return
        self._stop_sending()
        drain_s = self._wait_for_client()
        if not self._is_settled():
            self._host.later(drain_s, self._host.look_again)
        self._host.once(self._is_settled, self._settled)

    def _wait_for_client(self) -> float:
        """Let it acknowledge: for so many seconds, from now on."""
        drain_s = max(self._host.settings.drain_s, ROUND_TRIPS * self.session.round_trip_s)
        drain_s = min(drain_s, max(self._host.settings.drain_s, self._host.settings.patience_s / 4))
        self._drained_by = self._broker.now + drain_s
        return drain_s

    def _is_settled(self) -> bool:
        session = self.session
        if (
            self.state is not DepartureState.SETTLING
            or session.connection is None
            or self._broker.now >= self._drained_by
        ):
            return True
        is_owed = session.may_repeat or bool(session.shares and session.inflight)
        return not session.connection.is_busy and not is_owed

    def _settled(self) -> None:
        if self.state is not DepartureState.SETTLING:
            return
        if self._wants() != self._offered:
            self._changed_its_mind()
        else:
            self.on(On.SETTLED)

    def _call(self) -> None:
        session = self.session
        if session.connection is not None and not self._is_led:
            farewell = self._owner.clients.farewell(session.connection, self.target)
            session_transfer.call(self._broker, session, farewell, self._host.grace_s)

    def given_up_because(self) -> str:
        return NOT_COME if self.state is DepartureState.CALLED else super().given_up_because()

    # -- it stops --

    def _stop_sending(self) -> None:
        if self._window is None:
            self._window = session_transfer.drain(self.session)

    def _drain(self) -> None:
        session = self.session
        session.leaving = (self.target, self.number)
        self._stop_sending()
        drain_s = self._wait_for_client()
        if session.shares:
            self._host.later(drain_s, self._host.look_again)
        self._host.once(self._is_drained, self._drained)

    def _drained(self) -> None:
        self.on(On.DRAINED)

    def _is_drained(self) -> bool:
        """Messages of shared subscriptions go back there, so they have to be acknowledged before."""
        session = self.session
        if self.state is not DepartureState.DRAINING or session.connection is None:
            return True
        is_owed = bool(session.shares and session.inflight) and self._broker.now < self._drained_by
        return not session.connection.is_busy and not is_owed

    def _freeze(self) -> None:
        session = self.session
        if self._at_once and not _computes(session):
            self._offered = self._wants()
            self._prepare()
        elif self._at_once or self._wants() != self._offered:
            self._broker.turns.ask(self._changed_its_mind)
            return
        self._was_frozen = True
        self._wait_for_client()
        self._held = set(self._host.router.own.held())
        self._kept_up = session_transfer.freeze(self._broker, session, self._acknowledged_some)
        self._broker.log.leaving(session)
        self._mark()

    def _changed_its_mind(self) -> bool:
        self.trouble("it has subscribed to something else meanwhile")
        return True

    def _mark(self) -> None:
        """The vector of now, taken together with what has been delivered when everything up to it has been."""
        self._host.once(self._is_to_be_marked, self._mark_now)

    def _is_to_be_marked(self) -> bool:
        waits = self._is_behind() or self._is_holding() or self._is_opening()
        return self.state is not DepartureState.FREEZING or not waits

    def _mark_now(self) -> None:
        if self.state is not DepartureState.FREEZING:
            return
        vector = self._host.vector()
        for origin, stamp in self.session.barrier.items():  # of where it came from before we have read as far
            vector[origin] = max(stamp, vector.get(origin, BEFORE_ALL))
        self._ours = vector
        self._broker.commitments.when_safe(self._marked)

    def _marked(self, safe: bool) -> None:
        if self.state is not DepartureState.FREEZING:
            return
        if not safe:
            # A group that could not be written was not delivered either, and is about to be taken back.
            self._host.later(AGAIN_S, self._mark)
            return
        # Not more than was published: others compare it with how far they have read.
        self._ours[self._host.node] = self._host.frontier()
        self._loose = self._host.router.loose_vector()
        session_transfer.stopped(
            self._broker,
            self.session,
            kept_up=self._kept_up,
            is_heard_elsewhere=not self._at_once,
            unsent=self._host.router.own.held(),
        )
        if self._is_led:
            self._owner.clients.stopped(self.session)
        self._in_flight = set(self.session.inflight)
        try:
            self._pages = Pages(self._broker, self._host.node, self.session)
        except JournalError:
            self._host.later(AGAIN_S, self._mark)
            return
        self.on(On.FROZEN)

    def _is_holding(self) -> bool:
        """Has the client had messages at QoS 0 that our links have not?  They must not meet it again."""
        own = self._host.router.own
        self._held = {topic for topic in self._held if own.is_holding(topic)}
        return bool(self._held)

    def _is_opening(self) -> bool:
        """Is it not known yet from where on it hears what its client has just subscribed to?"""
        beginning = self.session.beginning
        return beginning is not None and bool(beginning.opening)

    def _next_page(self) -> None:
        assert self._pages is not None
        number = 0 if self._page is None else self._page.page + 1
        try:
            items, states, is_last = self._pages.next()
        except JournalError:
            self._host.later(AGAIN_S, partial(self._next_page_again, number))
            return
        self._page = MigSync(self.session.client_id, self.number, number, items, states)
        if is_last:
            self._page = self._with_session(self._page)
            self.on(On.LAST)
        else:
            self._send_page()

    def _next_page_again(self, number: int) -> None:
        """The disk did not give what is there."""
        if self.state is DepartureState.SENDING and (self._page is None or self._page.page < number):
            self._next_page()

    def _with_session(self, page: MigSync) -> MigSync:
        session = self.session
        self._was_connected = session.connection is not None
        away_s = self._broker.running_clock - session.disconnected_at
        unsaid = session_transfer.unsaid(session, PAGE_BYTES)
        is_awaited = session.is_called or unsaid is not None or session.connection is not None
        gone_s = -self._host.grace_s if is_awaited else away_s
        state, beginning = session.state(), session.beginning
        if beginning is not None and state.beginning is not None:  # its age: the clocks of two nodes differ
            age_s = self._broker.running_clock - beginning.began_at
            state = structs.replace(state, beginning=structs.replace(state.beginning, began_at=age_s))
        vectors = {"vector": _entries(self._ours), "loose": _entries(self._loose)}
        return structs.replace(page, session=state, gone_s=gone_s, unsaid=unsaid, **vectors)

    def acknowledged(self, page: int) -> None:
        if self._page is not None and self._page.page == page:
            self.on(On.MIGSYNCACK)

    def _send_page(self) -> None:
        if self._page is not None:
            if self._at_once and self._page.page == 0:
                self._send_migto()
            if self._page.page == self._sent_page:
                session_transfer.count_missed(self.session)  # nobody may be there to do it
            self._sent_page = self._page.page
            self._host.send(self.target, self._page)
        else:
            self._send_migabort()  # it was we who were killed meanwhile: ask how it stands

    # -- the other node has it --

    def _part(self) -> None:
        session_transfer.is_served_elsewhere(self.session)
        self._acknowledged_some()
        if self.state is DepartureState.PARTING:
            self._host.later(max(0.0, self._drained_by - self._broker.now), self._acknowledged_some)

    def _acknowledged_some(self) -> None:
        """The client has said something, or has had its time."""
        if self.state is not DepartureState.PARTING:
            return
        connection = self.session.connection
        parting = connection.parting if connection is not None else None
        if parting is None or parting.is_over or self._is_led or self._broker.now >= self._drained_by:
            self.on(On.PARTED)
            return
        if not self.session.may_repeat:
            self.on(On.PARTED)

    def _send_migack(self) -> None:
        gone = self._is_gone, self._politely
        word = MigAck(self.session.client_id, self.number, *gone, self._acknowledged, self._received)
        self._host.send(self.target, word)

    def _send_migabort(self) -> None:
        self._host.send(self.target, MigAbort(self.session.client_id, self.number, self.reason))

    def _thaw(self) -> None:
        if self._broker.sessions.get(self.session.client_id) is self.session:
            if self._prepared:
                self._owner.clients.cancel(self.session)
            session_transfer.thaw(self._broker, self.session, self._window, was_frozen=self._was_frozen)
            self._window = None

    def _send_away(self) -> None:
        session = self.session
        farewell = b""
        self._is_gone = self._was_connected and session.connection is None
        self._politely = self._is_gone and session.will is None
        self._acknowledged = sorted(self._in_flight.difference(session.inflight))
        if session.connection is not None:
            parting = session.connection.parting
            self._received = sorted(parting.put_aside) if parting is not None else []
            farewell = self._owner.clients.farewell(session.connection, self.target)
        session_transfer.part_from(self._broker, session, farewell)

    def _note_moved(self) -> None:
        session_transfer.end_moved(self._broker, self.session, self.target, self.number)
        self._owner.has_moved(self)
        self._broker.commitments.when_safe(self._noted)

    def _noted(self, safe: bool) -> None:
        if safe:
            self.on(On.SAFE)
        else:
            self._broker.commitments.when_safe(self._noted)

    def _end(self) -> None:
        self._owner.departed(self)


def in_parts(subscriptions: list[SubscriptionFields]) -> list[list[SubscriptionFields]]:
    """As many at a time as a frame holds in any case."""
    parts: list[list[SubscriptionFields]] = [[]]
    size = 0
    for fields in subscriptions:
        size += len(fields[0]) + FIELDS_BYTES
        if size > PAGE_BYTES and parts[-1]:
            parts.append([])
            size = len(fields[0]) + FIELDS_BYTES
        parts[-1].append(fields)
    return parts


def _computes(session: Session) -> bool:
    """An expression takes messages one by one: the other node has to listen for it first."""
    return any(is_expression(topic_filter) for topic_filter in session.subscriptions)


def _entries(vector: VersionVector) -> list[tuple[str, int, int]]:
    return [(origin, *stamp) for origin, stamp in vector.items()]


#: The first action, by the state a move begins in.
_FIRST: dict[DepartureState, Callable[[Departure], None]] = {
    DepartureState.OFFERED: Departure._offer,
    DepartureState.SETTLING: Departure._offer_and_settle,
    DepartureState.DRAINING: Departure._drain,
    DepartureState.IN_DOUBT: Departure._send_page,
}

_DOES: dict[Do, Callable[[Departure], None]] = {
    Do.SEND_MIGTO: Departure._send_migto,
    Do.CATCH_UP: Departure._catch_up,
    Do.SETTLE: Departure._settle,
    Do.CALL: Departure._call,
    Do.DRAIN: Departure._drain,
    Do.FREEZE: Departure._freeze,
    Do.NEXT_PAGE: Departure._next_page,
    Do.SEND_PAGE: Departure._send_page,
    Do.OFFER_ANEW: Departure._offer_anew,
    Do.PART: Departure._part,
    Do.SEND_MIGACK: Departure._send_migack,
    Do.SEND_MIGABORT: Departure._send_migabort,
    Do.THAW: Departure._thaw,
    Do.SEND_AWAY: Departure._send_away,
    Do.NOTE_MOVED: Departure._note_moved,
    Do.END: Departure._end,
}
