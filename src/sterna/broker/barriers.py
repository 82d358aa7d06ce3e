"""Messages that a session which came from another node has had there already.

Sessions are handed over together with the vector up to which they were served.  What this node reads of another one
after that, and what lies at or before the vector, is not for them any more.  Messages of one origin come in order, so
the first one behind the vector ends the barrier for its origin.
"""

from __future__ import annotations

from sterna.broker.routes import Route
from sterna.broker.session import Session
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.stamps import BEFORE_ALL, Identity, Stamp, VersionVector


def is_behind(barrier: VersionVector, message: Message) -> bool:
    """Has it been dealt with where the session came from?"""
    identity = message.identity
    return identity is not None and Stamp(identity.epoch, identity.sequence) <= barrier.get(identity.origin, BEFORE_ALL)


def is_served(journal: Journal, node: str, message: Message | None, vector: VersionVector) -> bool:
    """Has it been dealt with where the session came from, up to this vector (or is it gone)?"""
    if message is None:
        return True
    known = message.identity or Identity(node, journal.epoch_of(message.offset), message.offset)
    return Stamp(known.epoch, known.sequence) <= vector.get(known.origin, BEFORE_ALL)


class Barriers:
    """Those that a message may still meet, by the origin of the message."""

    __slots__ = ("_origins",)

    def __init__(self) -> None:
        self._origins: dict[str, dict[bytes, Stamp]] = {}

    def raise_for(self, session: Session) -> None:
        for origin, stamp in session.barrier.items():
            self._origins.setdefault(origin, {})[session.client_id] = stamp

    def let_through(self, route: Route, message: Message) -> Route:
        """The route without those who have had the message."""
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
        fewer = Route()
        fewer.own, fewer.shares, fewer.computed = route.own, route.shares, route.computed
        fewer.deliveries = [
            (session, grant)
            for session, grant in route.deliveries
            if session.client_id not in barred or stamp > session.barrier.get(identity.origin, BEFORE_ALL)
        ]
        return fewer

    def __len__(self) -> int:
        return len(self._origins)
