"""A session on the node it goes to: does what `migration.tables.ARRIVING` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

from msgspec import structs

from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.broker.transfer.session_transfer import Staged, Transferred
from sterna.migration import missed_messages
from sterna.migration.directory import Directory
from sterna.migration.messages import WHOLE, MigAck, MigRefuse, MigSync, MigSyncAck, MigTo, MigToAck, Pull
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import AGAIN_S, NOT_COME, MoveSide
from sterna.migration.publisher_order import PublisherOrder
from sterna.migration.session_pages import State, check_size, put_together, write_down
from sterna.migration.tables import ARRIVING, ArrivalState, Do, On
from sterna.mqtt.message import Message
from sterna.mqtt.packets import Will
from sterna.mqtt.topics import SHARE
from sterna.operators.errors import ExpressionError
from sterna.operators.grammar import is_expression
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import Stamp, VersionVector

#: The version of links from which on an old owner knows that not all nodes were asked.
NOBODY_ASKED_SINCE = 13

#: How often everybody is asked whether they have heard, before the move is given up.
ASKED_MAX = 5


#: States in which a session has been offered and nothing of it is safe here.
_OFFERED = (ArrivalState.LISTENING, ArrivalState.PREPARED, ArrivalState.EXPECTING)


class ArrivalOwner(Protocol):
    """Keeps the moves to this node that are under way, and hears how each one goes."""

    @property
    def arrivals(self) -> Mapping[bytes, Arrival]: ...
    @property
    def directory(self) -> Directory: ...
    @property
    def publisher_order(self) -> PublisherOrder: ...
    def has_come(self, client: bytes) -> bool:
        """Is the client here, and waits for its session?"""

    def listens(self, arrival: Arrival) -> None:
        """The session is offered here, and hears what it is to be given."""

    def took_over(self, arrival: Arrival) -> None:
        """All of it is safe: this node owns the session."""

    def settled(self, arrival: Arrival) -> None:
        """The client's session is here, or will not come this way."""

    def arrived(self, arrival: Arrival) -> None:
        """It is over, either way."""


