"""The pages of a node's admin port.  A new page is a handler and a row of `NODE`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qs, parse_qsl

import msgspec

from sterna.broker.statistics import SessionView, Statistics
from sterna.node.management import ROWS_MAX, Gathered
from sterna.runtime.admin.access_api import AccessChanges, ban, set_rule, set_user
from sterna.runtime.admin.backup_api import (
    PART_PAGE,
    BackedUpNode,
    BackedUpProcess,
    backup_state,
    make_backup,
    part_state,
    take_step,
)
from sterna.runtime.admin.metrics import CONTENT_TYPE, exposition
from sterna.runtime.admin.move_api import MoveApi
from sterna.runtime.admin.publish_api import CannotPublish, PublishOrder
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
from sterna.runtime.dashboard.front import front
from sterna.runtime.dashboard.pages import DASHBOARD, DashboardNode
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import NetworkView, why_not_caught_up
from sterna.runtime.process_view import ProcessView
from sterna.vocabulary.errors import ConfigurationError, MigrationError

SESSIONS_SHOWN = 1000
"""A node may have a million: those that lost most and wait longest are shown."""


class ObservedNode(AdminProcess, AccessChanges, DashboardNode, BackedUpNode, BackedUpProcess, Protocol):
    """The questions of the admin port to the node."""

    def statistics(self) -> Statistics: ...

    def process_view(self) -> ProcessView: ...

    def sessions(self, most: int) -> list[SessionView]: ...

    def network_view(self, *, tables: bool = False) -> NetworkView:
        """Sizes of tables only if asked for: they take a look at every filter."""

    def moves(self) -> MoveApi: ...

    async def ask(self, kind: str, argument: str, most: int) -> Gathered:
        """A question of `node/management.py`.  May raise NotAFilter."""

    async def publish(self, order: PublishOrder) -> dict[str, Any]:
        """Comes back when it is safe.  May raise CannotPublish."""

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


class GatewayOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The other body of POST /move."""

    gateway: str
    to: str


class EvacuateOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /evacuate."""

    node: str
    rate: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    stop: bool = False


def _ready(asked: Request, node: ObservedNode) -> Answer:
    answer = ready(asked, node)
    if answer.status == 200 and parse_qs(asked.target.partition("?")[2]).get("network") == ["1"]:
        reason = why_not_caught_up(node.network_view(), node.statistics().uptime_s)
        return answer if reason is None else text(503, f"not ready: {reason}\n")
    return answer


def _sessions(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.sessions(SESSIONS_SHOWN))


def _metrics(_asked: Request, node: ObservedNode) -> Answer:
    view = exposition(
        node.statistics(), node.network_view(), node.feed_view(), node.interworking_view(), node.process_view()
    )
    return Answer(200, view, CONTENT_TYPE)


def _interworking(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.interworking_view() or {"broker": None})


def _network(_asked: Request, node: ObservedNode) -> Answer:
    return as_json(node.network_view(tables=True))


def _neighbours(_asked: Request, node: ObservedNode) -> Answer:
    view = node.network_view()
    return as_json({"neighbours": node.neighbours(), "dialled": view.dialled, "foreign": view.foreign})


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
        if "gateway" in msgspec.json.decode(asked.body, type=dict[str, Any]):
            batch = msgspec.json.decode(asked.body, type=GatewayOrder)
            return as_json(node.moves().move_gateway(batch.gateway, batch.to))
        order = msgspec.json.decode(asked.body, type=MoveOrder)
        return as_json(node.moves().move(order.client, order.to))
    except (msgspec.MsgspecError, UnicodeDecodeError, MigrationError) as error:
        return _failed_order(error)


def _gateways(asked: Request, node: ObservedNode) -> Answer:
    said = parse_qs(asked.target.partition("?")[2])
    return as_json(node.moves().gateways(said.get("after", [""])[0], flows=said.get("flows") == ["1"]))


async def _drain(_asked: Request, node: ObservedNode) -> Answer:
    def readers_behind() -> int:
        feed = node.feed_view()
        return feed.lag if feed is not None else 0

    try:
        proof = await node.moves().prove_drain(readers_behind)
    except MigrationError as error:
        return _failed_order(error)
    return as_json({**asdict(proof), "empty": proof.is_empty, "drained": proof.is_drained})


def _evacuate(asked: Request, node: ObservedNode) -> Answer:
    try:
        order = msgspec.json.decode(asked.body, type=EvacuateOrder)
        return as_json(node.moves().evacuate(order.node, order.rate, stop=order.stop))
    except (msgspec.MsgspecError, UnicodeDecodeError, MigrationError) as error:
        return _failed_order(error)


class KickOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /kick."""

    client: str


