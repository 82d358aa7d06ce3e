"""The pages of a process group's admin port: those of a node, answered for all members together.

A page about every client or every counter asks all members; any other page is relayed to the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sterna.runtime.admin.metrics import CONTENT_TYPE
from sterna.runtime.admin.pages import NODE
from sterna.runtime.admin.site import AdminPage, AdminSite, Answer, Request, alive, as_json, text
from sterna.runtime.processes.relay import ask
from sterna.runtime.reloading import ReloadedPart, ReloadOutcome

CLIENTS_SHOWN = 1000


class Members(Protocol):
    def sockets(self) -> list[Path]:
        """Of the members' admin ports, the first member's first."""


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


_OF_ALL = {
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
    ],
)
