"""What is left of a session that another node has come to own meanwhile: it goes there, and is forgotten here.

A session that is fenced is laid by under another name.  It hears on, so that nothing is missed between where it stood
and where its successor began to hear, and serves nobody.  When it has heard as far, its owner gets what it was not
able to deliver, in pages; once all of that is safe there, it ends here.  It survives crashes like any session, and is
then offered again; whoever has had it says so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sterna.broker.inheritance import (
    Coverage,
    Inheritance,
    in_doubt,
    owner_of,
    remains_key,
    sure_filters,
    vector_fields,
    vector_from,
)
from sterna.broker.session.session import Session
from sterna.broker.session.snapshots import snapshot
from sterna.broker.transfer import session_transfer
from sterna.migration.messages import (
    UNWANTED,
    WHOLE,
    Item,
    MigAbort,
    NoRemains,
    OfRemains,
    Remains,
    RemainsAck,
    RemainsPage,
    RemainsWanted,
    Rivals,
)
from sterna.mqtt.topics import SHARE
from sterna.node.inheriting import Heirs, when_read
from sterna.node.questions import LOOK_S
from sterna.node.session_pages import PAGE_BYTES, Pages
from sterna.node.sides import pause_s
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, VersionVector

if TYPE_CHECKING:
    from sterna.node.moving import Moving

#: What an entry of a vector takes besides its name.
STAMP_BYTES = 16
#: Messages heard early that one page names.
EARLY_A_PAGE = 1000


class Estate:
    """The remains of one session, on their way."""

    def __init__(self, estates: Estates, session: Session) -> None:
        self._estates = estates
        self._moving = estates.moving
        self._broker = estates.moving.broker
        self.session = session
        self.client, self.number = owner_of(session.client_id)
        self._target = ""
        self._wanted: VersionVector | None = None
        self._asked_at = 0.0
        self._pages: Pages | None = None
        self._page: RemainsPage | None = None
        self._upto: VersionVector = {}
        self._filters: list[tuple[bytes, VersionVector]] = []
        self._early: list[tuple[str, int, int]] = []
        self._retries = 0

    def begin(self) -> None:
        self._tick()

    @property
    def is_there(self) -> bool:
        return self._broker.sessions.get(self.session.client_id) is self.session

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and nothing is heard: whoever has it now misses nothing."""
        session = self.session
        return not (session.queue or session.subscriptions or session.inflight or session.leaving)

    def _tick(self) -> None:
        """Time has passed: say it again, to whoever is to have it now."""
        if not self.is_there:
            self._estates.forget(self)
            return
        if self._broker.running_clock - self.session.disconnected_at >= self.session.expiry_s:
            self.end(lost=True)
            return
        if self.is_empty:
            self.end(lost=False)
            return
        if self.session.leaving is not None:
            self._ask(*self.session.leaving)
        else:
            self.offer()
        settings = self._moving.settings
        self._moving.later(min(pause_s(settings.retry_s, self._retries), settings.patience_s), self._tick)
        self._retries += 1

    def _ask(self, target: str, number: int) -> None:
        """It was handed to another node that was lost before it could say whether it has it."""
        self._moving.send(target, MigAbort(self.client, number, "it began anew"))

    def settle(self, target: str, number: int, *, is_there: bool) -> None:
        """What that node says now, or has shown by handing over what was left of it."""
        if self.session.leaving != (target, number):
            return
        session = self._broker.sessions.get(self.client)
        settled = session.inheritance.settled if session is not None and session.inheritance is not None else {}
        if is_there or any(node == target and one >= number for node, one in settled):
            self.end(lost=False)
        else:
            self.session.leaving = None
            self._broker.log.leaving(self.session)
            self.offer()

    def offer(self) -> None:
        owner, _ = self._moving.directory.get(self.client)
        if self.session.leaving is not None:
            return  # not before it is known whether it is ours to offer
        if owner != self._target:
            self._target = owner
            self._wanted = self._pages = self._page = None
            self._retries = 0
        if not owner:
            return
        if self._page is not None:
            self._moving.send(owner, self._page)
        elif self._wanted is None:
            self._moving.send(owner, Remains(self.client, self.number, self.session.user))

    def wanted(self, source: str, vector: VersionVector) -> None:
        if source == self._target and self._wanted is None:
            self._wanted = vector
            self._asked_at = self._broker.now
            self._catch_up()

    def _catch_up(self) -> None:
        """Hear as much as the other session has not; of whom cannot be reached, as much as there is."""
        if self._wanted is None or self._page is not None or not self.is_there:
            return
        inheritance = self.session.inheritance
        is_opening = inheritance is not None and bool(inheritance.opening)
        if is_opening or self._waits_for_somebody(self._wanted):
            self._moving.later(LOOK_S, self._catch_up)
        else:
            when_read(self._moving, self._mark)

    def _waits_for_somebody(self, wanted: VersionVector) -> bool:
        """Is somebody away whose messages neither session has heard all of?  Not for ever."""
        router, settings = self._moving.router, self._moving.settings
        if self._broker.now - self._asked_at >= max(settings.owner_absent_s, settings.patience_s):
            return False
        return any(
            origin != self._moving.node
            and router.link_to(origin) is None
            and router.streams.vector.get(origin, BEFORE_ALL) < stamp
            for origin, stamp in wanted.items()
        )

    def _mark(self) -> None:
        if self._wanted is not None and self._waits_for_somebody(self._wanted):
            self._catch_up()  # it was there, and has gone before it was read
            return
        self._upto = self._moving.vector()
        self._broker.when_safe(self._marked)

    def _marked(self, safe: bool) -> None:
        if self._wanted is None or self._page is not None or not self.is_there:
            return
        if not safe:
            self._moving.later(LOOK_S, self._catch_up)
            return
        self._pages = Pages(self._broker, self._moving.node, self.session)
        self._next_page()

    def _next_page(self) -> None:
        """First what it had subscribed to and heard, in as many pages as that takes, then its messages."""
        assert self._pages is not None
        number = 0 if self._page is None else self._page.page + 1
        if self._page is None:
            coverage = coverage_of(self.session, self._upto)
            self._filters, self._early = coverage.filters, list(coverage.early)
        filters = self._some_filters()
        early, self._early = self._early[:EARLY_A_PAGE], self._early[EARLY_A_PAGE:]
        items: list[Item] = []
        is_last = False
        if not self._filters and not self._early:
            try:
                items, _, is_last = self._pages.next()
            except JournalError:
                self._pages = self._page = None
                self._moving.later(LOOK_S, self._catch_up)  # the disk did not give what is there
                return
        upto = vector_fields(self._upto) if is_last else None
        inheritance = self.session.inheritance
        added = list(inheritance.settled) if is_last and inheritance is not None else []
        self._retries = 0
        self._page = RemainsPage(self.client, self.number, number, filters, items, upto, early, added)
        self._moving.send(self._target, self._page)

    def _some_filters(self) -> list[tuple[bytes, list[tuple[str, int, int]]]]:
        some: list[tuple[bytes, list[tuple[str, int, int]]]] = []
        size = 0
        while self._filters and size < PAGE_BYTES:
            name, since = self._filters.pop()
            size += len(name) + sum(len(origin) + STAMP_BYTES for origin in since)
            some.append((name, vector_fields(since)))
        return some

    def acknowledged(self, source: str, page: int) -> None:
        if source != self._target:
            return
        if page in (WHOLE, UNWANTED):
            self.end(lost=page == UNWANTED)
        elif self._page is not None and self._page.page == page and self._page.upto is None:
            self._next_page()

    def end(self, *, lost: bool) -> None:
        counters = self._moving.counters
        left = len(self.session.queue)
        if lost:
            counters.remains_lost += left
            if left:
                self._broker.counters.dropped("owned-elsewhere", left)
            self._broker.report("what was left of a session is lost", client=self.client.decode(), messages=left)
        else:
            counters.remains_handed += left
        session_transfer.barriers_of(self._broker).unwatch(self.session.client_id)
        self._broker.lifecycle.end_session(self.session)
        self._estates.forget(self)


