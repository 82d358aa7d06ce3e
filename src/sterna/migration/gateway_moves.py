"""Gateways: which clients of this node each has, and an order to move them all to another node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest

from sterna.broker.flow_page import FlowSummary
from sterna.broker.inspection import is_control_line
from sterna.broker.session.session import Session
from sterna.migration.move_host import HostBroker
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
    deliveries: int = 0
    """Messages given to its clients since each of them connected, ..."""
    bytes: int = 0
    """... and bytes sent to them."""


@dataclass(slots=True)
class GatewayPage:
    node: str
    gateways: list[GatewaySummary]
    more: str = ""
    """Ask for the page after this name for the rest; empty: there is none."""
    plain: int = 0
    """Clients that are connected without a gateway."""
    bytes: int = 0
    """To and from all clients, since the start."""
    flows: list[FlowSummary] = field(default_factory=list)
    """The busiest topics, if they were asked for."""


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


def summaries(
    broker: HostBroker, node: str, after: str = "", most: int = GATEWAYS_SHOWN, *, flows: bool = False
) -> GatewayPage:
    """Gateways in the order of their names, those after this one."""
    found: dict[str, GatewaySummary] = {}
    plain = 0
    for session in broker.sessions.values():
        connection = session.connection
        if connection is None or is_control_line(session):
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
            one.deliveries += session.outbox.delivered
            one.bytes += session.outbox.sent
    names = nsmallest(most + 1, found)
    shown = [found[name] for name in names[:most]]
    counters = broker.counters
    return GatewayPage(
        node,
        shown,
        shown[-1].gateway if len(names) > most else "",
        plain,
        counters.bytes_sent + counters.bytes_received,
        broker.flow_pages.ask() if flows else [],
    )


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
