"""What a session knows about others of the same client, which nodes that cannot be reached may have: its *rivals*.

A session that is opened while nodes are missing may turn out to be one of two.  So that both can be made one when the
nodes are back, it keeps from where on it has heard what it subscribed to, and sets aside what comes from a missing node
once that is back: the session over there may have served it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.subscriptions import Grant, Subscription, merge
from sterna.mqtt.message import Message
from sterna.mqtt.topics import SHARE, levels_of, matches
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

if TYPE_CHECKING:
    from sterna.broker.session.connection import Connection
    from sterna.broker.session.session import Session

#: Messages set aside for one session and one origin; past it they go on, and may come twice.
SET_ASIDE_MAX: Final = 10_000
#: Messages remembered that came while a subscription was being told to everybody.
EARLY_MAX: Final = 10_000

#: Sessions of one node whose remains have come, that are kept in mind: the last ones.
SETTLED_A_NODE: Final = 8

#: A rival whose name is not known: the node has forgotten whom it knew, and has met nobody since.
SOMEBODY: Final = ""

#: What sessions are called of which only the remains are left; no client can have such a name.
REMAINS: Final = b"\0remains/"


def remains_key(client_id: bytes, number: int) -> bytes:
    """What is left of the session that this node owned under this number."""
    return REMAINS + b"%d/" % number + client_id


def owner_of(key: bytes) -> tuple[bytes, int]:
    """The client, and the number, of such a session; of any other its own name."""
    if not key.startswith(REMAINS):
        return key, 0
    number, _, client_id = key[len(REMAINS) :].partition(b"/")
    return client_id, int(number)


VectorFields = list[tuple[str, int, int]]


class Coverage(NamedTuple):
    """What another session of the client was in charge of: for each filter from where on, and up to where; and what it
    heard before that all the same."""

    filters: list[tuple[bytes, VersionVector]]
    upto: VersionVector
    early: dict[Identity, None]

    def covers(self, topic: bytes, identity: Identity) -> bool:
        if identity in self.early:
            return True
        stamp = identity.stamp
        if stamp > self.upto.get(identity.origin, BEFORE_ALL):
            return False
        levels = levels_of(topic)
        return any(
            stamp > since.get(identity.origin, BEFORE_ALL) and matches(levels_of(topic_filter), levels)
            for topic_filter, since in self.filters
        )


class Inheritance:
    __slots__ = (
        "ahead",
        "anew_at",
        "clean_at",
        "early",
        "heard_of",
        "is_known",
        "is_new",
        "opening",
        "resent",
        "rivals",
        "set_aside",
        "settled",
        "since",
        "subscribed_at",
        "suspect",
    )

    def __init__(self, *, is_new: bool) -> None:
        #: It began while nodes were missing; else it was there before.
        self.is_new = is_new
        #: Under which number that was; what was handed over under an earlier one is not in it.
        self.anew_at = 0
        #: Under which number its client wanted nothing of what was before; 0 if it did not say so.
        self.clean_at = 0
        #: Its client knows that; until then it is told again.
        self.is_known = not is_new
        #: Nodes that were missing and have not said what they have.
        self.rivals: dict[str, None] = {}
        #: filter -> what came before was not heard; a filter that is not here has been heard all along.
        self.since: dict[bytes, VersionVector] = {}
        #: Heard all the same: while the filter was being told to everybody, or read only then.
        self.early: dict[Identity, None] = {}
        #: Filters that are being told to everybody.
        self.opening: set[bytes] = set()
        #: node -> the number of the last session there of which it has been heard that its client had begun that anew.
        self.heard_of: dict[str, int] = {}
        #: Messages in doubt that were sent again when its client came back while nodes were missing.
        self.resent = 0
        #: The connection it had then, with that node and the time: nobody may be at the other end; not written down.
        self.suspect: tuple[Connection, str, float] | None = None
        #: When its client subscribed to something last; not written down.
        self.subscribed_at = 0.0
        #: (node, number) of sessions whose remains have come -> what they were in charge of.
        self.settled: dict[tuple[str, int], Coverage] = {}
        #: origin -> how far another session had read it whose remains have come, where we have not; not written down.
        self.ahead: VersionVector = {}
        #: origin -> what came from there and waits until its rivals have spoken.
        self.set_aside: dict[str, OffsetQueue[Grant]] = {}

    @property
    def says_nothing(self) -> bool:
        """Is it as if there had never been another session?"""
        is_plain = not self.is_new and not self.clean_at and not self.settled and not self.since
        return is_plain and not self._is_undecided

    @property
    def is_watched(self) -> bool:
        """Is what comes for it to be looked at?"""
        return bool(self.rivals or self.ahead)

    @property
    def _is_undecided(self) -> bool:
        return bool(self.rivals or self.opening or self.set_aside) or not self.is_known

    def is_outlived(self, expiry_s: int, wall: float) -> bool:
        """Would those that were before it have expired by now, wherever they are?  Numbers are taken from the clock."""
        began = max(self.anew_at, self.clean_at, *(number for _, number in self.settled), 0) / 1000
        return not self._is_undecided and wall - began > expiry_s

    def hears_of(self, node: str, number: int) -> bool:
        """There is something left of another session.  Is that new to us, and of one that began after this one?"""
        is_new = node in self.rivals and number >= self.anew_at and number > self.heard_of.get(node, -1)
        if is_new:
            self.heard_of[node] = number
        return is_new

    def coverage(self, filters: Iterable[bytes], upto: VersionVector) -> Coverage:
        since = [(name, self.since.get(name, {})) for name in filters if not name.startswith(SHARE)]
        return Coverage(since, upto, self.early)

    def set_one_aside(self, origin: str, offset: int, grant: Grant) -> None:
        self.set_aside.setdefault(origin, OffsetQueue()).push(offset, grant)

    def may_repeat(self, origin: str) -> bool:
        """May another session have served what comes from there?  That of a rival, or of one who knew
        a node that we have met only now."""
        is_unheard_of = bool(self.since) and not any(origin in since for since in self.since.values())
        return origin in self.rivals or (is_unheard_of and self.is_new)

    def is_full(self, origin: str) -> bool:
        return origin in self.set_aside and len(self.set_aside[origin]) >= SET_ASIDE_MAX

    def hears(self, identity: Identity) -> None:
        """A message comes; noted if by `since` it would not be thought of as heard."""
        stamp, origin = identity.stamp, identity.origin
        is_early = self.opening or any(stamp <= since.get(origin, BEFORE_ALL) for since in self.since.values())
        if is_early and len(self.early) < EARLY_MAX:
            self.early[identity] = None

    def has_heard(self, filters: Iterable[bytes], topic: bytes, identity: Identity) -> bool:
        """Has the session had this message, or will it have it by itself?"""
        if self.has_been_added(topic, identity):
            return True
        levels = levels_of(topic)
        for name in filters:
            if name.startswith(SHARE) or not matches(levels_of(name), levels):
                continue
            since = self.since.get(name)
            if since is None or identity.stamp > since.get(identity.origin, BEFORE_ALL):
                return True
        return False

    def has_been_added(self, topic: bytes, identity: Identity) -> bool:
        """Was it served by a session whose remains have come, or came with them; or heard early?"""
        return identity in self.early or any(one.covers(topic, identity) for one in self.settled.values())

    def look_ahead(self, node: str, read: VersionVector) -> None:
        """What others had read and we have not is yet to come, though it has been had or is here."""
        ahead: VersionVector = {}
        for origin, stamp in (
            *(entry for coverage in self.settled.values() for entry in coverage.upto.items()),
            *((identity.origin, identity.stamp) for identity in self.early),
        ):
            if origin != node and stamp > max(read.get(origin, BEFORE_ALL), ahead.get(origin, BEFORE_ALL)):
                ahead[origin] = stamp
        self.ahead = ahead

    def is_behind(self, identity: Identity) -> bool:
        """Had another session read as far?  Messages of one origin come in order."""
        upto = self.ahead.get(identity.origin)
        if upto is None or identity.sequence < 0:
            return False
        if identity.stamp > upto:
            del self.ahead[identity.origin]
            return False
        return True

    def settle(self, node: str, number: int, coverage: Coverage) -> None:
        self.settled[node, number] = coverage
        numbers = sorted(one for name, one in self.settled if name == node)
        for old in numbers[:-SETTLED_A_NODE]:
            del self.settled[node, old]

    def let_go(self, origins: list[str]) -> list[tuple[int, Grant]]:
        """They have spoken, or nobody waits for that any more: what came from there."""
        let_go: list[tuple[int, Grant]] = []
        for origin in origins:
            self.rivals.pop(origin, None)
        for origin in list(origins) if self.rivals else list(self.set_aside):
            waiting = self.set_aside.pop(origin, None)
            if waiting is not None:
                let_go += waiting
        if not self.rivals:
            self.resent = 0
        return let_go  # what it has heard is kept in mind: somebody may have had a session all the same

    # -- as it is written down --

    def fields(self) -> list[Any]:
        settled = [
            (
                node,
                number,
                [(name, vector_fields(since)) for name, since in coverage.filters],
                vector_fields(coverage.upto),
                [tuple(identity) for identity in coverage.early],
            )
            for (node, number), coverage in self.settled.items()
        ]
        since = [(name, vector_fields(vector)) for name, vector in self.since.items()]
        return [
            self.is_new,
            self.anew_at,
            self.clean_at,
            self.is_known,
            list(self.rivals),
            settled,
            since,
            [tuple(identity) for identity in self.early],
            list(self.heard_of.items()),
            self.resent,
        ]


def inheritance_from(fields: list[Any]) -> Inheritance:
    is_new, anew_at, clean_at, is_known, rivals, settled, since, early, *more = fields
    found = Inheritance(is_new=is_new)
    found.anew_at, found.clean_at = anew_at, clean_at
    found.is_known = is_known
    found.rivals = dict.fromkeys(rivals)
    for node, number, filters, upto, *heard in settled:  # an older release did not say what was heard early
        since_of = [(name, vector_from(vector)) for name, vector in filters]
        found.settled[node, number] = Coverage(since_of, vector_from(upto), identities_from(*heard))
    found.since = {name: vector_from(vector) for name, vector in since}
    found.early = identities_from(early)
    if more:  # an older release did not say so
        found.heard_of, found.resent = dict(more[0]), more[1]
    return found


def in_doubt(session: Session) -> list[int]:
    """What was sent at QoS 2: only the client knows whether it has it."""
    return [
        packet_id
        for packet_id, entry in session.inflight.items()
        if entry is not None and min(entry[0].qos, entry[1].qos) == 2
    ]


def sure_filters(session: Session) -> list[bytes]:
    """Those a session is in charge of: at QoS 0 nothing waits for a client that is away."""
    return [name for name, subscription in session.subscriptions.items() if subscription.qos]


def vector_fields(vector: VersionVector) -> VectorFields:
    return [(origin, *stamp) for origin, stamp in vector.items()]


def vector_from(fields: Iterable[tuple[str, int, int]]) -> VersionVector:
    return {origin: Stamp(epoch, sequence) for origin, epoch, sequence in fields}


def identities_from(fields: Iterable[tuple[str, int, int]] = ()) -> dict[Identity, None]:
    return {Identity(*identity): None for identity in fields}


def grant_now(subscriptions: Iterable[Subscription], message: Message, client_id: bytes) -> Grant | None:
    """How a message that comes late goes to whoever has these subscriptions now; None if it does not."""
    levels = levels_of(message.topic)
    mine = message.publisher == client_id
    wanted = [
        one
        for one in subscriptions
        if one.qos
        and not one.topic_filter.startswith(SHARE)
        and not (mine and one.no_local)
        and matches(levels_of(one.topic_filter), levels)
    ]
    return merge(wanted) if wanted else None