async def _kick(asked: Request, node: ObservedNode) -> Answer:
    try:
        order = msgspec.json.decode(asked.body, type=KickOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _failed_order(error)
    gathered = await node.ask("kick", order.client, ROWS_MAX)
    if gathered.rows:
        return as_json(gathered)
    silent = f"; no answer from {', '.join(gathered.silent)}" if gathered.silent else ""
    return text(409, f"no node has a connection of client {order.client}{silent}\n")


async def _trace(asked: Request, node: ObservedNode) -> Answer:
    try:
        return as_json(await node.ask("trace", asked.body.decode(), ROWS_MAX))
    except ValueError as error:
        return text(400, f"{error}; / says what to send\n")


async def _publish(asked: Request, node: ObservedNode) -> Answer:
    try:
        return as_json(await node.publish(msgspec.json.decode(asked.body, type=PublishOrder)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f'{error}; send {{"topic": "...", "payload": "...", "qos": 1, "retain": false}}\n')
    except CannotPublish as error:
        return text(409, f"{error}\n")


def _question(kind: str, argument: str) -> Callable[[Request, ObservedNode], Awaitable[Answer]]:
    """The handler of a page that passes a question on; `argument` is its parameter in the address."""

    async def handler(asked: Request, node: ObservedNode) -> Answer:
        try:
            given = dict(parse_qsl(asked.target.partition("?")[2], keep_blank_values=True, errors="strict"))
            most = min(int(given.get("most", ROWS_MAX)), ROWS_MAX)
            if most < 1:
                raise ValueError("most must be at least 1")
            return as_json(await node.ask(kind, given.get(argument, ""), most))
        except ValueError as error:
            return text(400, f"{error}; ask for /{kind}?{argument}=...&most={ROWS_MAX}\n")

    return handler


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
            _ready,
            "200 when the node serves clients and can write its journal, else 503 and the reason; ?network=1 waits, at "
            "most two minutes after the start, until messages of all nodes that can be reached come in",
            Right.NOTHING,
        ),
        AdminPage("/network", _network, "links, streams, paths and the overlay (JSON)"),
        AdminPage("/interworking", _interworking, "the foreign broker: its abilities, state and counters (JSON)"),
        AdminPage("/clients", _clients, "who is where (JSON, at most 1,000)"),
        AdminPage("/client", _question("client", "id"), "?id=... all that is known of one client (JSON)"),
        AdminPage(
            "/clients/search",
            _question("clients", "text"),
            "?text=... clients of all nodes (JSON)",
        ),
        AdminPage(
            "/subscriptions",
            _question("subscriptions", "filter"),
            "?filter=... subscriptions of all nodes that topics of the filter reach (JSON)",
        ),
        AdminPage(
            "/expressions",
            _question("expressions", "text"),
            "?text=... subscriptions that compute, of all nodes, with what they cost (JSON)",
        ),
        AdminPage("/retained", _question("retained", "filter"), "?filter=... retained messages (JSON)"),
        AdminPage("/bans", _question("bans", "text"), "?text=... bans that hold (JSON)"),
        AdminPage(
            "/bans",
            ban,
            'POST {"client"|"user"|"address": "...", "for_s": 3600, "reason": "..."} bans at all nodes, '
            '"lift": true no longer',
            Right.CHANGE,
        ),
        AdminPage(
            "/users", _question("users", "text"), "?text=... users of this node's files and of the network (JSON)"
        ),
        AdminPage(
            "/users",
            set_user,
            'POST {"user": "...", "password": "..."} sets a user at all nodes, "bar": true keeps one out, '
            '"reset": true leaves it to the files',
            Right.CHANGE,
        ),
        AdminPage("/access", _question("access", "text"), "access rules in force, in order (JSON)"),
        AdminPage(
            "/access",
            set_rule,
            'POST {"name": "...", "filters": [...], "user": [...], "access": "both", "effect": "allow"} sets a rule '
            'at all nodes, "remove": true removes it',
            Right.CHANGE,
        ),
        AdminPage(
            "/access/check",
            _question("check", "request"),
            '?request={"user": ..., "client": ..., "topic": ..., "access": "publish"} which rule decides (JSON)',
        ),
        AdminPage(
            "/trace",
            _trace,
            'POST {"id": "...", "client": ..., "topic": ..., "after": {"node": 5}} the next packets of a trace at all '
            "nodes, which ends when nobody asks",
            Right.CHANGE,
        ),
        AdminPage("/kick", _kick, 'POST {"client": "..."} disconnects one; its session stays', Right.CHANGE),
        AdminPage(
            "/publish",
            _publish,
            'POST {"topic": "...", "payload": "...", "qos": 1, "retain": false} publishes a message',
            Right.CHANGE,
        ),
        AdminPage("/backup", backup_state, "how the last backup went (JSON)"),
        AdminPage("/backup", make_backup, 'POST {"name": "..."} makes one, in [node] backups', Right.CHANGE),
        AdminPage(PART_PAGE, part_state),
        AdminPage(PART_PAGE, take_step, right=Right.CHANGE),
        AdminPage("/migrations", _migrations, "clients on their way, and what became of others (JSON)"),
        AdminPage("/move", _migrations),
        AdminPage(
            "/move",
            _move,
            'POST {"client": "...", "to": "node"} moves one, {"gateway": "...", "to": "node"} those of a gateway',
            Right.CHANGE,
        ),
        AdminPage(
            "/gateways",
            _gateways,
            "clients by gateway (JSON, 1,000 at a time; ?after=NAME for more; ?flows=1: the busiest topics too)",
        ),
        AdminPage("/drain", _drain, "whether this node owes anything to anybody, proved by a probe (JSON)"),
        AdminPage("/evacuate", _migrations),
        AdminPage(
            "/evacuate",
            _evacuate,
            'POST {"node": "...", "rate": 50} empties a node, {"node": "...", "stop": true} no longer',
            Right.CHANGE,
        ),
        AdminPage("/neighbours", _neighbours, "addresses this node was given, and the foreign broker beside it (JSON)"),
        AdminPage("/neighbours", _change_neighbours, 'POST {"add": [...], "remove": [...]} changes them', Right.CHANGE),
        AdminPage(
            "/reload",
            reload,
            "POST {} reads passwords, access rules, limits, certificates, [admin] and [log] again",
            Right.CHANGE,
        ),
        *DASHBOARD,
    ],
    front,
)
