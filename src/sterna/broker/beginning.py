"""How a session began that takes the place of another one, which a node that could not be reached may still have.

The new session records where each of its subscriptions begins to hear every origin.  The old session is in charge of
all that was published before.  When the old node returns, it hands over what waited there, and these records tell
which of it the new session has not heard (`migration/new_sessions.py`, `migration/fenced_sessions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sterna.broker.session.subscriptions import Grant, Subscription, merge
from sterna.journal.session_state import BeginningState
from sterna.mqtt.message import Message
from sterna.mqtt.topics import SHARE, levels_of, matches
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

if TYPE_CHECKING:
    from sterna.broker.session.connection import Connection
    from sterna.broker.session.session import Session

#: Messages at QoS 2 remembered that came while a subscription was being told to everybody.
EARLY_MAX: Final = 10_000

#: Hand-overs remembered by one session: the last ones.
TAKEN_OVER_MAX: Final = 32
#: Of how many of those sessions it is remembered what they had heard.
BEFORE_MAX: Final = 8

#: Stands for all nodes that a session was not in step with when it began, whether their names were known or not.
OTHERS: Final = ""

#: Names of fenced sessions begin so; no client can have such a name.
FENCED: Final = b"\0fenced/"

VectorFields = list[tuple[str, int, int]]


def fenced_key(client_id: bytes, number: int) -> bytes:
    """The name of a session that this node owned under this number, once another node owns the client's."""
    return FENCED + b"%d/" % number + client_id


def owner_of(key: bytes) -> tuple[bytes, int]:
    """The client and the number of a fenced session; of any other session its own name."""
    if not key.startswith(FENCED):
        return key, 0
    number, _, client_id = key[len(FENCED) :].partition(b"/")
    return client_id, int(number)


