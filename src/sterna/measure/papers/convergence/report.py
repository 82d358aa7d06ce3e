"""The convergence experiment told twice: one JSON document for machines, a table for people, from the same values.

The paper shows its figures without numbers; what stands here for it follows from its timers: 10 s of discovery, a
round of measuring and 8 s of silence at the start, and 30 to 40 s before that until a death is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sterna.measure.papers.convergence.experiment import Event, Plan, Run

PAPER = {"start": "18 to 20", "killed": "50 to 60"}
"""Seconds."""
START_S_MAX = 2.0
FAILURE_S_MAX = 3.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    mean: float
    deviation: float
    least: float
    greatest: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happens, over all runs; seconds."""

    what: str
    runs: int
    ready: Spread
    tree: Spread
    whole: Spread
    final: Spread
    paper: str
    target: float | None
    reached: bool | None
    """Whether the mean time until the tree stands is below the target."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "convergence"
    version: str
    site: str
    nodes: int
    strategy: str
    rows: list[Row]
    published: int
    delivered: int
    lost: int
    runs: list[Run]


def build(plan: Plan, version: str, site: str, runs: Sequence[Run]) -> Report:
    kinds = dict.fromkeys(event.what for run in runs for event in run.events)
    return Report(
        version=version,
        site=site,
        nodes=plan.nodes,
        strategy=plan.strategy,
        rows=[row for what in kinds for row in _rows(what, runs)],
        published=sum(run.published for run in runs),
        delivered=sum(run.delivered for run in runs),
        lost=sum(run.lost for run in runs),
        runs=list(runs),
    )


def _rows(what: str, runs: Sequence[Run]) -> list[Row]:
    """One row; a start is told twice, because most of it is the time programs take to load."""
    events = [event for run in runs for event in run.events if event.what == what]
    if what != "start":
        return [_row(what, events)]
    loaded = [
        msgspec.structs.replace(
            event,
            ready_s=0.0,
            tree_s=max(0.0, event.tree_s - event.ready_s),
            whole_s=max(0.0, event.whole_s - event.ready_s),
            final_s=max(0.0, event.final_s - event.ready_s),
        )
        for event in events
    ]
    return [_row("start", events), _row("start, programs loaded", loaded)]


def _row(what: str, events: Sequence[Event]) -> Row:
    kind = "killed" if what.endswith("killed") else "start" if what.startswith("start") else ""
    target = {"start": START_S_MAX, "killed": FAILURE_S_MAX}.get(kind)
    tree = spread([event.tree_s for event in events])
    return Row(
        what=what,
        runs=len(events),
        ready=spread([event.ready_s for event in events]),
        tree=tree,
        whole=spread([event.whole_s for event in events]),
        final=spread([event.final_s for event in events]),
        paper=PAPER.get(kind, "-"),
        target=target,
        reached=None if target is None else tree.mean < target,
    )


def spread(values: Sequence[float]) -> Spread:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=mean(values), deviation=deviation, least=min(values), greatest=max(values))


def show(report: Report, console: Console) -> None:
    table = Table(title=f"A tree of {report.nodes} nodes: seconds, mean and standard deviation (least to greatest)")
    table.add_column("what happens", no_wrap=True)
    table.add_column("runs", justify="right")
    for heading in ("all answer", "tree stands", "all hear all", "last change"):
        table.add_column(heading, justify="right")
    for heading in ("target", "verdict", "paper"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        verdict = "-" if row.reached is None else "reached" if row.reached else "missed"
        table.add_row(
            row.what,
            str(row.runs),
            *(_shown(one) for one in (row.ready, row.tree, row.whole, row.final)),
            "-" if row.target is None else f"< {row.target:g}",
            verdict,
            row.paper,
        )
    console.print(table)
    console.print(Text(_method(report)))
    console.print(
        f"QoS 1 meanwhile: {report.published:,} messages acknowledged, {report.delivered:,} deliveries to "
        f"{report.nodes} subscribers, {report.lost:,} lost."
    )
    for number, run in enumerate(report.runs, start=1):
        if run.missing:
            ways = ", ".join(f"{way} {count}" for way, count in run.missing.items())
            console.print(f"Lost in run {number}: {ways}.", markup=False)


def _shown(one: Spread) -> str:
    return f"{one.mean:.2f} ± {one.deviation:.2f}\n{one.least:.2f} to {one.greatest:.2f}"


def _method(report: Report) -> str:
    return (
        f"{report.version}.  {report.site}; strategy {report.strategy}; every timer at its default.  "
        f"From launching the last process, or from the SIGKILL, as read from every node's admin port.  The tree stands "
        f"when all living nodes agree on the root and exactly the links of the tree are up.  Programs are loaded when "
        f"the last node answers.  The paper's figures follow from its timers."
    )
