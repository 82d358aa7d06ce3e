"""Gateways, for the admin port: which clients of this node each has, and an order to move them all to another node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest

from sterna.broker.broker import Broker
from sterna.broker.session.session import Session
from sterna.migration.move_manager import MoveManager
from sterna.migration.move_side import has_room
from sterna.vocabulary.errors import MigrationError

#: Gateways on one page.
GATEWAYS_SHOWN = 1000


@dataclass(slots=True)
class GatewaySummary:
    gateway: str
    clients: int = 0
    subscriptions: int = 0
    immovable: int = 0
    """Clients whose sessions end with their connections: no order moves them."""
    moving: int = 0


@dataclass(slots=True)
class GatewayPage:
    node: str
    gateways: list[GatewaySummary]
    more: str = ""
    """Ask for the page after this name for the rest; empty: there is none."""
    plain: int = 0
    """Clients that are connected without a gateway."""


@dataclass(slots=True)
class GatewayMove:
    """The answer to an order to move a gateway's clients.  Given again, the order goes on with those that are left."""

    gateway: str
    to: str
    begun: int = 0
    under_way: int = 0
    left: int = 0
    """Clients for which there was no room among the moves at once."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> clients."""


def is_control(session: Session) -> bool:
    """A session of a coordinator, worker or gateway that ends with its connection: it moves by dialling again."""
    return session.permissions.controls and not session.persistent


def summaries(broker: Broker, node: str, after: str = "", most: int = GATEWAYS_SHOWN) -> GatewayPage:
    """Gateways in the order of their names, those after this one."""
    found: dict[str, GatewaySummary] = {}
    plain = 0
    for session in broker.sessions.values():
        connection = session.connection
        if connection is None or is_control(session):
            continue
        name = connection.gateway
        if not name:
            plain += 1
        elif name > after:
            one = found.get(name) or found.setdefault(name, GatewaySummary(name))
            one.clients += 1
            one.subscriptions += len(session.subscriptions)
            one.immovable += not session.persistent
            one.moving += session.is_moving
    names = nsmallest(most + 1, found)
    shown = [found[name] for name in names[:most]]
    return GatewayPage(node, shown, shown[-1].gateway if len(names) > most else "", plain)


def move_gateway(moving: MoveManager, gateway: str, to: str) -> GatewayMove:
    """Begin to move as many of its clients as may move at once."""
    outcome = GatewayMove(gateway, to)
    for session in _clients_of(moving.broker.sessions.values(), gateway):
        if session.is_moving or session.client_id in moving.departures:
            outcome.under_way += 1
        elif not session.persistent:
            outcome.refused["the session ends with its connection"] += 1
        elif not has_room(moving.departures.values(), moving.settings.at_once):
            outcome.left += 1
        else:
            try:
                moving.plans.move(session.client_id, to)
                outcome.begun += 1
            except MigrationError as error:
                outcome.refused[str(error).replace(repr(session.name()), "...")] += 1
    return outcome


def _clients_of(sessions: Iterable[Session], gateway: str) -> list[Session]:
    return [one for one in sessions if one.connection is not None and one.connection.gateway == gateway]
