"""The pages of a node's admin port.  A new page is a handler and a row of `NODE`."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

from sterna.broker.statistics import SessionView, Statistics
from sterna.runtime.admin.metrics import CONTENT_TYPE, exposition
from sterna.runtime.admin.move_api import MoveApi
from sterna.runtime.admin.site import (
    AdminPage,
    AdminProcess,
    AdminSite,
    Answer,
    Request,
    Right,
    alive,
    as_json,
    ready,
    reload,
    text,
)
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import NetworkView
from sterna.vocabulary.errors import ConfigurationError, MigrationError

SESSIONS_SHOWN = 1000
"""A node may have a million: those that lost most and wait longest are shown."""


class ObservedNode(AdminProcess, Protocol):
    """The questions of the admin port to the node."""

    def statistics(self) -> Statistics: ...

    def sessions(self, most: int) -> list[SessionView]: ...

    def network_view(self, *, tables: bool = False) -> NetworkView:
        """Sizes of tables only if asked for: they take a look at every filter."""

    def moves(self) -> MoveApi: ...

    def feed_view(self) -> FeedView | None:
        """None for a node without a feed."""

    def interworking_view(self) -> dict[str, Any] | None:
        """None for a node that is attached to no foreign broker."""

    def neighbours(self) -> list[str]:
        """The addresses given by people."""

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        """All of it or, with a ConfigurationError, none."""


class NeighbourChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /neighbours."""

    add: list[str] = []
    remove: list[str] = []


class MoveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /move."""

    client: str
    to: str


class EvacuateOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /evacuate."""

    node: str
    rate: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    stop: bool = False


def _sessions(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.sessions(SESSIONS_SHOWN))


def _metrics(_asked: Request, node: ObservedNode) -> Answer:
    view = exposition(node.statistics(), node.network_view(), node.feed_view(), node.interworking_view())
    return Answer(200, view, CONTENT_TYPE)


def _interworking(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.interworking_view() or {"broker": None})


def _network(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.network_view(tables=True))


def _neighbours(_asked: Request, node: ObservedNode) -> Answer:
    return as_json({"neighbours": node.neighbours(), "dialled": node.network_view().dialled})


def _change_neighbours(asked: Request, node: ObservedNode) -> Answer:
    try:
        change = msgspec.json.decode(asked.body, type=NeighbourChange)
        node.change_neighbours(change.add, change.remove)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f'{error}; send {{"add": ["host:port"], "remove": ["host:port"]}}\n')
    except ConfigurationError as error:
        return text(400, f"{error}\n")
    return _neighbours(asked, node)


def _clients(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.moves().clients())


def _migrations(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.moves().migrations())


def _move(asked: Request, node: ObservedNode) -> Answer:
    try:
        order = msgspec.json.decode(asked.body, type=MoveOrder)
        return as_json(node.moves().move(order.client, order.to))
    except (msgspec.MsgspecError, UnicodeDecodeError, MigrationError) as error:
        return _failed_order(error)


def _evacuate(asked: Request, node: ObservedNode) -> Answer:
    try:
        order = msgspec.json.decode(asked.body, type=EvacuateOrder)
        return as_json(node.moves().evacuate(order.node, order.rate, stop=order.stop))
    except (msgspec.MsgspecError, UnicodeDecodeError, MigrationError) as error:
        return _failed_order(error)


def _failed_order(error: Exception) -> Answer:
    if isinstance(error, MigrationError):
        return text(409, f"{error}\n")
    return text(400, f"{error}; / says what to send\n")


NODE: AdminSite[ObservedNode] = AdminSite(
    "Sterna admin port",
    [
        AdminPage("/metrics", _metrics, "statistics for Prometheus"),
        AdminPage("/healthz", alive, "200 while the process is alive", Right.NOTHING),
        AdminPage("/sessions", _sessions, "what waits for whom, and what retention took from them, worst first (JSON)"),
        AdminPage(
            "/readyz",
            ready,
            "200 when the node serves clients and can write its journal, else 503 and the reason",
            Right.NOTHING,
        ),
        AdminPage("/network", _network, "links, streams, paths and the overlay (JSON)"),
        AdminPage("/interworking", _interworking, "the foreign broker: its abilities, state and counters (JSON)"),
        AdminPage("/clients", _clients, "who is where (JSON, at most 1,000)"),
        AdminPage("/migrations", _migrations, "clients on their way, and what became of others (JSON)"),
        AdminPage("/move", _migrations),
        AdminPage("/move", _move, 'POST {"client": "...", "to": "node"} moves one', Right.CHANGE),
        AdminPage("/evacuate", _migrations),
        AdminPage(
            "/evacuate",
            _evacuate,
            'POST {"node": "...", "rate": 50} empties a node, {"node": "...", "stop": true} no longer',
            Right.CHANGE,
        ),
        AdminPage("/neighbours", _neighbours, "addresses this node was given (JSON)"),
        AdminPage("/neighbours", _change_neighbours, 'POST {"add": [...], "remove": [...]} changes them', Right.CHANGE),
        AdminPage("/reload", reload, "POST {} reads passwords, access rules and certificates again", Right.CHANGE),
    ],
)
