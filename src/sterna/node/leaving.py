"""A session on the node it leaves: does what `migration.tables.LEAVING` says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sterna.broker import moves
from sterna.broker.durability import subscription_fields, will_fields
from sterna.broker.session import Session
from sterna.broker.travelling import windows_of
from sterna.migration.messages import MigAbort, MigAck, MigSync, MigTo, Rest
from sterna.migration.tables import LEAVING, Do, Leaving, Machine, On
from sterna.node.session_pages import PAGE_BYTES, Pages
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.stamps import BEFORE_ALL, VersionVector

if TYPE_CHECKING:
    from sterna.node.moving import Moving

#: How often something that is waited for is looked at.
LOOK_S = 0.005
#: What a subscription takes besides its filter.
FIELDS_BYTES = 16

SubscriptionFields = tuple[bytes, int, bool, bool, int]


class Departure:
    def __init__(self, moving: Moving, session: Session, target: str, number: int, *, by_plan: bool) -> None:
        self._moving = moving
        self._broker = moving.broker
        self.session = session
        self.target = target
        self.number = number
        self.by_plan = by_plan
        self.started_at = moving.broker.now
        self.reason = ""
        in_doubt = session.leaving is not None
        self._machine = Machine(LEAVING, Leaving.IN_DOUBT if in_doubt else Leaving.OFFERED)
        self._changed_at = moving.broker.now
        self._window = session.window
        self._offered: list[tuple[bytes, int, bool, bool, int]] = []
        self._paths: dict[str, int] = {}
        #: From where on the other node hears everything.
        self._theirs: VersionVector = {}
        self._heard: set[str] = set()
        #: How far everybody had come when we asked; None if there was no need to.
        self._frontiers: VersionVector | None = None
        self._ours: VersionVector = {}
        self._was_frozen = in_doubt
        #: It was connected when the last page was made, and was not when its client was to be sent on.
        self._is_gone = False
        self._was_connected = False
        self._held: set[bytes] = set()
        self._prepared = False
        self._pages: Pages | None = None
        self._page: MigSync | None = None

    @property
    def state(self) -> Leaving:
        return Leaving(self._machine.state)

    def begin(self) -> None:
        if self.state is Leaving.OFFERED:
            self._offered = [subscription_fields(s) for s in self.session.subscriptions.values()]
            self._do(Do.SEND_MIGTO)
        else:
            self._do(Do.SEND_PAGE)
        self._moving.later(self._moving.settings.retry_s, self._tick)

    def _tick(self) -> None:
        """Time has passed: say it again, or give up."""
        if self._moving.departures.get(self.session.client_id) is not self:
            return
        waited = self._broker.now - self._changed_at
        if waited >= self._moving.settings.patience_s:
            self.reason = self.reason or f"no answer from {self.target}"
            self.on(On.GIVE_UP)
            self._changed_at = self._broker.now
        else:
            self.on(On.RETRY)
        self._moving.later(self._moving.settings.retry_s, self._tick)

    def on(self, event: On) -> bool:
        """Something happened; False if it means nothing now."""
        before = self.state
        does = self._machine.on(event)
        if does is None:
            return False
        if self.state is not before or event is On.MIGSYNCACK:
            self._changed_at = self._broker.now
        for one in does:
            self._do(one)
        return True

    def trouble(self, reason: str) -> None:
        self.reason = reason
        self.on(On.TROUBLE)

    def _do(self, what: Do) -> None:
        _DOES[what](self)

    # -- what the table says --

    def _send_migto(self) -> None:
        session = self.session
        self._paths = self._moving.digests_of_paths()
        about = (session.client_id, self.number, session.version, session.user)
        parts = in_parts(self._offered)
        windows = windows_of(self._broker, session)
        for part, subscriptions in enumerate(parts):
            named = [] if part else windows
            self._moving.send(self.target, MigTo(*about, subscriptions, self.by_plan, part, len(parts), named))

    def theirs(self, vector: VersionVector, heard: list[str]) -> None:
        """What the other node said in MIGTOACK."""
        if self.state is Leaving.OFFERED:
            self._theirs = vector
            self._heard = set(heard)
            self._prepared = self._moving.plans.prepare(self.session, self.target)
            self.on(On.MIGTOACK)

    def _catch_up(self) -> None:
        """Serve the session until nothing is left that the other node has not heard.

        Links keep the order, so whatever somebody published before the other node heard from it came here before the
        other node's answer did, unless the way from there has changed meanwhile.
        """
        if self.state is not Leaving.CATCHING_UP:
            return
        if self._is_behind():
            self._paths = self._moving.digests_of_paths()
            self._moving.ask_everybody(self._heard_from)
        else:
            self._broker.when_safe(self._caught_up)

    def _heard_from(self, frontiers: VersionVector) -> None:
        self._frontiers = frontiers
        self._heard.clear()  # that was by another way
        if self.state is not Leaving.CATCHING_UP:
            return
        if self._is_behind():
            self._moving.later(self._moving.settings.retry_s / 5, self._catch_up)
        else:
            self._broker.when_safe(self._caught_up)

    def _caught_up(self, safe: bool) -> None:
        if safe:
            self.on(On.CAUGHT_UP)
        else:
            self._moving.later(LOOK_S, self._catch_up)  # what was read is about to be taken back

    def _is_behind(self) -> bool:
        """Is there a node whose messages we may not have read as far as needed?"""
        streams = self._moving.router.streams
        now = self._moving.digests_of_paths()
        barrier = self.session.barrier
        for origin, stamp in self._theirs.items():
            read = max(streams.vector.get(origin, BEFORE_ALL), barrier.get(origin, BEFORE_ALL))
            if origin == self._moving.node or read >= stamp:
                continue
            is_steady = origin in now and now[origin] == self._paths.get(origin) and streams.synced(origin)
            is_told = origin in self._heard or (self._frontiers or {}).get(origin, BEFORE_ALL) >= stamp
            if not is_steady or not is_told:
                return True
        return False

    def _drain(self) -> None:
        session = self.session
        session.leaving = (self.target, self.number)
        self._window = moves.drain(session)
        self._drain_until(self._broker.now + self._moving.settings.drain_s)

    def _drain_until(self, deadline: float) -> None:
        if self.state is not Leaving.DRAINING:
            return
        connection = self.session.connection
        if connection is not None and (connection.is_busy or (self.session.inflight and self._broker.now < deadline)):
            self._moving.later(LOOK_S, partial(self._drain_until, deadline))
        else:
            self.on(On.DRAINED)

    def _freeze(self) -> None:
        session = self.session
        if [subscription_fields(s) for s in session.subscriptions.values()] != self._offered:
            self._broker.turns.ask(self._changed_its_mind)
            return
        self._was_frozen = True
        self._held = set(self._moving.router.own.held())
        moves.freeze(self._broker, session)
        self._broker.log.leaving(session)
        self._mark()

    def _changed_its_mind(self) -> bool:
        self.trouble("it has subscribed to something else meanwhile")
        return True

    def _mark(self) -> None:
        """The vector of now, taken together with what has been delivered when everything up to it has been."""
        if self._is_behind() or self._is_holding():
            self._moving.later(LOOK_S, self._mark_again)
            return
        vector = self._moving.vector()
        for origin, stamp in self.session.barrier.items():  # of where it came from before we have read as far
            vector[origin] = max(stamp, vector.get(origin, BEFORE_ALL))
        self._ours = vector
        self._broker.when_safe(self._marked)

    def _mark_again(self) -> None:
        if self.state is Leaving.FREEZING:
            self._mark()

    def _marked(self, safe: bool) -> None:
        if self.state is not Leaving.FREEZING:
            return
        if not safe:
            # What could not be written was not delivered either, and is about to be taken back.
            self._moving.later(LOOK_S, self._mark_again)
            return
        try:
            self._pages = Pages(self._broker, self._moving.node, self.session)
        except JournalError:
            self._moving.later(LOOK_S, self._mark_again)
            return
        self.on(On.FROZEN)

    def _is_holding(self) -> bool:
        """Has the client had messages at QoS 0 that our links have not?  They must not meet it again."""
        own = self._moving.router.own
        self._held = {topic for topic in self._held if own.is_holding(topic)}
        return bool(self._held)

    def _next_page(self) -> None:
        assert self._pages is not None
        number = 0 if self._page is None else self._page.page + 1
        try:
            items, states, is_last = self._pages.next()
        except JournalError:
            self._moving.later(LOOK_S, partial(self._next_page_again, number))
            return
        rest = self._rest() if is_last else None
        self._page = MigSync(self.session.client_id, self.number, number, items, rest, states)
        if is_last:
            self.on(On.LAST)
        else:
            self._send_page()

    def _next_page_again(self, number: int) -> None:
        """The disk did not give what is there."""
        if self.state is Leaving.SENDING and (self._page is None or self._page.page < number):
            self._next_page()

    def _rest(self) -> Rest:
        session = self.session
        self._was_connected = session.connection is not None
        gone_s = -self._moving.grace_s if session.connection else self._broker.wall - session.disconnected_at
        will = will_fields(session.will)
        return Rest(
            session.expiry_s,
            gone_s,
            None if will is None else list(will),
            session.next_packet_id,
            sorted(session.received),
            session.sequence,
            session.dropped_by_retention,
            session.dropped_by_full_queue,
            [(origin, *stamp) for origin, stamp in self._ours.items()],
        )

    def acknowledged(self, page: int) -> None:
        if self._page is not None and self._page.page == page:
            self.on(On.MIGSYNCACK)

    def _send_page(self) -> None:
        if self._page is not None:
            self._moving.send(self.target, self._page)
        else:
            self._send_migabort()  # it was we who were killed meanwhile: ask how it stands

    def _send_migack(self) -> None:
        self._moving.send(self.target, MigAck(self.session.client_id, self.number, self._is_gone))

    def _send_migabort(self) -> None:
        self._moving.send(self.target, MigAbort(self.session.client_id, self.number, self.reason))

    def _thaw(self) -> None:
        if self._broker.sessions.get(self.session.client_id) is self.session:
            if self._prepared:
                self._moving.plans.cancel(self.session)
            moves.thaw(self._broker, self.session, self._window, was_frozen=self._was_frozen)

    def _send_away(self) -> None:
        session = self.session
        farewell = b""
        self._is_gone = self._was_connected and session.connection is None
        if session.connection is not None:
            farewell = self._moving.farewell(session.connection, self.target)
        moves.part_from(self._broker, session, farewell)

    def _note_moved(self) -> None:
        moves.end_moved(self._broker, self.session, self.target, self.number)
        self._moving.learn(self.session.client_id, self.target, self.number, noted=True)
        self._broker.when_safe(self._noted)

    def _noted(self, safe: bool) -> None:
        if safe:
            self.on(On.SAFE)
        else:
            self._broker.when_safe(self._noted)

    def _end(self) -> None:
        self._moving.departed(self)


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


_DOES: dict[Do, Callable[[Departure], None]] = {
    Do.SEND_MIGTO: Departure._send_migto,
    Do.CATCH_UP: Departure._catch_up,
    Do.DRAIN: Departure._drain,
    Do.FREEZE: Departure._freeze,
    Do.NEXT_PAGE: Departure._next_page,
    Do.SEND_PAGE: Departure._send_page,
    Do.SEND_MIGACK: Departure._send_migack,
    Do.SEND_MIGABORT: Departure._send_migabort,
    Do.THAW: Departure._thaw,
    Do.SEND_AWAY: Departure._send_away,
    Do.NOTE_MOVED: Departure._note_moved,
    Do.END: Departure._end,
}
