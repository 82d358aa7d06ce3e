"""Sessions that were given to clients whose own nodes could not be reached, and what those nodes hand over later.

A new session records where each of its subscriptions begins to hear every origin (`broker/beginning.py`).  When an old
session offers what waits there, this node answers with that begin vector, writes the pages down as they come, and at
the end adds what the client's present subscriptions ask for and the new session has not heard.  All of that, and the
note that the old session has been taken over, is one event in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sterna.broker.beginning import (
    Beginning,
    beginning_from,
    grant_now,
    in_doubt,
    sure_filters,
    vector_fields,
    vector_from,
)
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.broker.transfer import session_transfer
from sterna.broker.transfer.session_transfer import Staged
from sterna.migration.directory import Directory
from sterna.migration.messages import UNWANTED, WHOLE, HandOver, HandOverAck, HandOverPage, HandOverWanted
from sterna.migration.move_host import MoveHost
from sterna.migration.session_pages import write_down
from sterna.mqtt.topics import SHARE, is_reserved
from sterna.vocabulary.bounds import NEW_SESSION_STEPS
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

#: A client with a new session has subscribed to all it wants when it has not subscribed for so long.
SETTLE_S = 1.0
#: How often something that is waited for is looked at.
LOOK_S = 0.02
#: Running clocks read large numbers: differences are no more precise.
PRECISION_S = 0.001
#: Messages of one old session that are taken in; a queue is not longer either.
ITEMS_MAX = 1_000_000
#: Two numbers that differ by less belong to one session that has moved.  A new session's number counts from that which
#: its node knew of the old one; the old one may have moved on since, so the two differ by less than a whole step.
MOVES_MAX = NEW_SESSION_STEPS // 2

#: A node, and the number under which it had owned the session.
OldSession = tuple[str, int]


@dataclass(slots=True)
class TakingOver:
    """An old session's messages, as they come."""

    offered_at: float
    heard_at: float = 0.0
    pages: int = 0
    is_writing: bool = False
    staged: list[Staged] = field(default_factory=list)
    last: HandOverPage | None = None