class Beginning:
    __slots__ = (
        "_horizon",
        "after",
        "before",
        "began_at",
        "early",
        "is_clean",
        "is_told",
        "left_to_old",
        "number",
        "opening",
        "resumed",
        "since",
        "subscribed_at",
        "taken_over",
        "told_at",
        "told_by",
        "went_back",
    )

    def __init__(self, number: int, after: int) -> None:
        #: The number under which it began.
        self.number = number
        #: The number of the session it replaces, as it was known here; 0 if none was known.
        self.after = after
        #: When it began, by the time that its node has run.
        self.began_at = 0.0
        #: Its client asked for a clean start: nothing of the old session is for it.
        self.is_clean = False
        #: Its client knows that the session is new; until then Session Present stays 0.
        self.is_told = False
        #: The connection that was told last, and when; not written down.
        self.told_by: Connection | None = None
        self.told_at = 0.0
        #: filter -> the vector from which on it hears; a filter that is not here has been heard all along.
        self.since: dict[bytes, VersionVector] = {}
        #: The latest of them, by origin.
        self._horizon: VersionVector = {}
        #: Filters that are being told to everybody.
        self.opening: set[bytes] = set()
        #: When its client subscribed to something last; not written down.
        self.subscribed_at = 0.0
        #: Messages at QoS 2 that it heard although they are not after `since`.
        self.early: dict[Identity, None] = {}
        #: Origins -> the last message at QoS 2 that was left to the old session, which may have delivered it.  With
        #: OTHERS in it all are left that are not in `resumed`: those that it was not in step with when it began.
        self.left_to_old: VersionVector = {}
        #: Origins that it hears at QoS 2 -> from where on.
        self.resumed: VersionVector = {}
        #: (node, number) of old sessions that its client went back to after this one had begun.
        self.went_back: dict[tuple[str, int], None] = {}
        #: (node, number) of old sessions that have handed over.
        self.taken_over: dict[tuple[str, int], None] = {}
        #: How those of them began that had taken an older session's place.
        self.before: list[Beginning] = []

    @property
    def has_heard_of_it(self) -> bool:
        """A packet that came after CONNACK shows that the client has read it."""
        return self.is_told or (self.told_by is not None and self.told_by.heard_at > self.told_at)

    def welcomed(self, connection: Connection, now: float) -> None:
        """Its client is being told now."""
        self.is_told = self.has_heard_of_it
        self.told_by, self.told_at = connection, now

    def left(self) -> None:
        """DISCONNECT does not show it: a gateway says that for a client that it has not told yet."""
        self.told_by = None

    def leave_others(self, in_step: Iterable[str]) -> None:
        """Messages at QoS 2 of all nodes but these are the old session's to deliver, until they are heard from."""
        self.left_to_old[OTHERS] = BEFORE_ALL
        self.resumed = dict.fromkeys(in_step, BEFORE_ALL)

    def leaves(self, origin: str) -> bool:
        """Is the old session in charge of all messages at QoS 2 that come from there?"""
        return origin in self.left_to_old or (OTHERS in self.left_to_old and origin not in self.resumed)

    def leaves_to_old(self, identity: Identity) -> bool:
        """Is this message at QoS 2 for the old session to deliver?"""
        return self.leaves(identity.origin) or identity.stamp <= self.resumed.get(identity.origin, BEFORE_ALL)

    def note_left(self, identity: Identity) -> None:
        if self.leaves(identity.origin):
            _raise(self.left_to_old, {identity.origin: identity.stamp})

    def begins(self, topic_filter: bytes, vector: VersionVector) -> None:
        """From where on it hears a filter is known."""
        self.opening.discard(topic_filter)
        if topic_filter not in self.since:
            self.since[topic_filter] = vector
            _raise(self._horizon, vector)

    def hears(self, identity: Identity) -> None:
        """A message at QoS 2 comes; noted if by `since` it may not be taken as heard."""
        is_early = self.opening or identity.stamp <= self._horizon.get(identity.origin, BEFORE_ALL)
        if is_early and len(self.early) < EARLY_MAX:
            self.early[identity] = None

    def has_heard(self, filters: Iterable[bytes], topic: bytes, identity: Identity, qos: int) -> bool:
        """Has the session had this message, or will it have it by itself?"""
        if identity in self.early:
            return True
        if qos == 2 and self.leaves_to_old(identity):
            return False
        levels = levels_of(topic)
        for name in filters:
            if name.startswith(SHARE) or not matches(levels_of(name), levels):
                continue
            since = self.since.get(name)
            if since is None or identity.stamp > since.get(identity.origin, BEFORE_ALL):
                return True
        return False

    def resume(self, origin: str, stamp: Stamp) -> None:
        """From here on it hears this origin at QoS 2, too."""
        left = self.left_to_old.pop(origin, BEFORE_ALL)
        self.resumed[origin] = max(stamp, left, self.resumed.get(origin, BEFORE_ALL))

    def needed(self) -> VersionVector:
        """How far the old session has to read on."""
        needed = dict(self._horizon)
        _raise(needed, self.resumed)
        _raise(needed, self.left_to_old)
        needed.pop(OTHERS, None)
        return needed

    def replaces(self, theirs: Beginning | None, upto: VersionVector) -> None:
        """The session whose place it took has handed over, up to this vector.  Only what that one had left to an older
        one is left now."""
        for origin in [*self.left_to_old, *upto]:
            if origin != OTHERS and self.leaves(origin) and (theirs is None or not theirs.leaves(origin)):
                self.resume(origin, upto.get(origin, BEFORE_ALL))
        if self.after and (theirs is None or OTHERS not in theirs.left_to_old):
            self.left_to_old.pop(OTHERS, None)

    def took_over(self, node: str, number: int, theirs: Beginning | None) -> None:
        """An old session has handed over."""
        self.taken_over[node, number] = None
        if theirs is not None:
            self.taken_over.update(theirs.taken_over)
            self.before = [*self.before, *theirs.before, theirs][-BEFORE_MAX:]
            theirs.before = []
        for old in list(self.taken_over)[:-TAKEN_OVER_MAX]:
            del self.taken_over[old]

    def may_be_had(self, topic: bytes, identity: Identity) -> bool:
        """Can a session that it has taken over have delivered this message of an older one at QoS 2?"""
        return any(one.has_heard(list(one.since), topic, identity, 2) for one in self.before)

    def state(self) -> BeginningState:
        """As it is written down, and told to other nodes."""
        return BeginningState(
            self.number,
            self.after,
            self.is_clean,
            self.has_heard_of_it,
            [(name, vector_fields(vector)) for name, vector in self.since.items()],
            list(self.early),
            vector_fields(self.left_to_old),
            vector_fields(self.resumed),
            list(self.taken_over),
            [one.state() for one in self.before],
            list(self.went_back),
            self.began_at,
        )


def beginning_from(state: BeginningState) -> Beginning:
    found = Beginning(state.number, state.after)
    found.is_clean, found.is_told = state.is_clean, state.is_told
    for name, vector in state.since:
        found.begins(name, vector_from(vector))
    found.early = {Identity(*identity): None for identity in state.early}
    found.left_to_old, found.resumed = vector_from(state.left_to_old), vector_from(state.resumed)
    found.taken_over = dict.fromkeys(state.taken_over)
    found.before = [beginning_from(one) for one in state.before]
    found.went_back = dict.fromkeys(state.went_back)
    found.began_at = state.began_at
    return found


def _raise(vector: VersionVector, other: VersionVector) -> None:
    for origin, stamp in other.items():
        vector[origin] = max(stamp, vector.get(origin, BEFORE_ALL))


def in_doubt(session: Session) -> list[int]:
    """Packet identifiers of messages at QoS 2 that were sent: only the client knows whether it has them."""
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


def grant_now(subscriptions: Iterable[Subscription], message: Message, client_id: bytes) -> Grant | None:
    """How a message that comes late goes to a client that has these subscriptions now; None if it does not."""
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
