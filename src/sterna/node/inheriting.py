"""Sessions that were opened while nodes were missing: what those nodes have of the same client is added when they are
back, as far as it was not had meanwhile.

Until a missing node has said what it has, what comes from it is set aside (`broker/inheritance.py`); not for longer
than `patience_s` once it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sterna.broker.inheritance import (
    SOMEBODY,
    Coverage,
    Inheritance,
    identities_from,
    in_doubt,
    vector_fields,
    vector_from,
)
from sterna.broker.session.session import Session
from sterna.broker.session.snapshots import snapshot
from sterna.broker.transfer import session_transfer
from sterna.broker.transfer.session_transfer import Staged
from sterna.migration.messages import (
    UNWANTED,
    WHOLE,
    NoRemains,
    Remains,
    RemainsAck,
    RemainsPage,
    RemainsWanted,
)
from sterna.mqtt.topics import SHARE
from sterna.node.merging import Claim, claim, merge
from sterna.node.questions import LOOK_S, Questions
from sterna.node.session_pages import write_down
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, Identity, VersionVector

if TYPE_CHECKING:
    from sterna.node.moving import Moving

#: A client that begins anew has subscribed to all it wants when it has not subscribed for so long.
SETTLE_S = 1.0
#: Messages of one session's remains that are taken in; a queue is not longer either.
ITEMS_MAX = 1_000_000

Remnant = tuple[str, int]


@dataclass(slots=True)
class Inheriting:
    """The remains of one session, as they come."""

    number: int
    heard_at: float
    pages: int = 0
    writing: bool = False
    filters: list[tuple[bytes, VersionVector]] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    early: dict[Identity, None] = field(default_factory=dict)
    #: Others whose remains are among these.
    added: list[Remnant] = field(default_factory=list)
    upto: VersionVector | None = None

    @property
    def coverage(self) -> Coverage:
        assert self.upto is not None
        return Coverage(self.filters, self.upto, self.early)


class Heirs:
    def __init__(self, moving: Moving) -> None:
        self._moving = moving
        self._broker = moving.broker
        self.questions = Questions(moving, self._is_coming)
        #: client -> what comes, by the node and the number it had there: a node may have had several of its sessions.
        self._coming: dict[bytes, dict[Remnant, Inheriting]] = {}

    # -- sessions that may have rivals --

    def recover(self) -> None:
        for session in self._broker.sessions.values():
            if not session.is_remains:
                self.outlive(session)
            inheritance = session.inheritance
            if inheritance is None:
                continue
            inheritance.look_ahead(self._moving.node, self._moving.router.streams.vector)
            session_transfer.watch(self._broker, session)
            if not session.is_remains:
                self._watch(session)
                inheritance.is_known = inheritance.is_known or bool(session.subscriptions)
            # Those of which it was not known yet who had heard of them.
            for name in session.subscriptions if inheritance.is_new else sorted(inheritance.opening):
                if not name.startswith(SHARE):
                    inheritance.since.setdefault(name, _later(self._moving.heard_up_to(), session.barrier))
            if inheritance.opening:
                inheritance.opening.clear()
                self._broker.log.inherits(session)

    def opened(self, session: Session, missing: Iterable[str], *, is_new: bool, clean: bool = False) -> None:
        """A client is let in while these nodes cannot be asked."""
        before = session.inheritance
        inheritance = before or Inheritance(is_new=is_new)
        if clean:
            inheritance.clean_at = session.number
        if before is None and is_new:
            inheritance.anew_at = session.number
            self._moving.ask_everybody(partial(self._begins, session))
        known = set(inheritance.rivals)
        inheritance.rivals.update(dict.fromkeys(missing))
        session.inheritance = inheritance
        self.questions.open_again(session.client_id, inheritance.rivals)
        if set(inheritance.rivals) != known:
            self._broker.log.inherits(session)
            self._watch(session)

    def met(self) -> None:
        """There are others, after all: any of them may have had what began anew here while nobody was known."""
        for session in self._broker.sessions.values():
            if session.inheritance is not None:
                self._name(session, session.inheritance)

    def _name(self, session: Session, inheritance: Inheritance) -> None:
        if SOMEBODY in inheritance.rivals:
            del inheritance.rivals[SOMEBODY]
            self.opened(session, [*self._moving.router.paths.origins, *self._moving.missing()], is_new=True)

    def comes_again(self, session: Session) -> None:
        """Its client does, here or elsewhere, on another connection than the one it had.  What is in doubt is sent
        again, unless we know of another session that has served it meanwhile."""
        inheritance = session.inheritance
        if inheritance is not None and inheritance.suspect is not None:
            connection, node, at = inheritance.suspect
            inheritance.suspect = None
            if connection.heard_at <= at:
                self._moving.estates.doubt(session, node)
        doubtful = len(in_doubt(session))
        if doubtful and inheritance is not None and inheritance.rivals:
            inheritance.resent += doubtful
            self._broker.log.inherits(session)

    def outlive(self, session: Session) -> None:
        """From where on it has heard matters as long as somebody may come with what a session before it was owed."""
        inheritance = session.inheritance
        if inheritance is not None and inheritance.is_outlived(session.expiry_s, self._broker.wall):
            session.inheritance = None
            self._broker.log.touched(session)

    def _begins(self, session: Session, frontiers: VersionVector) -> None:
        """What was published before is not for it, even if we read it later: it was owed to the session before."""
        if self._broker.sessions.get(session.client_id) is session and not session.subscriptions:
            vector = _later(self._moving.heard_up_to(), frontiers)
            session.barrier = {origin: stamp for origin, stamp in vector.items() if origin != self._moving.node}
            session_transfer.raise_barrier(self._broker, session)
            if session.expiry_s:
                self._broker.log.imported(session, snapshot(session))

    def _watch(self, session: Session) -> None:
        inheritance = session.inheritance
        if inheritance is None or not inheritance.rivals:
            return
        session_transfer.barriers_of(self._broker).watch(session)
        if session.subscriptions:
            self._broker.routes.forget_all()  # they are sorted by it
        self.questions.watch(session.client_id)

    def arrived(self, session: Session) -> None:
        """From another node, with what it knows of its rivals."""
        self._coming.pop(session.client_id, None)  # of when it was here before
        if session.inheritance is not None:
            self.questions.begin(session.client_id, session.inheritance.rivals)
        self._watch(session)
        if session.inheritance is not None:
            self._name(session, session.inheritance)
            for node in list(session.inheritance.rivals):
                if self._moving.router.link_to(node) is not None or node == self._moving.node:
                    self.questions.ask(session.client_id, node)

    def subscribed(self, session: Session, topic_filter: bytes) -> None:
        """From where on does it hear that?  From when everybody knows, and what it hears by chance before is noted."""
        inheritance = session.inheritance
        if inheritance is None:
            return
        inheritance.is_known = True
        if not inheritance.rivals or topic_filter.startswith(SHARE):
            return
        inheritance.subscribed_at = self._broker.now
        self._open(session, inheritance, topic_filter)

    def laid_by(self, session: Session) -> None:
        """What its client had just subscribed to it has not heard all along either."""
        inheritance = session.inheritance
        if inheritance is not None:
            for topic_filter in sorted(inheritance.opening):
                self._open(session, inheritance, topic_filter)

    def _open(self, session: Session, inheritance: Inheritance, topic_filter: bytes) -> None:
        inheritance.opening.add(topic_filter)
        self._moving.ask_everybody(partial(self._known, session, topic_filter))

    def _known(self, session: Session, topic_filter: bytes, frontiers: VersionVector) -> None:
        vector = _later(self._moving.heard_up_to(), frontiers)
        self._broker.commitments.in_turn(partial(self._hears, session, topic_filter, vector))

    def _hears(self, session: Session, topic_filter: bytes, vector: VersionVector) -> None:
        inheritance = session.inheritance
        if inheritance is not None and self._broker.sessions.get(session.client_id) is session:
            inheritance.opening.discard(topic_filter)
            if topic_filter in session.subscriptions and (inheritance.rivals or session.is_remains):
                inheritance.since.setdefault(topic_filter, _later(vector, session.barrier))  # it bars what was before
                self._broker.log.inherits(session)

    def node_back(self, nodes: list[str]) -> None:
        """They were away for so long that clients of ours may have begun anew over there.  From now on what comes from
        them is set aside, until they have said that it is not so."""
        for session in self._broker.sessions.values():
            if session.persistent and session.number and not session.is_moving:
                self.opened(session, nodes, is_new=False)

    def _is_coming(self, client: bytes, node: str) -> bool:
        """Unless the session was elsewhere meanwhile, or the other node is not heard from any more."""
        wait_s = max(self._moving.settings.patience_s, self._moving.settings.owner_absent_s)
        found = [(remnant, one) for remnant, one in self._coming_of(client).items() if remnant[0] == node]
        late = [remnant for remnant, one in found if self._broker.now - one.heard_at > wait_s + SETTLE_S]
        for remnant in late:
            self._forget(client, remnant)
        return len(found) > len(late)

    def _coming_of(self, client: bytes) -> dict[Remnant, Inheriting]:
        return self._coming.get(client, {})

    def _forget(self, client: bytes, remnant: Remnant) -> None:
        coming = self._coming.get(client, {})
        coming.pop(remnant, None)
        if not coming:
            self._coming.pop(client, None)

    # -- what they say --

    def came(self, source: str, message: Remains | RemainsPage | NoRemains) -> None:
        if isinstance(message, NoRemains):
            self.questions.answered(message.client, source)
        elif isinstance(message, Remains):
            self._offered(source, message)
        else:
            self._page_came(source, message)

    def _heir(self, client: bytes) -> Session | None:
        """The session here that is to have it; None if there is none, or it has to wait."""
        session = self._broker.sessions.get(client)
        owner, _ = self._moving.directory.get(client)
        if session is None or session.is_moving or owner != self._moving.node:
            return None
        return session

    def _offered(self, source: str, offer: Remains) -> None:
        client, number = offer.client, offer.number
        session = self._heir(client)
        if session is None:
            return  # it will be offered again, here or elsewhere
        inheritance = session.inheritance
        if inheritance is not None and inheritance.hears_of(source, number):
            self._moving.estates.tell_resent(session, source)
            self._broker.log.inherits(session)
            if session.connection is None:
                self._moving.estates.doubt(session, source)
            else:  # it is in doubt if the client has not been back here since, and this is what is left of before
                inheritance.suspect = (session.connection, source, self._broker.now)
        if inheritance is not None and self._is_late(inheritance, source, number):
            self.opened(session, [source], is_new=True)
        if inheritance is not None and (source, number) in inheritance.settled:
            self._moving.send(source, RemainsAck(client, number, WHOLE))
        elif (
            inheritance is None
            or source not in inheritance.rivals
            or session.user != offer.user
            or number < inheritance.clean_at
        ):
            self._moving.send(source, RemainsAck(client, number, UNWANTED))
        elif self._is_ready(session, inheritance):
            self._coming.setdefault(client, {}).setdefault((source, number), Inheriting(number, self._broker.now))
            needed: VersionVector = {}
            for since in inheritance.since.values():
                for origin, stamp in since.items():
                    needed[origin] = max(stamp, needed.get(origin, BEFORE_ALL))
            self._moving.send(source, RemainsWanted(client, number, vector_fields(needed)))

    def _is_late(self, inheritance: Inheritance, source: str, number: int) -> bool:
        """Has the session before this one gone there while we could not be told?"""
        is_unknown = source not in inheritance.rivals and (source, number) not in inheritance.settled
        return is_unknown and number < inheritance.anew_at

    def _is_ready(self, session: Session, inheritance: Inheritance) -> bool:
        """Has the client subscribed to what it wants, as far as can be known?  What it does not want is lost."""
        if inheritance.opening:
            return False
        if not inheritance.subscribed_at:
            inheritance.subscribed_at = self._broker.now
        quiet_s = self._broker.now - inheritance.subscribed_at
        if inheritance.is_known:
            return quiet_s >= SETTLE_S
        # One that stays connected and does not subscribe has been told, and wants nothing.
        return session.connection is not None and quiet_s > self._moving.settings.patience_s

    def _page_came(self, source: str, page: RemainsPage) -> None:
        coming = self._coming_of(page.client).get((source, page.number))
        session = self._heir(page.client)
        if coming is None or session is None:
            self._moving.counters.refused += 1
            if session is not None:
                self._offered(source, Remains(page.client, page.number, session.user))
        elif coming.upto is not None:
            return  # it is being added
        elif page.page < coming.pages and page.upto is None:
            self._moving.send(source, RemainsAck(page.client, page.number, page.page))
        elif page.page == coming.pages and not coming.writing and len(coming.staged) < ITEMS_MAX:
            coming.writing = True
            coming.heard_at = self._broker.now
            staged = write_down(self._broker, self._moving.node, page.items)
            self._broker.when_safe(partial(self._written, source, coming, page, staged))

    def _written(self, source: str, coming: Inheriting, page: RemainsPage, staged: list[Staged], safe: bool) -> None:
        coming.writing = False
        if not safe:
            return  # it will be sent again
        coming.staged += staged
        coming.filters += [(name, vector_from(since)) for name, since in page.filters]
        coming.early.update(identities_from(page.early))
        coming.pages = page.page + 1
        if page.upto is None:
            self._moving.send(source, RemainsAck(page.client, page.number, page.page))
        else:
            coming.added = page.added
            coming.upto = vector_from(page.upto)
            self._add(page.client, source, coming)

    # -- making one of two --

    def _add(self, client: bytes, source: str, coming: Inheriting) -> None:
        """When we have read as far as the other session had: what it has served must not be met later."""
        session = self._heir(client)
        if self._coming_of(client).get((source, coming.number)) is not coming:
            return
        if session is None or session.inheritance is None or source not in session.inheritance.rivals:
            self._forget(client, (source, coming.number))  # it has gone elsewhere meanwhile, and is offered there
            return
        assert coming.upto is not None
        if (source, coming.number) in session.inheritance.settled:
            self._added(session, source, coming, safe=True)  # it has come with another's
        elif session.inheritance.opening or self._waits_for_others(client, source, coming, session.inheritance):
            self._moving.later(LOOK_S, partial(self._add, client, source, coming))
        else:
            action = partial(self._broker.between_groups, partial(self._add_now, session, source, coming))
            when_read(self._moving, partial(self._broker.commitments.in_turn, action))  # and delivered

    def _waits_for_others(self, client: bytes, source: str, coming: Inheriting, inheritance: Inheritance) -> bool:
        """One of several sessions may have served what is left of another: nothing is added before it is known what
        each has, unless nobody hears of one for too long."""
        if self._broker.now - coming.heard_at > self._moving.settings.patience_s:
            return False
        every = self._coming_of(client)
        nodes = {node for node, _ in every}
        silent = (node for node in inheritance.rivals if node not in nodes)
        is_known = all(self.questions.has_spoken(client, node) for node in silent)
        remnant = source, coming.number
        return not is_known or any(other.upto is None or remnant in other.added for other in every.values())

    def _others(self, client: bytes, coming: Inheriting) -> list[Claim]:
        """What is to be added besides.  May raise JournalError."""
        return [
            claim(self._moving, other.coverage, other.staged)
            for other in self._coming_of(client).values()
            if other is not coming and other.upto is not None
        ]

    def _add_now(self, session: Session, source: str, coming: Inheriting) -> None:
        client, inheritance = session.client_id, session.inheritance
        if self._coming_of(client).get((source, coming.number)) is not coming:
            return
        if self._heir(client) is not session or inheritance is None:
            self._forget(client, (source, coming.number))
            return
        if (source, coming.number) in inheritance.settled:
            self._add(client, source, coming)
            return
        coverage = coming.coverage
        try:
            others = self._others(client, coming)
            merge(self._moving, session, claim(self._moving, coverage, coming.staged), coming.staged, others)
        except JournalError:
            self._moving.later(LOOK_S, partial(self._add, client, source, coming))
            return
        for packet_id in self._unreleased(session, coming):  # one that is in use here is beyond help
            session.inflight.setdefault(packet_id, None)
        for node, number in coming.added:
            if (node, number) not in inheritance.settled:
                inheritance.settle(node, number, Coverage([], {}, {}))
        inheritance.settle(source, coming.number, coverage)
        inheritance.look_ahead(self._moving.node, self._moving.router.streams.vector)
        session_transfer.watch(self._broker, session)
        self._broker.log.imported(session, snapshot(session))
        self._broker.when_safe(partial(self._added, session, source, coming))

    def _unreleased(self, session: Session, coming: Inheriting) -> list[int]:
        """Identifiers that the client keeps in mind from the other session until it hears PUBREL, unless it has been
        told since that it began anew."""
        inheritance = session.inheritance
        if inheritance is None or coming.number < inheritance.anew_at:
            return []
        return [one.packet_id for one in coming.staged if one.grant is None]

    def _added(self, session: Session, source: str, coming: Inheriting, safe: bool) -> None:
        if not safe:
            self._broker.when_safe(partial(self._added, session, source, coming))
            return
        client = session.client_id
        self._forget(client, (source, coming.number))
        self._moving.send(source, RemainsAck(client, coming.number, WHOLE))
        self.questions.ask_for_more(client, source)
        if session.connection is not None:
            self._broker.delivery.release(session, self._unreleased(session, coming))
            self._broker.delivery.pump(session)


def when_read(moving: Moving, action: Callable[[], None], asked_at: float | None = None) -> None:
    """Do this once everything that was published before now, by whom we can reach, has been read; or when that takes
    too long.  Links keep the order: who has answered has sent us all that came before."""
    asked_at = moving.broker.now if asked_at is None else asked_at
    moving.ask_everybody(partial(_answered, moving, action, asked_at))


def _answered(moving: Moving, action: Callable[[], None], asked_at: float, frontiers: VersionVector) -> None:
    router = moving.router
    is_read = all(origin in frontiers and router.streams.synced(origin) for origin in router.paths.origins)
    if is_read or moving.broker.now - asked_at > moving.settings.patience_s:
        action()
    else:
        moving.later(moving.settings.retry_s / 5, partial(when_read, moving, action, asked_at))


def _later(one: VersionVector, other: VersionVector) -> VersionVector:
    return {origin: max(one.get(origin, BEFORE_ALL), other.get(origin, BEFORE_ALL)) for origin in (*one, *other)}