class NewSessions:
    def __init__(self, host: MoveHost, directory: Directory) -> None:
        self._host = host
        self._directory = directory
        self._broker = host.broker
        self._coming: dict[bytes, dict[OldSession, TakingOver]] = {}
        #: Clients whose sessions do not hear all origins at QoS 2 yet.
        self._waiting: dict[bytes, None] = {}
        #: Origins that are asked how far they have come.
        self._awaited: set[str] = set()

    # -- how they begin --

    def recover(self) -> None:
        for session in self._broker.sessions.values():
            beginning = session.beginning
            if beginning is None:
                continue
            self._watch(session)
            if session.is_fenced:
                continue
            if beginning.opening:  # it is not known any more who had heard of them
                for name in sorted(beginning.opening):
                    self._hears_from(session, beginning, name, self._host.heard_up_to())
                self._broker.log.began(session)
            if beginning.left_to_old:
                self._waiting[session.client_id] = None

    def begun(self, session: Session, owner: str, after: int, *, clean: bool) -> None:
        """A client gets a new session.  `owner`, `after`: the node that has its old one, and the number of that one;
        empty and 0 if none is known here."""
        beginning = session.beginning = Beginning(session.number, after)
        beginning.is_clean = beginning.is_told = clean
        session.count_apart()
        beginning.began_at = self._broker.running_clock
        if owner and not clean:
            beginning.leave_others(self._in_step(owner))
        self._broker.log.began(session)
        if not clean:
            self._host.when_answered(partial(self._begins, session))
        self._wait_for_origins(session)

    def named(self, client: bytes, owner: str, number: int) -> None:
        """A neighbour names an older session.  If it is the first node that this one has met, its client was not known
        here when it got its own.  Messages come later: links keep the order."""
        session = self._broker.sessions.get(client)
        beginning = session.beginning if session is not None else None
        if session is None or beginning is None or beginning.after or beginning.is_clean or self._has_met_others:
            return
        if owner not in ("", self._host.node) and number < beginning.number:
            beginning.after = number
            beginning.leave_others(self._in_step(owner))
            self._broker.log.began(session)
            self._wait_for_origins(session)

    def _in_step(self, owner: str) -> list[str]:
        """Nodes of which all has been read here that the old session at `owner` can have delivered."""
        router = self._host.router
        others = (origin for origin in router.paths.origins if origin != owner and router.streams.in_step(origin))
        return [self._host.node, *others]

    def arrived(self, session: Session) -> None:
        """It has come from another node."""
        self._coming.pop(session.client_id, None)
        beginning, node = session.beginning, self._host.node
        if beginning is not None:
            if beginning.leaves(node):  # nothing of that is missing here
                beginning.resume(node, self._host.frontier())
            self._broker.log.began(session)
        self._wait_for_origins(session)

    def _watch(self, session: Session) -> None:
        session_transfer.watch(self._broker, session)
        if session.beginning is not None and not self._has_met_others:  # the first one may name an old session
            session_transfer.barriers_of(self._broker).watch(session)
        if self._broker.delivery.barriers is not None:
            self._broker.delivery.barriers.left = self._left

    @property
    def _has_met_others(self) -> bool:
        """Has this node, in any of its lives, read another one?"""
        return bool(self._host.router.streams.vector)

    def _left(self) -> None:
        self._host.counters.left_to_old += 1

    def _wait_for_origins(self, session: Session) -> None:
        self._watch(session)
        if session.beginning is not None and session.beginning.left_to_old:
            self._waiting[session.client_id] = None
            for origin in self._host.router.paths.origins:
                self._await(origin)

    def _begins(self, session: Session, frontiers: VersionVector) -> None:
        """Earlier messages are not for it, even if we read them later: the old session is in charge of them."""
        beginning = session.beginning
        if beginning is not None and beginning.left_to_old:  # nodes that did not answer may be lost, too
            for origin in [name for name in beginning.resumed if name not in frontiers and name != self._host.node]:
                if beginning.resumed[origin] == BEFORE_ALL:
                    del beginning.resumed[origin]
            self._wait_for_origins(session)
        if self._broker.sessions.get(session.client_id) is session and not session.subscriptions:
            vector = _later(self._host.heard_up_to(), frontiers)
            session.barrier = {origin: stamp for origin, stamp in vector.items() if origin != self._host.node}
            session_transfer.raise_barrier(self._broker, session)
            if session.expiry_s:
                self._broker.log.imported(session)

    def subscribed(self, session: Session, topic_filter: bytes) -> None:
        """From where on does it hear that?  From when everybody knows."""
        beginning = session.beginning
        if beginning is None:
            return
        beginning.is_told = True
        beginning.subscribed_at = self._broker.now
        if not topic_filter.startswith(SHARE):
            beginning.opening.add(topic_filter)
            self._ask_who_knows(session, topic_filter)

    def _ask_who_knows(self, session: Session, topic_filter: bytes) -> None:
        if self._broker.sessions.get(session.client_id) is session:
            self._host.when_answered(partial(self._known, session, topic_filter))

    def _known(self, session: Session, topic_filter: bytes, frontiers: VersionVector) -> None:
        """A node that is there and does not answer may pass over messages meanwhile.  One that is not there is read
        from where we were, with the new wishes, when it is back."""
        if any(origin not in frontiers for origin in self._host.router.paths.origins):
            self._host.later(self._host.settings.retry_s, partial(self._ask_who_knows, session, topic_filter))
            return
        vector = _later(self._host.heard_up_to(), frontiers)
        self._broker.commitments.in_turn(partial(self._hears, session, topic_filter, vector))

    def _hears(self, session: Session, topic_filter: bytes, vector: VersionVector) -> None:
        beginning = session.beginning
        if beginning is not None and self._broker.sessions.get(session.client_id) is session:
            self._hears_from(session, beginning, topic_filter, vector)
            if not beginning.opening:
                self._broker.log.began(session)

    def _hears_from(self, session: Session, beginning: Beginning, topic_filter: bytes, vector: VersionVector) -> None:
        since = _later(vector, session.barrier)  # it bars what was before
        beginning.begins(topic_filter, since)
        may_follow = session.number == beginning.number and not beginning.taken_over and not beginning.is_clean
        if self._broker.records is not None and may_follow:
            self._broker.records.began(session, topic_filter, since, beginning.number)

    def node_found(self, origin: str) -> None:
        """From what it answers now on, new sessions hear it at QoS 2 too: old sessions were left before that."""
        self._await(origin)

    def _await(self, origin: str) -> None:
        sessions = {session.client_id: session for session, _ in self._who_leave(origin)}
        if sessions and origin not in self._awaited and self._host.router.link_to(origin) is not None:
            self._awaited.add(origin)
            self._host.when_answered(partial(self._answered, origin, sessions))

    def _answered(self, origin: str, sessions: dict[bytes, Session], frontiers: VersionVector) -> None:
        """A link that is still there may be dead: then there is no answer."""
        self._awaited.discard(origin)
        if origin in frontiers:
            self._broker.between_groups(partial(self._resume, origin, sessions, frontiers[origin]))
        else:
            self._host.later(self._host.settings.retry_s, partial(self._await, origin))

    def _resume(self, origin: str, sessions: dict[bytes, Session], stamp: Stamp) -> None:
        for session, beginning in self._who_leave(origin):
            if sessions.get(session.client_id) is session and not session.is_moving:
                beginning.resume(origin, stamp)
                self._broker.log.began(session)
        if any(self._who_leave(origin)):  # one that has begun since it was asked
            self._host.later(self._host.settings.retry_s, partial(self._await, origin))

    def _who_leave(self, origin: str) -> Iterator[tuple[Session, Beginning]]:
        """Sessions that leave all messages of this node to old ones."""
        for client in list(self._waiting):
            session = self._broker.sessions.get(client)
            if session is None or session.beginning is None or not session.beginning.left_to_old:
                del self._waiting[client]
            elif session.beginning.leaves(origin):
                yield session, session.beginning

    # -- what old sessions hand over --

    def ended(self, client: bytes) -> None:
        self._coming.pop(client, None)
        self._waiting.pop(client, None)

    def offered(self, source: str, offer: HandOver) -> None:
        if session := self._served(offer.client):
            self._offered(session, source, offer)

    def page_came(self, source: str, page: HandOverPage) -> None:
        if session := self._served(page.client):
            self._page_came(session, source, page)

    def _served(self, client: bytes) -> Session | None:
        """If it is not here it will be offered again, here or elsewhere."""
        session = self._broker.sessions.get(client)
        owner, _ = self._directory.get(client)
        is_here = session is not None and not session.is_moving and owner == self._host.node
        return session if is_here else None

    def _answer(self, client: bytes, old: OldSession, page: int) -> None:
        source, number = old
        if page in (WHOLE, UNWANTED):
            coming = self._coming.get(client, {})
            coming.pop(old, None)
            if not coming:
                self._coming.pop(client, None)
        self._host.send(source, HandOverAck(client, number, page))

    def _offered(self, session: Session, source: str, offer: HandOver) -> None:
        client, old = offer.client, (source, offer.number)
        if session.beginning is not None and old in session.beginning.taken_over:
            self._answer(client, old, WHOLE)
            return
        beginning = session.beginning
        if beginning is None or session.user != offer.user or beginning.is_clean:
            self._answer(client, old, UNWANTED)
            return
        if any(0 < number - offer.number < MOVES_MAX for _, number in beginning.taken_over):
            self._answer(client, old, WHOLE)  # it had moved from there, and has been taken over since
            return
        coming = self._coming.setdefault(client, {}).setdefault(old, TakingOver(self._broker.now))
        coming.heard_at = self._broker.now
        if coming.last is None and not coming.is_writing:
            coming.pages, coming.staged = 0, []  # it begins from the first page
        age_s = self._broker.running_clock - beginning.began_at
        is_back = offer.opened_s is not None and offer.opened_s < age_s - PRECISION_S
        if is_back and old not in beginning.went_back:
            beginning.went_back[old] = None
            self._tell_again(session, beginning)
        self._ask_newest(session, beginning)

    def _tell_again(self, session: Session, beginning: Beginning) -> None:
        """Its client went back to the old session after this one had begun, and has to hear again that this one is new.
        Then it forgets what was in flight in both."""
        sent = in_doubt(session)
        event = "a client went back to its old session"
        self._broker.report(event, client=session.name(), in_flight=len(sent))
        for packet_id in sent:
            self._broker.delivery.passed_on(session, packet_id, "owned-elsewhere")
        self._host.counters.in_flight_dropped += len(sent)
        for packet_id in [packet_id for packet_id, entry in session.inflight.items() if entry is None]:
            session.out_of_flight(packet_id)
            self._broker.log.acknowledged(session, packet_id)
        beginning.is_told, beginning.told_by = False, None
        self._broker.log.began(session)
        self._host.take_over(session)

    def _ask_newest(self, session: Session, beginning: Beginning) -> None:
        """One old session after the other, the newest first: a newer one tells which messages of an older one its
        client may have.  One that is known of and away is waited for, but not for longer than `patience_s`."""
        coming = self._coming.get(session.client_id, {})
        newest = max(coming, key=lambda old: old[1], default=None)
        if newest is None or coming[newest].last is not None or not self._is_ready(session, beginning):
            return
        waited_s = self._broker.now - coming[newest].offered_at
        is_known = self._is_known_who_came_between(session, beginning, newest)
        if is_known or waited_s > self._host.settings.patience_s:
            self._ask(session.client_id, newest, beginning)

    def _ask(self, client: bytes, old: OldSession, beginning: Beginning) -> None:
        source, number = old
        self._host.send(source, HandOverWanted(client, number, vector_fields(beginning.needed())))

    def _is_ready(self, session: Session, beginning: Beginning) -> bool:
        """Has the client subscribed to what it wants, as far as can be known?  The rest is dropped."""
        if beginning.opening:
            return False
        if not beginning.subscribed_at:
            beginning.subscribed_at = self._broker.now
        quiet_s = self._broker.now - beginning.subscribed_at
        if session.subscriptions:
            return quiet_s >= SETTLE_S
        # One that stays connected and does not subscribe has been told, and wants nothing.
        return session.connection is not None and quiet_s > self._host.settings.patience_s

    def _page_came(self, session: Session, source: str, page: HandOverPage) -> None:
        old = source, page.number
        coming = self._coming.get(page.client, {}).get(old)
        if coming is None:
            self._host.counters.refused += 1
            if session.beginning is not None and old in session.beginning.taken_over:
                self._answer(page.client, old, WHOLE)
            elif session.beginning is not None:  # this node was started again meanwhile
                self._coming.setdefault(page.client, {})[old] = TakingOver(self._broker.now, self._broker.now)
                self._ask_newest(session, session.beginning)
            return
        coming.heard_at = self._broker.now
        if coming.last is not None or coming.is_writing:
            return  # it is being added, or written
        if page.page < coming.pages and page.vector is None:
            self._answer(page.client, old, page.page)
        elif page.page > coming.pages and session.beginning is not None:
            self._ask(page.client, old, session.beginning)
        elif page.page == coming.pages and len(coming.staged) < ITEMS_MAX:
            coming.is_writing = True
            staged = write_down(self._broker, self._host.node, page.items)
            self._broker.commitments.when_safe(partial(self._written, old, coming, page, staged))

    def _written(
        self, old: OldSession, coming: TakingOver, page: HandOverPage, staged: list[Staged], safe: bool
    ) -> None:
        coming.is_writing = False
        if not safe:
            return  # it will be sent again
        coming.staged += staged
        coming.pages = page.page + 1
        if page.vector is None:
            self._answer(page.client, old, page.page)
        else:
            coming.last = page
            self._add(page.client, old, coming)

    def _add(self, client: bytes, old: OldSession, coming: TakingOver) -> None:
        self._broker.between_groups(partial(self._add_now, client, old, coming))

    def _add_now(self, client: bytes, old: OldSession, coming: TakingOver) -> None:
        session, last = self._broker.sessions.get(client), coming.last
        if self._coming.get(client, {}).get(old) is not coming or last is None:
            return
        beginning = session.beginning if session is not None else None
        if session is None or session.is_moving or beginning is None:
            self._coming.pop(client, None)  # it has gone elsewhere meanwhile, and is offered there
            return
        if old in beginning.taken_over:  # it had been, by another session that has been since
            self._answer(client, old, WHOLE)
            return
        upto = vector_from(last.vector or [])
        if beginning.opening or self._waits_for_newer(client, old):
            self._host.later(LOOK_S, partial(self._add, client, old, coming))
            return
        if any(stamp > upto.get(origin, BEFORE_ALL) for origin, stamp in beginning.needed().items()):
            coming.last, coming.pages, coming.staged = None, 0, []
            self._ask(client, old, beginning)  # it begins later than it did when the old session was asked
            return
        try:
            self._merge(session, beginning, old, coming, upto)
        except JournalError:
            self._host.later(LOOK_S, partial(self._add, client, old, coming))
            return
        theirs = None if last.beginning is None else beginning_from(last.beginning)
        if old[1] >= beginning.after:
            beginning.replaces(theirs, upto)
        beginning.took_over(*old, theirs)
        self._broker.log.imported(session)
        self._broker.commitments.when_safe(partial(self._added, session, old))

    def _added(self, session: Session, old: OldSession, safe: bool) -> None:
        if not safe:
            self._broker.commitments.when_safe(partial(self._added, session, old))
            return
        self._answer(session.client_id, old, WHOLE)
        if session.beginning is not None:
            for other in session.beginning.taken_over:
                if other in self._coming.get(session.client_id, {}):
                    self._answer(session.client_id, other, WHOLE)
            self._ask_newest(session, session.beginning)
        if session.connection is not None:
            self._broker.delivery.pump(session)

    def _merge(
        self, session: Session, beginning: Beginning, old: OldSession, coming: TakingOver, upto: VersionVector
    ) -> None:
        """Queues what waited there up to this vector and was not heard here, then what waits here.  May raise
        JournalError; then nothing has changed."""
        counters = self._host.counters
        filters = sure_filters(session)
        is_known = self._is_known_who_came_between(session, beginning, old)
        front: list[tuple[int, Grant]] = []
        unwanted = dropped = 0
        for one in coming.staged:
            message = self._broker.journal.read(one.offset) if one.grant is not None else None
            if message is None:
                continue
            grant = grant_now(session.subscriptions.values(), message, session.client_id)
            if grant is None:
                unwanted += 1
                continue
            epoch = self._broker.journal.epoch_of(message.offset)
            identity = message.identity or Identity(self._host.node, epoch, message.offset)
            qos = min(message.qos, grant.qos)
            if identity.stamp > upto.get(identity.origin, identity.stamp):
                continue  # the new session hears that by itself
            if beginning.has_heard(filters, message.topic, identity, qos) or self._has_newer(session, message.topic):
                continue
            if qos == 2 and beginning.may_be_had(message.topic, identity):
                continue
            if qos == 2 and not is_known:
                dropped += 1
            else:
                front.append((one.offset, grant))
        whole: OffsetQueue[Grant] = OffsetQueue()
        for offset, grant in (*front, *session.queue):
            if len(whole) < self._broker.limits.queued:
                whole.push(offset, grant)
            else:
                session.turn_away(self._broker.counters)
        session.queue = whole
        self._broker.report("an old session is taken over", client=session.name(), node=old[0], messages=len(front))
        counters.taken_over += len(front)
        counters.unwanted += unwanted
        counters.in_flight_dropped += dropped
        if dropped:
            self._broker.counters.dropped("owned-elsewhere", dropped)
            reason = "messages at QoS 2 are dropped: a session between cannot be asked whether it has delivered them"
            self._broker.report(reason, client=session.name(), node=old[0], messages=dropped)

    def _has_newer(self, session: Session, topic: bytes) -> bool:
        """Is that an answer of an aggregate over topics, which has given another one here since?"""
        found = (self._broker.routes.computations.get(name) for name in session.subscriptions if is_reserved(topic))
        return any(
            one is not None and one.made and one.expression.is_current_value and one.expression.result_topic == topic
            for one in found
        )

    def _waits_for_newer(self, client: bytes, old: OldSession) -> bool:
        """Has a newer one been offered meanwhile, and is it still there?"""
        since = self._broker.now - self._host.settings.patience_s
        others = self._coming.get(client, {}).items()
        return any(number > old[1] and one.heard_at > since for (_, number), one in others)

    def _is_known_who_came_between(self, session: Session, beginning: Beginning, old: OldSession) -> bool:
        """Have all sessions between that one and this been taken over, so that it is known what they had at QoS 2?"""
        if self._waits_for_newer(session.client_id, old):
            return False
        return old[1] >= beginning.after or any(number >= beginning.after for _, number in beginning.taken_over)


def _later(one: VersionVector, other: VersionVector) -> VersionVector:
    return {origin: max(one.get(origin, BEFORE_ALL), other.get(origin, BEFORE_ALL)) for origin in (*one, *other)}
