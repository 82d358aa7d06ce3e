"""Moves that somebody planned: one client to another node, or all of them because this node shall be emptied.

Few client libraries follow a Server Reference, some give up when they get one, and most take any CONNACK that refuses
them for final.  So a client is sent away once: its connection is closed, with a reference if the operator wants that.
If it comes back to its old node it knows no other, and its session is brought back here, also while the node is being
emptied.  A client that comes to such a node and has not been sent away by it is closed once without a CONNACK: if it
has a list of servers it tries another one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sterna.broker.foreign import is_foreign
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.session import Session
from sterna.migration.departure import Departure
from sterna.migration.directory import Directory
from sterna.migration.messages import Evacuate, Migrate
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import CLIENT_IS_BACK, NOT_COME, TOO_MUCH_ARRIVES, has_room, pause_s
from sterna.migration.moves_put_off import MovesPutOff
from sterna.migration.tables import DepartureState
from sterna.mqtt import gateway_packets
from sterna.mqtt import properties as prop
from sterna.mqtt.gateway_packets import Cancel, GatewayStopped, Prepare, Redirect
from sterna.mqtt.packets import MQTT_5, encode_disconnect, encode_redirection
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import MigrationError

#: Clients that were turned away from a node that is being emptied, of whom that is remembered.
TURNED_AWAY_MAX = 10_000
#: A client that was turned away and comes again within so many seconds knows no other node.
RETURN_S = 60.0
#: Moves that came to nothing, of which `/migrations` tells.
NOT_MOVED_SHOWN = 20
BEING_EMPTIED = "this node is being emptied"
#: Nodes that are named to somebody who asked for another one.
NODES_NAMED = 10
#: The version of links from which on a node is ready for a client before it has said so.
CALLED_AT_ONCE_SINCE = 13
#: A node that took a client within so many seconds is as good as asked about the next one of the same user,
TAKEN_LATELY_S = 60.0
#: and so many of them are remembered.
TAKEN_MAX = 1000
#: How often an evacuation looks for more clients to move.
STEP_S = 0.1
#: The pause before a client is tried again is doubled so many times: to half a minute from half a second.
PAUSES = 6


class OfferPause(NamedTuple):
    tries: int
    until: float


@dataclass(slots=True)
class Evacuation:
    """A node that is being emptied; it stays empty until it is told otherwise, also if it is started again."""

    total: int
    rate: float
    moved: int = 0
    sent_away: int = 0
    failed: int = 0
    """Moves that did not come about; they are tried again, after pauses that grow."""
    turn: int = 0
    allowance: float = 0.0
    waiting: dict[bytes, OfferPause] = field(default_factory=dict)
    """Clients that could not be moved."""
    turned_away: dict[bytes, float] = field(default_factory=dict)
    """Clients whose connections were closed because the node is being emptied -> when."""
    staying: dict[bytes, Connection] = field(default_factory=dict)
    """Clients that came back all the same: they are served here for as long as they are connected."""

    def wait(self, client: bytes, now: float, retry_s: float) -> None:
        tries = self.waiting[client].tries if client in self.waiting else 0
        self.waiting[client] = OfferPause(tries + 1, now + pause_s(retry_s, min(tries, PAUSES)))

    def waits(self, client: bytes, now: float) -> bool:
        return client in self.waiting and self.waiting[client].until > now

    def turn_away(self, client: bytes, now: float) -> None:
        self.turned_away.pop(client, None)
        self.turned_away[client] = now
        if len(self.turned_away) > TURNED_AWAY_MAX:
            del self.turned_away[next(iter(self.turned_away))]


class NotMoved(NamedTuple):
    client: bytes
    target: str
    reason: str
    at: float


class _Taken(NamedTuple):
    """A node has said that it would take a client."""

    at: float
    answer_s: float
    """The least of the last minute: that of a crowd says how long its queue was, not how far the node is."""
    answered_at: float
    ways: dict[str, int]
    """Digests of all ways at the time."""

    def counts_more(self, answer_s: float, now: float, ways: dict[str, int]) -> bool:
        """Than an answer of now."""
        return self.answer_s <= answer_s and now - self.answered_at <= TAKEN_LATELY_S and self.ways == ways


class PlannedMoves:
    def __init__(
        self,
        host: MoveHost,
        directory: Directory,
        departures: Mapping[bytes, Departure],
        depart: Callable[[Session, str], None],
    ) -> None:
        """`depart`: begin to move a session to a node."""
        self._host = host
        self._directory = directory
        self._departures = departures
        self._depart = depart
        self._broker = host.broker
        self.evacuation: Evacuation | None = None
        #: The last of them that did not come about, for an operator who ordered them at another node.
        self.not_moved: deque[NotMoved] = deque(maxlen=NOT_MOVED_SHOWN)
        #: By node and user, the last one.
        self._taken: dict[tuple[str, str | None], _Taken] = {}
        self._put_off = MovesPutOff(host, self._move_after_all)
        if self._broker.state.evacuated_at:
            self._begin(self._broker.state.evacuated_at)

    # -- one client --

    def move(self, client: bytes, target: str) -> str:
        """Begin to move a client's session; the node that does it.  MigrationError if nobody can."""
        owner, _ = self._directory.get(client)
        session = self._broker.sessions.get(client)
        self._see_that_it_can_go_to(target)
        if session is not None and not session.is_arriving:
            self._move(session, target)
            self._put_off.forget(client)
            return self._host.node
        if session is not None:
            raise MigrationError(f"client {client.decode()!r} is on its way already")
        if not owner or owner == self._host.node:
            raise MigrationError(f"no node has a session of client {client.decode()!r} that outlives its connection")
        if owner == target:
            raise MigrationError(f"client {client.decode()!r} is at node {target} already")
        if self._host.router.link_to(owner) is None:
            raise MigrationError(f"its session is at node {owner}, which cannot be reached")
        self._host.send(owner, Migrate(client, 0, target))
        return owner

    def _see_that_it_can_go_to(self, target: str) -> None:
        if target == self._host.node:
            is_closed = self.evacuation is not None
        else:
            self._see_that_it_can_be_reached(target)
            is_closed = target not in self._host.router.paths.open_origins
        if is_closed:
            raise MigrationError(f"node {target} is being emptied")

    def _see_that_it_can_be_reached(self, node: str) -> None:
        paths = self._host.router.paths
        if paths.link_to(node) is None:
            others = sorted(paths.origins)
            named = ", ".join([*others[:NODES_NAMED], *(["..."] if len(others) > NODES_NAMED else [])])
            reaches = f"node {self._host.node} reaches {named or 'no other'}"
            raise MigrationError(f"node {node} cannot be reached; {reaches}")

    def _move(self, session: Session, target: str) -> None:
        if target == self._host.node:
            raise MigrationError(f"client {session.name()!r} is at node {target} already")
        if session.client_id in self._departures or session.is_moving:
            raise MigrationError(f"client {session.name()!r} is on its way already")
        if not session.persistent:
            raise MigrationError(f"the session of client {session.name()!r} ends with its connection")
        if is_foreign(session):
            raise MigrationError(f"{session.name()!r} is the broker that node {self._host.node} is attached to")
        if not has_room(self._departures.values(), self._host.settings.at_once):
            raise MigrationError(f"{len(self._departures)} clients are on their way already")
        self._depart(session, target)

    def ordered(self, source: str, order: Migrate) -> None:
        """Another node was asked to; what comes of it is seen here."""
        session = self._broker.sessions.get(order.client)
        try:
            if session is None:
                raise MigrationError(f"node {self._host.node} has no session of client {order.client.decode()!r}")
            self._see_that_it_can_go_to(order.target)
            self._move(session, order.target)
            self._put_off.forget(order.client)
        except MigrationError as error:
            self._is_not_moved(order.client, order.target, str(error))

    def _move_after_all(self, client: bytes, target: str) -> None:
        """The other node had no room for it before."""
        session = self._broker.sessions.get(client)
        if session is None or session.is_moving or client in self._departures:
            self._put_off.forget(client)  # it has gone, or is on its way
            return
        try:
            self._see_that_it_can_go_to(target)
            self._move(session, target)
        except MigrationError as error:
            if not self._put_off.is_put_off(client, target, self._broker.now):
                self._is_not_moved(client, target, str(error))

    def client_is_back(self, client: bytes) -> None:
        """It may have been sent, and knows no other node."""
        if (target := self._put_off.forget(client)) is not None:
            self._is_not_moved(client, target, CLIENT_IS_BACK)

    def _is_not_moved(self, client: bytes, target: str, reason: str) -> None:
        self.not_moved.append(NotMoved(client, target, reason, self._broker.now))
        what = {"client": client.decode(), "reason": reason, "target": target}
        self._broker.tell("a client is not moved", what)

    # -- what clients are told --

    def is_led(self, connection: Connection, target: str) -> bool:
        return connection.may_be_led and bool(self._host.router.paths.clients_of(target))

    def is_redirected(self, connection: Connection, target: str) -> bool:
        is_led = self.is_led(connection, target)
        return not is_led and bool(connection.gateway and self._host.router.paths.clients_of(target))

    def farewell(self, connection: Connection, target: str) -> bytes:
        if self.evacuation is not None and connection.session is not None:
            self.evacuation.turn_away(connection.session.client_id, self._broker.now)
        server = self._host.router.paths.clients_of(target)
        if connection.gateway and server:
            return gateway_packets.encode(Redirect(server))
        if connection.version != MQTT_5 or not self._host.settings.server_references:
            return b""
        code = Reason.USE_ANOTHER_SERVER if self.evacuation is None else Reason.SERVER_MOVED
        bare = encode_disconnect(code)
        return connection.within_limit(encode_redirection(code, server) if server else bare, bare)

    def may_be_called(self, session: Session, target: str) -> bool:
        """It took one of this user lately, has answered sooner than the client could have, and no way has changed
        since."""
        found = self._taken.get((target, session.user))
        is_known = self._host.router.paths.version_of(target) >= CALLED_AT_ONCE_SINCE
        if found is None or not is_known or self._broker.now - found.at > TAKEN_LATELY_S:
            return False
        return found.answer_s <= self._host.settings.drain_s and found.ways == self._host.digests_of_paths()

    def taken(self, session: Session, target: str, answer_s: float | None) -> None:
        before = self._taken.pop((target, session.user), None)
        now, ways = self._broker.now, self._host.digests_of_paths()
        if answer_s is None and before is None:
            return  # another move there has come to nothing since
        answered_at = now
        if before is not None and (answer_s is None or before.counts_more(answer_s, now, ways)):
            answer_s, answered_at = before.answer_s, before.answered_at
        assert answer_s is not None
        self._taken[target, session.user] = _Taken(now, answer_s, answered_at, ways)
        if len(self._taken) > TAKEN_MAX:
            del self._taken[next(iter(self._taken))]

    def prepare(self, session: Session, target: str) -> None:
        if server := self._host.router.paths.clients_of(target):
            _tell(session, Prepare(server))

    def stopped(self, session: Session) -> None:
        _tell(session, GatewayStopped())

    def cancel(self, session: Session) -> None:
        _tell(session, Cancel())

    def is_open_to(self, client: bytes) -> bool:
        return self.evacuation is None or client in self.evacuation.staying

    def turn_away(self, connection: Connection, client: bytes) -> bool:
        """A client comes to a node that is being emptied: send it away, unless it was lately; False if it may stay."""
        evacuation, now = self.evacuation, self._broker.now
        if evacuation is None or client in evacuation.staying:
            return False
        # A client without an identifier gets another one each time.
        request = connection.connect
        is_named = request is None or prop.ASSIGNED_CLIENT_ID not in request.properties
        who = client if is_named else connection.peer.address.rpartition(":")[0].encode()
        if now - evacuation.turned_away.get(who, -math.inf) <= RETURN_S:
            evacuation.staying[client] = connection
            return False
        evacuation.turn_away(who, now)
        owner, _ = self._directory.get(client)
        paths = self._host.router.paths
        # Where its session is, if clients may go there; else the next node will fetch it.
        where = owner if owner in paths.open_origins else self._target() or ""
        self._broker.handshake.turn_away(connection, paths.clients_of(where), BEING_EMPTIED)
        return True

    def departed(self, departure: Departure) -> bool:
        """True if it is tried again."""
        client, evacuation = departure.session.client_id, self.evacuation
        if not departure.by_plan:
            if departure.state is DepartureState.GONE:
                self._put_off.forget(client)
            return False
        connection = departure.session.connection
        if departure.is_led and departure.reason == NOT_COME and connection is not None:
            connection.may_be_led = False  # its gateway does not go there; next time it is told to leave
        if departure.state is DepartureState.GONE:
            self._put_off.forget(client)
            if evacuation is not None:
                evacuation.moved += 1
                evacuation.waiting.pop(client, None)
        else:
            self._taken.pop((departure.target, departure.session.user), None)
            may_wait = departure.reason == TOO_MUCH_ARRIVES and evacuation is None
            if may_wait and self._put_off.is_put_off(client, departure.target, departure.started_at):
                return True
            self._put_off.forget(client)
            self._is_not_moved(client, departure.target, departure.reason)
            if evacuation is not None and client not in evacuation.staying:
                evacuation.failed += 1
                evacuation.wait(client, self._broker.now, self._host.settings.retry_s)
        return False

    # -- all of them --

    def evacuate(self, rate: float) -> Evacuation:
        """Empty this node, so many clients a second.  Asked again, it goes on with what is left."""
        if self._target() is None:
            raise MigrationError("there is no other node that can be reached and takes clients")
        evacuation = self.evacuation or self._begin(rate)
        evacuation.rate = rate
        self._remember(rate)
        return evacuation

    def _begin(self, rate: float) -> Evacuation:
        self.evacuation = Evacuation(len(self._broker.sessions), rate)
        self._host.router.close_to_clients(True)
        self._host.later(0.0, partial(self._step, self.evacuation))
        return self.evacuation

    def stay(self) -> None:
        """Stop emptying it, and let clients in again."""
        self.evacuation = None
        self._host.router.close_to_clients(False)
        self._remember(0.0)

    def _remember(self, rate: float) -> None:
        if self._broker.state.evacuated_at != rate:
            self._broker.state.evacuated_at = rate
            self._broker.log.evacuated(rate)

    def evacuate_elsewhere(self, node: str, rate: float | None, *, stops: bool) -> None:
        """Tell another node to; what comes of it is seen there."""
        self._see_that_it_can_be_reached(node)
        self._host.order(node, Evacuate(rate, stops))

    def told_to_evacuate(self, source: str, order: Evacuate) -> None:
        rate = order.rate or self._host.settings.rate
        if order.stops:
            self.stay()
        elif math.isfinite(rate) and rate > 0:
            try:
                self.evacuate(rate)
            except MigrationError as error:
                self._broker.tell("this node is not emptied", {"reason": str(error)})

    def _target(self) -> str | None:
        """Nodes that take clients take turns."""
        nodes = sorted(self._host.router.paths.open_origins)
        return nodes[(self.evacuation.turn if self.evacuation else 0) % len(nodes)] if nodes else None

    def _step(self, evacuation: Evacuation) -> None:
        if self.evacuation is not evacuation:
            return
        now, departures = self._broker.now, self._departures
        evacuation.allowance = min(evacuation.allowance + evacuation.rate * STEP_S, max(1.0, evacuation.rate))
        self._let_go(evacuation)
        for session in list(self._broker.sessions.values()):
            if evacuation.allowance < 1 or not has_room(departures.values(), self._host.settings.at_once):
                break
            client = session.client_id
            if client in departures or client in evacuation.staying or evacuation.waits(client, now):
                continue
            target = self._target()
            if target is not None and not session.is_moving and not is_foreign(session):
                evacuation.turn += 1
                evacuation.allowance -= 1
                self._evacuate(session, target, evacuation)
        self._host.later(STEP_S, partial(self._step, evacuation))

    def _let_go(self, evacuation: Evacuation) -> None:
        """Clients that stayed and have hung up since: their sessions are moved like the others."""
        for client, connection in list(evacuation.staying.items()):
            session = self._broker.sessions.get(client)
            if session is not None and session.connection is not None:
                evacuation.staying[client] = session.connection
            elif connection.state == ConnectionState.CLOSED:
                del evacuation.staying[client]

    def _evacuate(self, session: Session, target: str, evacuation: Evacuation) -> None:
        if session.persistent:
            self._move(session, target)
        elif session.connection is not None:
            # It ends with its connection; that it is we who end it is no reason for its will.
            session.will = None
            evacuation.sent_away += 1
            self._broker.lifecycle.end(session.connection, self.farewell(session.connection, target), graceful=True)


def _tell(session: Session, word: gateway_packets.Control) -> None:
    """To the gateway through which the client came."""
    if session.connection is not None and session.connection.gateway:
        session.connection.send(gateway_packets.encode(word))
