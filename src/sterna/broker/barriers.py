"""Messages that a session which came from another node has had there already.

Sessions are handed over together with the vector up to which they were served.  What this node reads of another one
after that, and what lies at or before the vector, is not for them any more.  Messages of one origin come in order, so
the first one behind the vector ends the barrier for its origin.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.inheritance import Inheritance
from sterna.broker.routes import Route
from sterna.broker.session import Session
from sterna.broker.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.vocabulary.stamps import BEFORE_ALL, Identity, Stamp, VersionVector


def is_behind(barrier: VersionVector, message: Message) -> bool:
    """Has it been dealt with where the session came from?"""
    identity = message.identity
    return identity is not None and Stamp(identity.epoch, identity.sequence) <= barrier.get(identity.origin, BEFORE_ALL)


def is_set_aside(inheritance: Inheritance, message: Message) -> bool:
    """Does it come from a node on which the session may have a rival, so that it has to wait until that is known?"""
    identity = message.identity
    if identity is None or identity.sequence < 0 or identity.origin not in inheritance.rivals:
        return False
    return not inheritance.is_full(identity.origin)


class Barriers:
    """Those that a message may still meet, by the origin of the message."""

    __slots__ = ("_heirs", "_origins", "own_identity")

    def __init__(self) -> None:
        self._origins: dict[str, dict[bytes, Stamp]] = {}
        #: Sessions that may have rivals.
        self._heirs: set[bytes] = set()
        #: What a message of this node's own is called elsewhere.
        self.own_identity: Callable[[Message], Identity] | None = None

    def raise_for(self, session: Session) -> None:
        for origin, stamp in session.barrier.items():
            self._origins.setdefault(origin, {})[session.client_id] = stamp

    def watch(self, session: Session) -> None:
        """From here on what comes for it is looked at, as long as it may have rivals."""
        self._heirs.add(session.client_id)

    def unwatch(self, client_id: bytes) -> None:
        self._heirs.discard(client_id)

    def _for_heirs(self, route: Route, message: Message) -> Route:
        """The route without those for whom the message is set aside; and who hears it early."""
        identity = message.identity
        if identity is not None and identity.sequence < 0:
            return route
        gone: set[bytes] = set()
        for session, grant in route.deliveries:
            inheritance = session.inheritance
            if inheritance is None or not inheritance.rivals:
                continue
            if is_set_aside(inheritance, message):
                gone.add(session.client_id)
                if message.qos and grant.qos and identity is not None:
                    inheritance.set_one_aside(identity.origin, message.offset, grant)
            elif inheritance.opening and message.offset >= 0 and self.own_identity is not None:
                inheritance.heard(identity or self.own_identity(message))
        if not gone:
            return route
        return _without(route, [pair for pair in route.deliveries if pair[0].client_id not in gone])

    def let_through(self, route: Route, message: Message) -> Route:
        """The route without those who have had the message."""
        if self._heirs:
            route = self._for_heirs(route, message)
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


def _without(route: Route, deliveries: list[tuple[Session, Grant]]) -> Route:
    fewer = Route()
    fewer.own, fewer.shares, fewer.computed, fewer.counted = route.own, route.shares, route.computed, route.counted
    fewer.deliveries = deliveries
    return fewer