class Estates:
    """All of this node's."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self._estates: dict[bytes, Estate] = {}
        self.heirs = Heirs(moving)

    def __len__(self) -> int:
        return len(self._estates)

    @property
    def is_busy(self) -> bool:
        """Is anything on its way, or waited for that can come?"""
        return bool(self._estates) or self.heirs.questions.is_waiting

    def recover(self) -> None:
        for session in list(self.moving.broker.sessions.values()):
            if session.is_remains:
                self._begin(session)
        self.heirs.recover()

    def _begin(self, session: Session) -> None:
        estate = self._estates[session.client_id] = Estate(self, session)
        self.moving.later(0.0, estate.begin)

    def forget(self, estate: Estate) -> None:
        self._estates.pop(estate.session.client_id, None)

    def _of(self, client: bytes) -> list[Estate]:
        if not self._estates:
            return []
        return [estate for estate in self._estates.values() if estate.client == client]

    def of_client(self, client: bytes) -> list[str]:
        """Nodes on which what is left of this client's sessions may be, as far as that is known here."""
        found: dict[str, None] = {}
        for estate in self._of(client):
            found[self.moving.node] = None
            if estate.session.leaving is not None:
                found[estate.session.leaving[0]] = None
        return list(found)

    def has(self, client: bytes, number: int) -> bool:
        return any(estate.number >= number for estate in self._of(client))

    def settle(self, client: bytes, target: str, number: int, *, is_there: bool) -> None:
        for estate in self._of(client):
            estate.settle(target, number, is_there=is_there)

    def owner_changed(self, client: bytes) -> None:
        for estate in self._of(client):
            estate.offer()

    def node_found(self, node: str) -> None:
        for estate in list(self._estates.values()):
            if self.moving.directory.get(estate.client)[0] == node:
                estate.offer()
        self.heirs.questions.node_found(node)

    def came(self, source: str, message: OfRemains) -> None:
        if isinstance(message, Rivals):
            self._asked(source, message)
        elif isinstance(message, RemainsWanted | RemainsAck):
            estate = self._estates.get(remains_key(message.client, message.number))
            if estate is None:
                self.moving.counters.refused += 1
            elif isinstance(message, RemainsAck):
                estate.acknowledged(source, message.page)
            else:
                estate.wanted(source, vector_from(message.vector))
        else:
            self.heirs.came(source, message)

    def _asked(self, source: str, question: Rivals) -> None:
        """Is there anything here of a session that another node owns?"""
        client = question.client
        session = self.moving.broker.sessions.get(client)
        if self._of(client):
            self.owner_changed(client)
        elif session is None or not session.number or source == self.moving.node:
            self.moving.send(source, NoRemains(client, question.number))
        # Else both of us think that it is theirs; the directory will tell whose it is, and we are asked again.

    def contest(self, session: Session, owner: str) -> None:
        """It stays though another node has begun one."""
        self.heirs.opened(session, [owner], is_new=False)
        self.doubt(session, owner)

    def doubt(self, session: Session, node: str) -> None:
        """Its client may have been at another node, and have forgotten what it had of what is in flight here."""
        doubtful = self._give_up_doubtful(session)
        if doubtful:
            reason = "another session of a client gives way"
            self.moving.broker.report(reason, client=session.name(), node=node, doubtful=doubtful)

    def _give_up_doubtful(self, session: Session) -> int:
        doubtful = in_doubt(session)
        for packet_id in doubtful:
            self.moving.broker.delivery.passed_on(session, packet_id, "owned-elsewhere")
        self.moving.counters.remains_doubtful += len(doubtful)
        return len(doubtful)

    def tell_resent(self, session: Session, node: str) -> None:
        """Its client had been at another node before it came back here, and may have had that twice."""
        inheritance = session.inheritance
        if inheritance is not None and inheritance.resent:
            self.moving.counters.remains_resent += inheritance.resent
            reason = "what was in doubt was sent again to a client that had begun anew"
            self.moving.broker.report(reason, client=session.name(), node=node, resent=inheritance.resent)
            inheritance.resent = 0

    def lay_by(self, session: Session) -> None:
        """It is fenced: keep what is left of it.  Not before everything that is safe has been delivered."""
        self.moving.broker.between_groups(partial(self._lay_by, session))

    def _lay_by(self, session: Session) -> None:
        moving, broker = self.moving, self.moving.broker
        owner, number = moving.directory.get(session.client_id)
        if broker.sessions.get(session.client_id) is not session:
            return
        doubtful = self._give_up_doubtful(session)
        self.tell_resent(session, owner)
        heir = broker.state.new_session(
            remains_key(session.client_id, session.number), session.user, session.permissions
        )
        heir.version, heir.expiry_s, heir.needs = session.version, session.expiry_s, (session.version, False, False)
        heir.disconnected_at = broker.running_clock
        if session.leaving is not None and session.leaving[0] != moving.node:
            heir.leaving = session.leaving
        heir.inheritance = session.inheritance or Inheritance(is_new=False)
        heir.inheritance.rivals.clear()
        heir.barrier, heir.told = session.barrier, session.told
        for packet_id, entry in session.inflight.items():
            if entry is None:
                heir.inflight[packet_id] = None
            elif not entry[1].retained and not entry[1].share:
                heir.queue.push(entry[0].offset, entry[1])
        for offset, grant in session.queue:
            if not grant.retained:
                heir.queue.push(offset, grant)
        for waiting in heir.inheritance.set_aside.values():
            for offset, grant in waiting:
                heir.queue.push(offset, grant)
        heir.inheritance.set_aside.clear()
        for subscription in session.subscriptions.values():
            if not subscription.topic_filter.startswith(SHARE):
                broker.routes.subscribe(heir, subscription)
        session_transfer.raise_barrier(broker, heir)
        session_transfer.watch(broker, heir)
        broker.log.imported(heir, snapshot(heir))
        broker.report(
            "a session is owned elsewhere",
            client=session.name(),
            node=owner,
            messages=len(heir.queue),
            doubtful=doubtful,
        )
        session_transfer.end_moved(broker, session, owner, number)
        self.heirs.laid_by(heir)
        self._begin(heir)


def is_clean(session: Session) -> bool:
    """Does its client want nothing of what was before?"""
    connect = session.connection.connect if session.connection is not None else None
    return connect is not None and connect.clean_start


def coverage_of(session: Session, upto: VersionVector) -> Coverage:
    assert session.inheritance is not None
    return session.inheritance.coverage(sure_filters(session), upto)
