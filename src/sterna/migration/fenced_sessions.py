"""Sessions that another node came to own while this one could not be reached: they hand over what waits, once.

A node that learns of a higher ownership number stops serving its own session of that client and keeps it under another
name.  The fenced session goes on hearing, until it has read every origin as far as the new session's begin vector.
Then its messages go to the new owner in the ordinary session pages, and when those are safe there, it ends.  It
survives crashes like any session and is then offered again; the new owner remembers which sessions it has taken over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sterna.broker.beginning import fenced_key, in_doubt, owner_of, vector_fields, vector_from
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration.directory import Directory
from sterna.migration.messages import (
    UNWANTED,
    WHOLE,
    HandOver,
    HandOverAck,
    HandOverPage,
    HandOverWanted,
    MigAbort,
)
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import pause_s
from sterna.migration.session_pages import Pages
from sterna.mqtt.topics import SHARE
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, VersionVector

#: How often something that is waited for is looked at.
LOOK_S = 0.02


class FencedSession:
    """One of them, on its way."""

    def __init__(
        self, host: MoveHost, directory: Directory, session: Session, forget: Callable[[FencedSession], None]
    ) -> None:
        self._host = host
        self._directory = directory
        self._broker = host.broker
        self._forget = forget
        self.session = session
        self.client, self.number = owner_of(session.client_id)
        self._target = ""
        self._wanted: VersionVector | None = None
        self._pages: Pages | None = None
        self._page: HandOverPage | None = None
        self._upto: VersionVector = {}
        self._retries = 0

    @property
    def _is_there(self) -> bool:
        return self._broker.sessions.get(self.session.client_id) is self.session

    @property
    def began(self) -> int:
        """The number under which it began, if it took another one's place."""
        return self.session.beginning.number if self.session.beginning is not None else 0

    def tick(self) -> None:
        """Time has passed: say it again, to the owner of now."""
        if not self._is_there:
            self._forget(self)
            return
        if self._broker.running_clock - self.session.disconnected_at >= self.session.expiry_s:
            self._end(is_lost=True)
            return
        if self.session.leaving is not None:
            self._ask(*self.session.leaving)
        else:
            self.offer()
        settings = self._host.settings
        self._host.later(min(pause_s(settings.retry_s, self._retries), settings.patience_s), self.tick)
        self._retries += 1

    # -- a move that had not come to an end when the new session began --

    def _ask(self, target: str, number: int) -> None:
        """It was handed to another node that was lost before it could say whether it has it."""
        self._host.send(target, MigAbort(self.client, number, "its client has a new session"))

    def settle(self, target: str, number: int, *, is_there: bool) -> None:
        """That node answers, or shows by offering the session that it had it."""
        if self.session.leaving != (target, number):
            return
        session = self._broker.sessions.get(self.client)
        taken_over = session.beginning.taken_over if session is not None and session.beginning is not None else {}
        if is_there or any(node == target and one >= number for node, one in taken_over):
            self._end(is_lost=False)
        else:
            self.session.leaving = None
            self._broker.log.leaving(self.session)
            self.offer()

    # -- the hand-over --

    def offer(self) -> None:
        owner, _ = self._directory.get(self.client)
        if self.session.leaving is not None:
            return  # not before it is known whether it is ours to offer
        if owner != self._target:
            self._target = owner
            self._wanted = self._pages = self._page = None
            self._retries = 0
        if not owner:
            return
        if self._page is not None:
            self._host.send(owner, self._page)
        elif self._wanted is None:
            self._host.send(owner, HandOver(self.client, self.number, self.session.user, self._opened_s()))

    def _opened_s(self) -> float | None:
        """How long ago its client connected last; by the wall clock if this node was started since."""
        session, broker = self.session, self._broker
        if session.opened_at:
            return broker.now - session.opened_at
        return max(0.0, broker.wall - session.opened_wall) if session.opened_wall else None

    def wanted(self, source: str, vector: VersionVector) -> None:
        """The new session begins here; asked again if it has come to begin later, or has forgotten earlier pages."""
        if source != self._target:
            return
        is_higher = any(stamp > (self._wanted or {}).get(name, BEFORE_ALL) for name, stamp in vector.items())
        has_gone_on = self._page is not None and self._page.page > 0
        if self._wanted is None or is_higher or has_gone_on:
            self._wanted = vector
            self._pages = self._page = None
            self._read_on(vector)

    def _read_on(self, wanted: VersionVector) -> None:
        """Until every origin has been read as far as that."""
        if self._wanted is not wanted or self._page is not None or not self._is_there:
            return
        router, read = self._host.router, self._host.router.streams.vector
        behind = [
            origin
            for origin, stamp in wanted.items()
            if origin != self._host.node and read.get(origin, BEFORE_ALL) < stamp
        ]
        if any(router.link_to(origin) is None for origin in behind):
            self._host.later(self._host.settings.retry_s, partial(self._read_on, wanted))
        elif behind:
            self._host.when_answered(partial(self._answered, wanted, behind))
        else:
            self._mark(wanted)

    def _answered(self, wanted: VersionVector, behind: list[str], frontiers: VersionVector) -> None:
        """Links keep the order: all that was published before an origin answered has come, if its stream is in step."""
        streams = self._host.router.streams
        if all(frontiers.get(name, BEFORE_ALL) >= wanted[name] and streams.in_step(name) for name in behind):
            self._mark(wanted)
        else:
            self._host.later(LOOK_S, partial(self._read_on, wanted))

    def _mark(self, wanted: VersionVector) -> None:
        """All of that is in our hands; and safe, before it is told."""
        if self._wanted is not wanted or self._page is not None:
            return
        self._upto = dict(self._host.vector())
        for origin, stamp in wanted.items():
            self._upto[origin] = max(stamp, self._upto.get(origin, BEFORE_ALL))
        self._broker.commitments.when_safe(partial(self._marked, wanted))

    def _marked(self, wanted: VersionVector, safe: bool) -> None:
        if self._wanted is not wanted or self._page is not None or not self._is_there:
            return
        if not safe:
            self._host.later(LOOK_S, partial(self._read_on, wanted))
            return
        self._upto[self._host.node] = self._host.frontier()  # not more than was published: others compare it
        self._pages = Pages(self._broker, self._host.node, self.session)
        self._next_page()

    def _next_page(self) -> None:
        assert self._pages is not None
        number = 0 if self._page is None else self._page.page + 1
        try:
            items, _, is_last = self._pages.next()
        except JournalError:  # the disk did not give what is there
            self._pages = self._page = None
            if self._wanted is not None:
                self._host.later(LOOK_S, partial(self._read_on, self._wanted))
            return
        self._retries = 0
        if is_last:
            beginning = self.session.beginning.state() if self.session.beginning is not None else None
            self._page = HandOverPage(self.client, self.number, number, items, vector_fields(self._upto), beginning)
        else:
            self._page = HandOverPage(self.client, self.number, number, items)
        self._host.send(self._target, self._page)

    def acknowledged(self, source: str, page: int) -> None:
        if source != self._target:
            return
        if page in (WHOLE, UNWANTED):
            self._end(is_lost=page == UNWANTED)
        elif self._page is not None and self._page.page == page and self._page.vector is None:
            self._next_page()

    def _end(self, *, is_lost: bool) -> None:
        left = len(self.session.queue)
        if is_lost:
            self._host.counters.not_handed_over += left
            if left:
                self._broker.counters.dropped("owned-elsewhere", left)
            self._broker.report("a fenced session was not wanted", client=self.client.decode(), messages=left)
        else:
            self._host.counters.handed_over += left
        session_transfer.barriers_of(self._broker).unwatch(self.session.client_id)
        if not is_lost and self._broker.records is not None:
            _, number = self.session.leaving or self._directory.get(self.client)
            self._broker.records.moved(self.session, number, self._upto or None)
        self._broker.lifecycle.end_session(self.session, goes_on=not is_lost)
        self._forget(self)