class Arrival(MoveSide):
    progress = On.MIGSYNC
    _host: MoveHost

    def __init__(self, host: MoveHost, owner: ArrivalOwner, client: bytes, source: str, number: int) -> None:
        super().__init__(host, ARRIVING, ArrivalState.AWAITING, source, number)
        self._broker = host.broker
        self._owner = owner
        #: That came along, and when it is published if nothing is heard of its client.
        self._will: Will | None = None
        self._will_due = 0.0
        self.client = client
        self.source = source
        self.by_plan = False
        #: A gateway connected its client here while it was served there, and tells this node when it goes away.
        self.was_led = False
        #: The client is here: as whom, and whether it wants the session at all.
        self.user: str | None = None
        self.ends = False
        self._offer: MigTo | None = None
        self._parts: dict[int, list[tuple[bytes, int, bool, bool, int]]] = {}
        self._page: MigSync | None = None
        self._session: Session | None = None
        self._asked = 0
        #: All nodes have said from where on they are heard here, or every one of their messages comes here anyway.
        self._is_asked = False
        self._vector: VersionVector = {}
        self._heard_lately: list[str] = []
        self._staged: list[Staged] = []
        self._states: list[State] = []
        self._windows: dict[bytes, int] = {}
        #: Pages that are safe; and of the one being written, how many.
        self._pages = 0
        self._writing = 0
        self._last: MigSync | None = None
        #: The window of its client that is given nothing yet; 0: it is.
        self._window = 0
        #: It would miss something as it stands.
        self._is_ahead = False
        #: Nodes that are asked for what it has missed, and how far; and those that have answered.
        self._gaps: VersionVector = {}
        self._barrier: VersionVector = {}

    @property
    def state(self) -> ArrivalState:
        return cast(ArrivalState, self._machine.state)

    @property
    def offer(self) -> MigTo | None:
        return self._offer

    @property
    def served(self) -> bool:
        return self.state in (ArrivalState.SERVING, ArrivalState.DONE)

    @property
    def awaits_word(self) -> bool:
        """The old node is about to say what the client, on its way here, has acknowledged there."""
        return (
            self.state is ArrivalState.SERVING
            and self._last is not None
            and self._last.gone_s < 0
            and self._last.unsaid is None
            and self._session is not None
            and self._session.may_repeat
            and self._host.router.link_to(self.source) is not None
        )

    def given_up_because(self) -> str:
        return NOT_COME if self.state is ArrivalState.PREPARED else super().given_up_because()

    def begin(self, *, pull: bool) -> None:
        if pull:
            self._do(Do.SEND_PULL)
        self._ask_again_later()

    def _is_under_way(self) -> bool:
        return self._owner.arrivals.get(self.client) is self

    def _do(self, what: Do) -> None:
        _DOES[what](self)

    # -- what the table says --

    def _send_pull(self) -> None:
        self._host.send(self.source, Pull(self.client, self.number, self.user, self.ends))

    def offered(self, offer: MigTo) -> bool:
        """False if it is a later one than the one that is under way."""
        if offer.number > self.number and self.state in _OFFERED:
            return False
        if self.state is ArrivalState.AWAITING:
            if offer.number != self.number:
                self._parts.clear()
            self.number = offer.number
            self.by_plan = offer.by_plan
            self._parts[offer.part] = offer.subscriptions
            self._windows.update(offer.windows)
            if len(self._parts) == offer.parts:
                every = [fields for _, part in sorted(self._parts.items()) for fields in part]
                self._parts.clear()
                self._offer = structs.replace(offer, subscriptions=every, windows=list(self._windows.items()))
                self.on(On.MIGTO)
        elif offer.number == self.number and not offer.part:
            if offer.asks and not self._is_asked and self.state in (ArrivalState.PREPARED, ArrivalState.EXPECTING):
                self._host.when_answered(self._heard_after_all)
            else:
                self.on(On.MIGTO)
        return True

    def _create(self) -> None:
        offer = self._offer
        assert offer is not None
        vector = _vector(offer.vector or [])
        filters = [fields[0] for fields in offer.subscriptions]
        own: list[Message] | None = []
        gaps: VersionVector | None = {}
        if offer.vector is not None:
            own = missed_messages.of_our_own(self._host, vector, filters)
            gaps = missed_messages.gaps(self._host, vector, filters)
        if own is None or gaps is None:
            self._broker.turns.ask(self._cannot_follow)
            return
        try:
            self._session = session_transfer.begin_arrival(
                self._broker, self.client, offer.user, offer.version, offer.subscriptions, offer.windows
            )
        except (TypeError, ValueError, UnicodeDecodeError, ExpressionError):
            self._broker.turns.ask(self._nonsense)
            return
        if offer.vector is None:
            self._owner.listens(self)
            self._ask()
        else:
            self._gaps = dict(gaps)
            session_transfer.bar(self._broker, self._session, gaps)
            for origin, upto in gaps.items():
                came = partial(self._gap_came, self.number, origin, upto)
                self._host.router.streams.read_for_one(origin, vector, filters, came)
            missed_messages.hear(self._host, self._session, self.source, vector, own)
            self._heard(vector, [], is_asked=True)

    def _gap_came(self, number: int, origin: str, upto: Stamp, messages: list[Message] | None) -> None:
        """Messages of a node that we had read before the session listened here; None if that is not all."""
        if number != self.number or self._session is None or self.state is not ArrivalState.EXPECTING:
            return
        if messages is None:
            self._cannot_follow()
            return
        session_transfer.hear_first(self._session, self._broker, missed_messages.between(messages, upto))
        self._barrier[origin] = upto
        self._broker.commitments.when_safe(partial(self._gap_written, number, origin))

    def _gap_written(self, number: int, origin: str, safe: bool) -> None:
        if number != self.number or self.state is not ArrivalState.EXPECTING:
            return
        if not safe:
            self._cannot_follow()
            return
        self._gaps.pop(origin, None)
        self._import_if_whole()

    def _cannot_follow(self) -> bool:
        self._is_ahead = True
        self.trouble("it would miss something")
        return True

    def _nonsense(self) -> bool:
        self.trouble("a subscription that makes no sense")
        return True

    def _ask(self) -> None:
        """Have every node know what the session wants, and learn from where on it comes."""
        self._asked += 1
        vector = self._host.heard_up_to()
        asks_nobody = self._need_ask_nobody()
        if self._host.router.strategy.everything():
            self._broker.commitments.in_turn(partial(self._heard, vector, [self._host.node], is_asked=True))
            return
        if not asks_nobody or not self._is_in_step():
            self._host.when_answered(self._heard_from)
        if asks_nobody:
            self._host.once(self._is_in_step, partial(self._in_step, vector))

    def _need_ask_nobody(self) -> bool:
        """Do our answer and what we want take the same way to the old node, in this order, and is that all that counts?

        The old node hears all that the session wants.  So all of it comes as far as to the place where the way to the
        old node and the way to us part, or through us.  A message that passes there before our answer is at the old
        node before it; one that passes later comes here, too.
        """
        offer = self._offer
        is_plain = offer is not None and not any(
            is_expression(fields[0]) or fields[0].startswith(SHARE) for fields in offer.subscriptions
        )
        paths = self._host.router.paths
        if paths.version_of(self.source) < NOBODY_ASKED_SINCE:
            return False  # it would take our answer for that of all nodes
        return is_plain and offer is not None and not offer.asks and paths.goes_ahead

    def _is_in_step(self) -> bool:
        router = self._host.router
        return self.state is not ArrivalState.LISTENING or all(map(router.streams.in_step, router.paths.origins))

    def _in_step(self, vector: VersionVector) -> None:
        heard = [*self._host.router.paths.origins, self._host.node]
        self._broker.commitments.in_turn(partial(self._heard, vector, heard, is_asked=False))

    def _heard_from(self, frontiers: VersionVector) -> None:
        """A node that cannot be reached is read from where we were, with the new wishes, when it is back."""
        if self.state is not ArrivalState.LISTENING:
            return
        silent = [origin for origin in self._host.router.paths.origins if origin not in frontiers]
        if silent and self._asked < ASKED_MAX:
            self._ask()
        elif silent:
            self.trouble(f"{silent[0]} does not answer")
        else:
            self._heard({**self._host.heard_up_to(), **frontiers}, [*frontiers, self._host.node], is_asked=True)

    def _heard_after_all(self, frontiers: VersionVector) -> None:
        """The old node could not tell by itself.  If somebody is silent it will say so again."""
        is_expected = self.state in (ArrivalState.PREPARED, ArrivalState.EXPECTING)
        if is_expected and all(origin in frontiers for origin in self._host.router.paths.origins):
            self._is_asked = True
            self._vector = {**self._host.heard_up_to(), **frontiers}
            self._heard_lately = [*frontiers, self._host.node]
            self._send_migtoack()

    def _heard(self, vector: VersionVector, heard: list[str], *, is_asked: bool) -> None:
        if self.state is ArrivalState.LISTENING:
            self._is_asked = is_asked
            self._vector = vector
            self._heard_lately = heard
            self.on(self._heard_before_client())

    def _heard_before_client(self) -> On:
        offer = self._offer
        if offer is None or not offer.on_arrival or self._owner.has_come(self.client):
            return On.HEARD
        return On.HEARD_CALLED if offer.is_called else On.HEARD_FIRST

    def _send_migtoack(self) -> None:
        vector = [(origin, *stamp) for origin, stamp in self._vector.items()]
        is_first = self.state is ArrivalState.PREPARED
        word = MigToAck(self.client, self.number, vector, self._heard_lately, is_first, self._is_asked)
        self._host.send(self.source, word)

    def page_came(self, page: MigSync) -> None:
        if self.state is not ArrivalState.EXPECTING:
            self.on(On.MIGSYNC if page.session is None else On.MIGSYNC_LAST)
        elif page.page < self._pages:
            if page.session is None:  # of the last one it hears when all is here
                self._host.send(self.source, MigSyncAck(self.client, self.number, page.page))
        elif page.page > self._pages or self._writing:
            return  # it is being written, or one before it is missing
        else:
            self._page = page
            self.on(On.MIGSYNC if page.session is None else On.MIGSYNC_LAST)

    def _stage(self) -> None:
        page = self._page
        assert page is not None
        check_size(self._states + page.states)
        if self._session is not None and self._offer is not None and self._offer.vector is None:
            session_transfer.count_missed(self._session)  # we have listened; else the old node does
        self._writing += 1
        staged = write_down(self._broker, self._host.node, page.items)
        self._broker.commitments.when_safe(partial(self._written, page, staged))

    def _written(self, page: MigSync, staged: list[Staged], safe: bool) -> None:
        self._writing -= 1
        if not safe or self.state is not ArrivalState.EXPECTING:
            return  # it will be sent again
        self._staged += staged
        self._states += page.states
        self._pages = page.page + 1
        if page.session is None:
            self._host.send(self.source, MigSyncAck(self.client, self.number, page.page))
        else:
            self._last = page
            self._import_if_whole()

    def _import_if_whole(self) -> None:
        if self._last is not None and not self._gaps:
            self.on(On.STAGED)

    def _import(self) -> None:
        self._broker.between_groups(self._import_now)

    def _import_now(self) -> None:
        session, last, offer = self._session, self._last, self._offer
        assert session is not None
        assert last is not None
        assert last.session is not None
        assert offer is not None
        came = Transferred(
            self.source,
            self.number,
            offer.subscriptions,
            self._staged,
            last.session,
            last.gone_s,
            _vector(last.vector),
            put_together(self._states),
            last.unsaid,
            self._barrier,
            _vector(last.loose),
        )
        try:
            session_transfer.complete(self._broker, session, came, self._host.node)
        except JournalError:
            self._host.later(AGAIN_S, self._import)  # the disk did not give what is there
            return
        self._will, self._will_due = session.will, self._broker.now + self._host.grace_s
        if session.expiry_s:
            whose = self._owner.directory.whose(self.client)
            since = whose.since if whose.user == session.user else self.number
            self._broker.log.owner((self.client, self._host.node, self.number, session.user, since, False))
        self._broker.commitments.when_safe(self._imported)

    def _imported(self, safe: bool) -> None:
        if safe:
            self.on(On.SAFE)
        else:
            self._broker.commitments.when_safe(self._imported)

    def old_owner_is_done(self, word: MigAck) -> bool:
        if self.state is ArrivalState.SERVING and self._session is not None:
            session_transfer.acknowledged_before(self._broker, self._session, word.acknowledged, word.received)
            if word.is_gone and not self.was_led:
                self._client_is_gone(word.politely)
        return self.on(On.MIGACK)

    def _client_is_gone(self, politely: bool) -> None:
        """It hung up before it was told to come here: as if it had done so here, just now, or before it came."""
        session, will = self._session, self._will
        if session is None:
            return
        if session.will is not will:
            is_unsaid = not politely and self._broker.now < self._will_due  # it has come here since
            if is_unsaid and will is not None and will.delay_s == 0:
                self._broker.lifecycle.publish_will(session, will)
        elif session.connection is None and session.disconnected_at > self._broker.running_clock:
            if politely:
                session.will = None
            session.disconnected_at = self._broker.running_clock
            self._broker.log.closed(session)
            self._broker.lifecycle.schedule_session(session)

    def hold_back(self) -> None:
        """Let the client have nothing at QoS 1 and 2 until it is known what it has had."""
        if self._session is not None and self._session.window:
            self._window, self._session.window = self._session.window, 0

    def send_again(self) -> None:
        session, window = self._session, self._window
        self._window = 0
        if session is not None and window and session.connection is not None and not session.window:
            session.window = window
            self._broker.delivery.pump(session)

    def _announce(self) -> None:
        assert self._session is not None
        self._owner.publisher_order.came(self._session)
        session_transfer.settle_down(self._broker, self._session)
        # Ahead of the answer: what waited for the last member at the old node is handed over to where members are.
        self._host.router.announce_pending()
        self._owner.took_over(self)
        if self._session is not None:
            self._host.later(self._host.grace_s, partial(self._broker.delivery.let_go, self._session))

    def _send_whole(self) -> None:
        self._host.send(self.source, MigSyncAck(self.client, self.number, WHOLE))

    def _send_migrefuse(self) -> None:
        self._host.send(self.source, MigRefuse(self.client, self.number, self.reason, self._is_ahead))

    def _drop(self) -> None:
        if self._session is not None:
            session_transfer.drop_arrival(self._broker, self._session)

    def _tell_client(self) -> None:
        self._owner.settled(self)

    def _end(self) -> None:
        self._owner.arrived(self)


def _vector(entries: list[tuple[str, int, int]]) -> VersionVector:
    return {origin: Stamp(epoch, sequence) for origin, epoch, sequence in entries}


_DOES: dict[Do, Callable[[Arrival], None]] = {
    Do.SEND_PULL: Arrival._send_pull,
    Do.CREATE: Arrival._create,
    Do.SEND_MIGTOACK: Arrival._send_migtoack,
    Do.STAGE: Arrival._stage,
    Do.IMPORT: Arrival._import,
    Do.ANNOUNCE: Arrival._announce,
    Do.SEND_WHOLE: Arrival._send_whole,
    Do.SEND_MIGREFUSE: Arrival._send_migrefuse,
    Do.DROP: Arrival._drop,
    Do.TELL_CLIENT: Arrival._tell_client,
    Do.END: Arrival._end,
}
