"""Messages that a session which came from another node has had there already.

Sessions are handed over together with the vector up to which they were served.  What this node reads of another one
after that, and what lies at or before the vector, is not for them any more.  Messages of one origin come in order, so
the first one behind the vector ends the barrier for its origin.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.delivery.routes import Route
from sterna.broker.expressions.result_identity import has_had
from sterna.broker.inheritance import Inheritance
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector


def is_served(journal: Journal, node: str, message: Message | None, vector: VersionVector) -> bool:
    """Has it been dealt with where the session came from, up to this vector (or is it gone)?"""
    if message is None:
        return True
    known = message.identity or Identity(node, journal.epoch_of(message.offset), message.offset)
    return Stamp(known.epoch, known.sequence) <= vector.get(known.origin, BEFORE_ALL)


def set_aside_for(inheritance: Inheritance, message: Message, node: str) -> str | None:
    """The node it comes from, if the session may have a rival there, so that it has to wait until that is known."""
    identity = message.identity
    origin = node if identity is None else identity.origin
    return origin if inheritance.may_repeat(origin) and not inheritance.is_full(origin) else None


def is_added(inheritance: Inheritance | None, message: Message | None) -> bool:
    """Had another session of the client it, whose remains came before the message did?"""
    identity = message.identity if message is not None else None
    if inheritance is None or message is None or identity is None:
        return False
    return inheritance.has_been_added(message.topic, identity)


class Barriers:
    """Those that a message may still meet, by the origin of the message."""

    __slots__ = ("_heirs", "_origins", "epoch", "node", "touched")

    def __init__(self) -> None:
        self._origins: dict[str, dict[bytes, Stamp]] = {}
        #: Sessions that may have rivals.
        self._heirs: set[bytes] = set()
        #: What messages of this node's own are called elsewhere.
        self.node = ""
        self.epoch = 0
        #: Told whose session has changed.
        self.touched: Callable[[Session], None] = lambda session: None

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
        gone: set[bytes] = set()
        for session, grant in route.deliveries:
            inheritance = session.inheritance
            if inheritance is None or not inheritance.is_watched:
                continue
            is_sure = message.qos > 0 and grant.qos > 0
            is_old = identity is not None and inheritance.is_behind(identity)
            if is_old and (not is_sure or is_added(inheritance, message)):
                gone.add(session.client_id)  # at QoS 0 rather not than twice
                continue
            if not inheritance.is_watched:
                self.unwatch(session.client_id)
            if not inheritance.rivals:
                continue
            origin = set_aside_for(inheritance, message, self.node)
            if origin is not None and is_sure:
                gone.add(session.client_id)
                inheritance.set_one_aside(origin, message.offset, grant)
                self.touched(session)
            elif origin is not None and identity is not None:
                gone.add(session.client_id)  # at QoS 0 rather not than twice
            if is_sure and message.offset >= 0:
                inheritance.hears(identity or Identity(self.node, self.epoch, message.offset))
        if not gone:
            return route
        return _without(route, [pair for pair in route.deliveries if pair[0].client_id not in gone])

    def let_through(self, route: Route, message: Message) -> Route:
        """The route without those who have had the message, or are to wait for it."""
        if message.made_of is not None:
            route = _without_told(route, message)
        elif self._origins:
            route = self._without_barred(route, message)
        return self._for_heirs(route, message) if self._heirs else route

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
