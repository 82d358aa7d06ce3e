"""Messages that a session which came from another node has had there already.

Sessions are handed over together with the vector up to which they were served.  Messages at or before the vector that
this node reads of another one after that are not for them any more.  Messages of one origin come in order, so the first
one behind the vector ends the barrier for its origin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sterna.broker.delivery.routes import Route
from sterna.broker.expressions.result_identity import has_had
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

#: Why a message is dropped that another session of the client may have delivered.
OWNED_ELSEWHERE: Final[DropReason] = "owned-elsewhere"


def is_served(journal: Journal, node: str, message: Message | None, vector: VersionVector) -> bool:
    """Has it been dealt with where the session came from, up to this vector (or is it gone)?"""
    if message is None:
        return True
    known = message.identity or Identity(node, journal.epoch_of(message.offset), message.offset)
    return Stamp(known.epoch, known.sequence) <= vector.get(known.origin, BEFORE_ALL)


class Barriers:
    """Those that a message may still meet, by the origin of the message."""

    __slots__ = ("_new_sessions", "_origins", "dropped", "epoch", "left", "node")

    def __init__(self) -> None:
        self._origins: dict[str, dict[bytes, Stamp]] = {}
        #: Clients whose sessions may have taken the place of others: what comes for them at QoS 2 is looked at.
        self._new_sessions: set[bytes] = set()
        #: Name and epoch in the identities of this node's own messages.
        self.node = ""
        self.epoch = 0
        #: Told the reason for which a message at QoS 0 is dropped.
        self.dropped: Callable[[DropReason], None] = lambda reason: None
        #: Told that a message at QoS 2 is left to an old session.
        self.left: Callable[[], None] = lambda: None

    def raise_for(self, session: Session) -> None:
        for origin, stamp in session.barrier.items():
            self._origins.setdefault(origin, {})[session.client_id] = stamp

    def watch(self, session: Session) -> None:
        self._new_sessions.add(session.client_id)

    def unwatch(self, client_id: bytes) -> None:
        self._new_sessions.discard(client_id)

    def _for_new_sessions(self, route: Route, message: Message) -> Route:
        """The route without those whose old sessions are in charge of the message."""
        identity = message.identity or Identity(self.node, self.epoch, message.offset)
        left: set[bytes] = set()
        for session, grant in route.deliveries:
            beginning, qos = session.beginning, min(message.qos, grant.qos)
            if beginning is None or qos == 1 or session.client_id not in self._new_sessions:
                continue
            if beginning.leaves_to_old(identity):
                left.add(session.client_id)
                if qos:
                    beginning.note_left(identity)
                    self.left()
                else:
                    self.dropped(OWNED_ELSEWHERE)  # at QoS 0 rather not than twice
            elif qos:
                beginning.hears(identity)
        if not left:
            return route
        return _without(route, [pair for pair in route.deliveries if pair[0].client_id not in left])

    def let_through(self, route: Route, message: Message) -> Route:
        """The route without those who have had the message, or get it from an old session."""
        if message.made_of is not None:
            route = _without_told(route, message)
        elif self._origins:
            route = self._without_barred(route, message)
        if self._new_sessions and (message.identity is not None or (message.qos == 2 and message.offset >= 0)):
            route = self._for_new_sessions(route, message)
        return route

    def _without_barred(self, route: Route, message: Message) -> Route:
        identity = message.identity
        barred = self._origins.get(identity.origin) if identity is not None else None
        if identity is None or not barred or identity.sequence < 0:
            return route
        stamp = Stamp(identity.epoch, identity.sequence)
        for client_id in [client_id for client_id, upto in barred.items() if stamp > upto]:
            del barred[client_id]
        if not barred:
            del self._origins[identity.origin]
            return route
        deliveries = [
            (session, grant)
            for session, grant in route.deliveries
            if session.client_id not in barred or stamp > session.barrier.get(identity.origin, BEFORE_ALL)
        ]
        return _without(route, deliveries)

    def __len__(self) -> int:
        return len(self._origins)


def _without_told(route: Route, result: Message) -> Route:
    """Of what sessions on their way here have had nobody can tell yet."""
    deliveries: list[tuple[Session, Grant]] = []
    for session, grant in route.deliveries:
        if has_had(session, result):
            continue
        if session.is_arriving and session.held is not None:
            session.held.note_result(result)
        deliveries.append((session, grant))
    return route if len(deliveries) == len(route.deliveries) else _without(route, deliveries)


def _without(route: Route, deliveries: list[tuple[Session, Grant]]) -> Route:
    fewer = Route()
    fewer.own, fewer.shares, fewer.computed, fewer.counted = route.own, route.shares, route.computed, route.counted
    fewer.deliveries = deliveries
    return fewer
