"""The pages of a process group's admin port: those of a node, answered for all members together.

A page about every client or every counter asks all members; any other page is relayed to the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sterna.broker.flow_page import FLOWS_SHOWN, READERS_SHOWN, FlowSummary
from sterna.migration.gateway_moves import GATEWAYS_SHOWN, GatewayMove, GatewayPage, GatewaySummary
from sterna.runtime.admin.backup_api import PART_PAGE, BackedUpNode, backup_state, make_backup
from sterna.runtime.admin.metrics import CONTENT_TYPE
from sterna.runtime.admin.pages import NODE
from sterna.runtime.admin.site import AdminPage, AdminSite, Answer, Request, alive, as_json, text
from sterna.runtime.processes.relay import ask
from sterna.runtime.reloading import ReloadedPart, ReloadOutcome

CLIENTS_SHOWN = 1000


class Members(BackedUpNode, Protocol):
    def sockets(self) -> list[Path]:
        """Of the members' admin ports, the first member's first."""

    def names(self) -> list[str]:
        """Of the members as nodes, in the same order; the first has the name of the whole."""


async def _all(asked: Request, group: Members) -> list[Answer]:
    return await asyncio.gather(*(ask(path, asked) for path in group.sockets()))


def _first_failure(answers: list[Answer]) -> Answer | None:
    return next((answer for answer in answers if answer.status != 200), None)


async def _relayed(asked: Request, group: Members) -> Answer:
    return await ask(group.sockets()[0], asked)


async def _ready(asked: Request, group: Members) -> Answer:
    answers = await _all(asked, group)
    for number, answer in enumerate(answers, 1):
        if answer.status != 200:
            return text(503, f"process {number}: {answer.body.decode('utf-8', 'replace')}")
    return answers[0]


async def _network(asked: Request, group: Members) -> Answer:
    """The view of the first, and the streams of its siblings: they, too, must know those beyond."""
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    views = [msgspec.json.decode(answer.body, type=dict[str, Any]) for answer in answers]
    siblings = {name: view["streams"] for name, view in zip(group.names()[1:], views[1:], strict=True)}
    return as_json({**views[0], "siblings": siblings})


async def _metrics(asked: Request, group: Members) -> Answer:
    answers = await _all(asked._replace(method="GET"), group)
    if failure := _first_failure(answers):
        return failure
    return Answer(200, merged_metrics([answer.body.decode() for answer in answers]), CONTENT_TYPE)


class _Merged:
    """A collector of the samples of several expositions, told apart by a label."""

    def __init__(self, expositions: list[str]) -> None:
        self._expositions = expositions

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, exposition in enumerate(self._expositions, 1):
            for family in text_string_to_metric_families(exposition):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {**sample.labels, "process": str(number)}, sample.value)
        yield from families.values()


def merged_metrics(expositions: list[str]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(expositions))
    return generate_latest(registry)


async def _clients(asked: Request, group: Members) -> Answer:
    """Clients that are here, of each member; then those that are known to be elsewhere."""
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    rows = [row for answer in answers for row in msgspec.json.decode(answer.body, type=list[dict[str, object]])]
    here = [row for row in rows if "connected" in row]
    known = {row["client"] for row in here}
    elsewhere = {row["client"]: row for row in rows if row["client"] not in known}
    return as_json([*here, *elsewhere.values()][:CLIENTS_SHOWN])


async def _sessions(asked: Request, group: Members) -> Answer:
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    return as_json([row for answer in answers for row in msgspec.json.decode(answer.body, type=list[object])])


async def _reload(asked: Request, group: Members) -> Answer:
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    outcomes = [msgspec.json.decode(answer.body, type=ReloadOutcome) for answer in answers]
    changed = {part.what for outcome in outcomes for part in outcome.read if part.changed}
    first = outcomes[0]
    return as_json(
        ReloadOutcome(
            [ReloadedPart(part.what, part.what in changed, part.detail) for part in first.read],
            sum(outcome.disconnected for outcome in outcomes),
            first.needs_restart,
        )
    )


async def _gateways(asked: Request, group: Members) -> Answer:
    """A gateway may have clients at several members."""
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    return as_json(merged_gateways([msgspec.json.decode(answer.body, type=GatewayPage) for answer in answers]))


def merged_gateways(pages: list[GatewayPage]) -> GatewayPage:
    """Up to where every member has told of its gateways: behind that, one of them may have more clients of each."""
    found: dict[str, GatewaySummary] = {}
    told_upto = min((page.more for page in pages if page.more), default="")
    for one in (one for page in pages for one in page.gateways if not told_upto or one.gateway <= told_upto):
        known = found.setdefault(one.gateway, GatewaySummary(one.gateway))
        known.clients += one.clients
        known.subscriptions += one.subscriptions
        known.immovable += one.immovable
        known.moving += one.moving
        known.deliveries += one.deliveries
        known.bytes += one.bytes
    names = sorted(found)
    shown = [found[name] for name in names[:GATEWAYS_SHOWN]]
    more = shown[-1].gateway if len(names) > GATEWAYS_SHOWN else told_upto
    return GatewayPage(
        pages[0].node,
        shown,
        more,
        sum(page.plain for page in pages),
        sum(page.bytes for page in pages),
        merged_flows([flow for page in pages for flow in page.flows]),
    )


def merged_flows(flows: list[FlowSummary]) -> list[FlowSummary]:
    """Each member counts what enters at it and what comes from its siblings: the most that one of them saw counts."""
    found: dict[str, FlowSummary] = {}
    for one in flows:
        known = found.setdefault(one.topic, FlowSummary(one.topic, 0.0))
        known.per_s = max(known.per_s, one.per_s)
        for gateway, rate in one.publishers.items():
            known.publishers[gateway] = known.publishers.get(gateway, 0.0) + rate
        known.readers = sorted({*known.readers, *one.readers})[:READERS_SHOWN]
    return nlargest(FLOWS_SHOWN, found.values(), key=lambda flow: flow.per_s)


async def _migrations(asked: Request, group: Members) -> Answer:
    answers = await _all(asked, group)
    return _first_failure(answers) or _as_one(answers)


def _as_one(answers: list[Answer]) -> Answer:
    return as_json(merged_migrations([msgspec.json.decode(answer.body, type=dict[str, Any]) for answer in answers]))


def merged_migrations(views: list[dict[str, Any]]) -> dict[str, Any]:
    """Moves of all members, and sums; the node is being emptied as long as one of them is."""
    whole = dict(views[0])
    for key in ("leaving", "arriving", "moved", "not_moved"):
        whole[key] = [move for view in views for move in view[key]]
    emptied = [view["evacuation"] for view in views if view["evacuation"] is not None]
    whole["evacuation"] = _sums(emptied) if emptied else None
    whole["counters"] = _sums([view["counters"] for view in views])
    return whole


def _sums(counted: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(one[key] for one in counted) for key in counted[0]}


async def _move(asked: Request, group: Members) -> Answer:
    """Those of a gateway: each member moves its own."""
    if asked.method != "POST":
        return await _migrations(asked, group)
    if b'"gateway"' not in asked.body:
        return await _relayed(asked, group)
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    moves = [msgspec.json.decode(answer.body, type=GatewayMove) for answer in answers]
    whole = GatewayMove(moves[0].gateway, moves[0].to)
    for one in moves:
        whole.begun += one.begun
        whole.under_way += one.under_way
        whole.left += one.left
        whole.refused.update(one.refused)
    return as_json(whole)


async def _evacuate(asked: Request, group: Members) -> Answer:
    """The node is all its members: none of them takes the clients of another one, and the rate is that of all."""
    if asked.method != "POST":
        return await _migrations(asked, group)
    try:
        order = msgspec.json.decode(asked.body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        return text(400, f"{error}\n")
    names = group.names()
    if order.get("node") != names[0]:
        return await _relayed(asked, group)
    if not order.get("stop") and (refused := await _no_other_node(asked, group)):
        return refused
    if isinstance(rate := order.get("rate"), int | float):
        order["rate"] = rate / len(names)
    orders = [asked._replace(body=msgspec.json.encode({**order, "node": name})) for name in names]
    answers = await asyncio.gather(*map(ask, group.sockets(), orders))
    return _first_failure(answers) or _as_one(answers)


async def _no_other_node(asked: Request, group: Members) -> Answer | None:
    """Members would send their clients to each other for ever: a refusal, if there is nobody else."""
    answer = await _relayed(asked._replace(method="GET", target="/network", body=b""), group)
    if answer.status != 200:
        return answer
    others = msgspec.json.decode(answer.body, type=dict[str, Any])["paths"].keys() - group.names()
    return None if others else text(409, "there is no other node that can be reached and takes clients\n")


async def _drain(asked: Request, group: Members) -> Answer:
    """Drained when all members are."""
    answers = await _all(asked, group)
    if failure := _first_failure(answers):
        return failure
    return as_json(merged_drains([msgspec.json.decode(answer.body, type=dict[str, Any]) for answer in answers]))


def merged_drains(proofs: list[dict[str, Any]]) -> dict[str, Any]:
    """Flags hold if they do of all, numbers are sums, and names are those that any of them names."""
    whole = dict(proofs[0])
    for proof in proofs[1:]:
        for key, value in proof.items():
            if isinstance(value, bool):
                whole[key] = whole[key] and value
            elif isinstance(value, int):
                whole[key] += value
            elif isinstance(value, list):
                whole[key] = sorted({*whole[key], *value})
    return whole


def _backup(asked: Request, group: Members) -> Answer:
    return make_backup(asked, group) if asked.method == "POST" else backup_state(asked, group)


_OF_ALL: dict[str, Callable[[Request, Members], Answer | Awaitable[Answer]]] = {
    "/backup": _backup,
    "/network": _network,
    "/gateways": _gateways,
    "/move": _move,
    "/evacuate": _evacuate,
    "/migrations": _migrations,
    "/drain": _drain,
    "/metrics": _metrics,
    "/readyz": _ready,
    "/clients": _clients,
    "/sessions": _sessions,
    "/reload": _reload,
}

GROUP: AdminSite[Members] = AdminSite(
    "Sterna admin port (several processes)",
    [
        AdminPage(
            page.path, alive if page.path == "/healthz" else _OF_ALL.get(page.path, _relayed), page.about, page.right
        )
        for page in NODE.pages
        # Logins and live pictures are those of one process; nobody but the group asks a process for its part.
        if not page.of_dashboard and page.path != PART_PAGE
    ],
)
