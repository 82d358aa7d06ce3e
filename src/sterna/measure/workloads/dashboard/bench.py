"""`sterna bench dashboard`: pages of a large network have their data in time, and open pages cost their node little.

Two linked nodes have the clients between them.  Each request is a connection of its own, as the browser's may be, and
is answered by both nodes.  For the cost, messages come in at a fixed rate, and rounds with three open pages alternate
with rounds without; the difference of the node's CPU time is what the pages cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Annotated

import typer

from sterna.broker.topic_tree import LEASE_S, ROUND_S
from sterna.measure.command import Means, Rounds, known
from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow, figures, measure_parts, report
from sterna.measure.harness import meter
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.measurement import Measurement
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.shapes import Lane, Paced
from sterna.measure.report import MeasurementReport, verdict
from sterna.measure.workloads.dashboard.crowded_network import FLAT, CrowdedNetwork, crowded_network
from sterna.measure.workloads.dashboard.open_pages import CLIENTS, MAP, TOPICS, Polled, answer_to, open_pages

PAGE_S_MAX = 1.0
CPU_PERCENT_MAX = 2.0
RATE = 50_000
SLOWER_THAN_MEANT = 0.95
ROUNDS = 9
"""Short ones, and many: what else happens on a machine changes from second to second."""
QUICK_ROUNDS = 1
ASKED = 5
MEASURE_S, QUICK_S = 4.0, 2.0
WARM_UP_S = 1.5
"""After pages were opened: the topic tree begins with all that is retained."""
UNWATCHED_S = LEASE_S + 2 * ROUND_S
"""After pages were closed: the topic tree is counted on for so long, and would be in the figure without pages."""
PAIRS = 20

PAGES = {
    "picture": "/dashboard/picture",
    "clients, first page": "/dashboard/clients?most=50",
    "clients, last page": "/dashboard/clients?most=50&after=client-{last:05}",
    "clients, searched": "/dashboard/clients?most=50&text=99",
    "clients, waiting": "/dashboard/clients?most=50&state=waiting",
    "client": "/client?id=client-{last:05}",
    "topics, first levels": "/dashboard/topics",
    "topics, a level of many": "/dashboard/topics?prefix=" + FLAT,
    "expressions": "/dashboard/expressions",
    "readers": "/dashboard/readers",
    "settings": "/dashboard/settings?node=n1",
    "bans": "/bans?text=",
}
"""The questions of the pages of the dashboard."""
OPEN = {"three maps": (MAP, MAP, MAP), "map, clients, topics": (MAP, CLIENTS, TOPICS)}
PARTS = ("pages", *OPEN)


def bench(
    means: Means,
    clients: Annotated[int, typer.Option(min=10, max=50_000, help="Clients, half of them at each node.")] = 10_000,
    topics: Annotated[int, typer.Option(min=10, max=100_000, help="Topics, all retained.")] = 100_000,
    rate: Annotated[int, typer.Option(min=100, help="Messages a second while pages are open.")] = RATE,
    part: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(PARTS)}.")] = None,
    rounds: Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter rounds, and one of each.")] = False,
) -> MeasurementReport:
    """How long pages of a large network take, and what three open pages cost their node (about five minutes)."""
    core, generator_core = meter.two_cores()
    count = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    seconds = QUICK_S if quick else MEASURE_S
    means.say(f"{clients:,} clients connect to two nodes, {topics:,} topics are retained")
    with crowded_network(clients, topics, core) as network:
        costs = {
            name: _CostOfPages(network, pages, rate, seconds, generator_core, means.say) for name, pages in OPEN.items()
        }
        parts = {"pages": partial(page_rows, network, clients, topics)}
        parts |= {name: partial(cost.rows, name, count) for name, cost in costs.items()}
        rows = measure_parts({name: known(name, parts, "part", "--part") for name in part or PARTS}, means.say)
        compiled = _is_compiled(network)
    setting = f"two nodes on one core, the load and the pages on another; nodes {compiled}"
    return report(figures("dashboard", "The dashboard of a large network", setting, rows, quick=quick))


def page_rows(network: CrowdedNetwork, clients: int, topics: int) -> list[FigureRow]:
    """The slowest answer counts."""
    rows = [_first_look(network, topics)]
    for name, path in PAGES.items():
        took, size = [], 0
        for _ in range(ASKED):
            began = time.perf_counter()
            size = len(answer_to(network.admin, path.format(last=clients - 10)))
            took.append(time.perf_counter() - began)
        rows.append(_page_row(name, f"slowest of {ASKED}; {size:,} bytes, median {1000 * median(took):.0f} ms", took))
    return rows


def _first_look(network: CrowdedNetwork, topics: int) -> FigureRow:
    """The first one to look has the nodes count all retained messages."""
    path = PAGES["topics, first levels"]
    began = time.perf_counter()
    found = json.loads(answer_to(network.admin, path))
    took = [time.perf_counter() - began]
    while found["is_counting"]:
        asked = time.perf_counter()
        found = json.loads(answer_to(network.admin, path))
        took.append(time.perf_counter() - asked)
    known = sum(level["topics"] for level in found["levels"])
    if known < topics:
        raise MeasurementError(f"the topic tree knows {known:,} of {topics:,} topics")
    summary = f"slowest answer while {known:,} topics are counted, which took {time.perf_counter() - began:.2f} s"
    return _page_row("topics, first look", summary, took)


def _page_row(name: str, summary: str, took: Sequence[float]) -> FigureRow:
    return FigureRow(
        name=name,
        summary=summary,
        unit="ms",
        figure=1000 * max(took),
        target=f"< {1000 * PAGE_S_MAX:.0f}",
        verdict=verdict(max(took) < PAGE_S_MAX),
        rounds=[(1000 * one, None) for one in took],
    )


class _CostOfPages:
    def __init__(
        self,
        network: CrowdedNetwork,
        pages: Sequence[Polled],
        rate: int,
        seconds: float,
        core: int | None,
        say: Say,
    ) -> None:
        self._network = network
        self._pages = pages
        self._job = GeneratorJob(
            load=Paced(tuple(Lane(((f"load/{n:02}",),), ((f"load/{n:02}",),), fan=1) for n in range(PAIRS)), rate),
            near=network.port,
            pids=(network.pid,),
            warm_up_s=WARM_UP_S,
            measure_s=seconds,
        )
        self._rate = rate
        self._core = core
        self._say = say
        self._were_open = False

    def rows(self, name: str, rounds: int) -> list[FigureRow]:
        pairs: list[tuple[float, float]] = []
        slowest = float(self._rate)
        for number in range(rounds):
            order = (False, True) if number % 2 else (True, False)
            sides = {are_open: self._round(are_open=are_open) for are_open in order}
            slowest = min(slowest, *(one.published / one.seconds for one in sides.values()))
            with_them, without = sides[True].broker_busy, sides[False].broker_busy
            pairs.append((100 * with_them, 100 * without))
            self._say(f"    round {number + 1}/{rounds}: {with_them:.2%} of a core with them, {without:.2%} without")
        more = median(one - other for one, other in pairs)
        is_slow = slowest < SLOWER_THAN_MEANT * self._rate
        row = FigureRow(
            name=f"CPU, {name}",
            summary=f"what pages cost beside {self._rate:,} msg/s, median of {rounds} rounds in turn; beside: without",
            unit="% of a core",
            figure=more,
            beside=median(other for _, other in pairs),
            target=f"< {CPU_PERCENT_MAX:g}",
            verdict=verdict(more < CPU_PERCENT_MAX),
            rounds=list(pairs),
            remarks=[f"in some rounds the generator sent only {slowest:,.0f} msg/s"] if is_slow else [],
        )
        return [row]

    def _round(self, *, are_open: bool) -> Measurement:
        if self._were_open and not are_open:
            time.sleep(UNWATCHED_S)
        self._were_open = are_open
        with open_pages(self._network.admin, self._pages if are_open else ()):
            (measured,) = generate("sterna", self._job, self._core)
        return measured


def _is_compiled(network: CrowdedNetwork) -> str:
    rows = json.loads(answer_to(network.admin, PAGES["picture"]))["nodes"]
    return "compiled" if all(row["compiled"] for row in rows) else "interpreted"