class FencedSessions:
    """All of this node's."""

    def __init__(self, host: MoveHost, directory: Directory) -> None:
        self._host = host
        self._directory = directory
        self._broker = host.broker
        #: client -> those of this client, by number.
        self._sessions: dict[bytes, dict[int, FencedSession]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def recover(self) -> None:
        for session in list(self._broker.sessions.values()):
            if session.is_fenced:
                self._begin(session)

    def _begin(self, session: Session) -> None:
        fenced = FencedSession(self._host, self._directory, session, self._forget)
        self._sessions.setdefault(fenced.client, {})[fenced.number] = fenced
        self._host.later(0.0, fenced.tick)

    def _forget(self, fenced: FencedSession) -> None:
        mine = self._sessions.get(fenced.client, {})
        mine.pop(fenced.number, None)
        if not mine:
            self._sessions.pop(fenced.client, None)

    def _of(self, client: bytes) -> list[FencedSession]:
        return list(self._sessions.get(client, {}).values())

    def has(self, client: bytes, number: int) -> bool:
        """Did that move come about before the session was fenced?"""
        return any(one.began < number <= one.number for one in self._of(client))

    def settle(self, client: bytes, target: str, number: int, *, is_there: bool) -> None:
        for one in self._of(client):
            one.settle(target, number, is_there=is_there)

    def owner_changed(self, client: bytes) -> None:
        for one in self._of(client):
            one.offer()

    def node_found(self, node: str) -> None:
        for client in list(self._sessions):
            if self._directory.get(client)[0] == node:
                self.owner_changed(client)

    def wanted(self, source: str, message: HandOverWanted) -> None:
        if fenced := self._asked(message.client, message.number):
            fenced.wanted(source, vector_from(message.vector))

    def acknowledged(self, source: str, message: HandOverAck) -> None:
        if fenced := self._asked(message.client, message.number):
            fenced.acknowledged(source, message.page)

    def _asked(self, client: bytes, number: int) -> FencedSession | None:
        fenced = self._sessions.get(client, {}).get(number)
        self._host.counters.refused += fenced is None
        return fenced

    def fence(self, session: Session) -> None:
        """Another node owns the client's session.  Not before everything that is safe has been delivered."""
        session.will = None
        self._host.take_over(session)
        session.leaving = session.leaving or (self._host.node, 0)
        self._broker.between_groups(partial(self._fence, session))

    def _fence(self, session: Session) -> None:
        host, broker = self._host, self._broker
        owner, number = self._directory.get(session.client_id)
        if broker.sessions.get(session.client_id) is not session:
            return
        sent = in_doubt(session)
        waiting = len(session.queue)
        broker.report(
            "a session is owned elsewhere", client=session.name(), node=owner, messages=waiting, in_flight=len(sent)
        )
        for packet_id in sent:  # only the client knows whether it has them, and nothing comes twice at QoS 2
            broker.delivery.passed_on(session, packet_id, "owned-elsewhere")
        host.counters.in_flight_dropped += len(sent)
        key = fenced_key(session.client_id, session.number)
        kept = broker.state.new_session(key, session.user, session.permissions)
        kept.version, kept.expiry_s, kept.needs = session.version, session.expiry_s, (session.version, False, False)
        kept.disconnected_at = broker.running_clock
        if session.leaving is not None and session.leaving[0] != host.node:
            kept.leaving = session.leaving
        kept.beginning = session.beginning
        kept.barrier, kept.told = session.barrier, session.told
        kept.opened_at, kept.opened_wall = session.opened_at, session.opened_wall
        for entry in session.inflight.values():
            if entry is not None and not entry[1].retained and not entry[1].share:
                kept.queue.push(entry[0].offset, entry[1])
        for offset, grant in session.queue:
            if not grant.retained:
                kept.queue.push(offset, grant)
        for subscription in session.subscriptions.values():
            if not subscription.topic_filter.startswith(SHARE):
                broker.routes.subscribe(kept, subscription)
        session_transfer.raise_barrier(broker, kept)
        session_transfer.watch(broker, kept)
        session_transfer.end_fenced(broker, session, kept, owner, number)
        broker.log.imported(kept)
        self._begin(kept)
