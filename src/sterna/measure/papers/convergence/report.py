"""`sterna experiment convergence`: how long a tree takes to form, told beside the paper's figures.

The paper shows its figures without numbers; what stands here for it follows from its timers: 10 s of discovery, a
round of measuring and 8 s of silence at the start, and 30 to 40 s before that until a death is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated

import msgspec
import typer

from sterna import __version__
from sterna.measure.command import Means
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.convergence.experiment import (
    SILENT,
    ConvergenceEvent,
    ConvergencePlan,
    ConvergenceRun,
    described,
    run,
)
from sterna.measure.papers.traffic.systems import STRATEGIES
from sterna.measure.plots import BAR, COLOURS, empty_figure, finish
from sterna.measure.report import Column, MeasurementReport, Spread, spread, table, verdict

PAPER = {"start": "18 to 20", "killed": "50 to 60", "silent": "50 to 60"}
"""Seconds."""
START_S_MAX = 2.0
FAILURE_S_MAX = 3.0
SILENCE_S_MAX = 4.0
LABEL_WIDTH = 12
"""Characters of a label under a bar before it goes on below."""


class ConvergenceRow(msgspec.Struct, frozen=True, kw_only=True):
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


class ConvergenceDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "convergence"
    version: str
    site: str
    nodes: int
    strategy: str
    rows: list[ConvergenceRow]
    published: int
    delivered: int
    lost: int
    runs: list[ConvergenceRun]


def experiment(
    means: Means,
    runs: Annotated[int, typer.Option(min=1, max=999, help="Starts of the whole network.")] = 10,
    nodes: Annotated[int, typer.Option(min=3, max=5, help="Nodes of the network.")] = 5,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = "subscription-flooding",
    addresses: Annotated[
        bool, typer.Option("--addresses", help="Give each node the addresses of the others, and no multicast group.")
    ] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if nodes could be put at a distance, which needs root.")
    ] = False,
) -> MeasurementReport:
    """Start a spanning tree of nodes, let its root and an inner node die, time how it forms again (ten minutes)."""
    if strategy not in STRATEGIES:
        raise typer.BadParameter(f"known: {', '.join(STRATEGIES)}", param_hint="--strategy")
    far = may_be_at_a_distance() and not loopback
    plan = ConvergencePlan(runs=runs, nodes=nodes, strategy=strategy, at_a_distance=far, multicast=not addresses)
    return report(document(plan, f"sterna {__version__}", described(plan), run(plan, means.say)))


def document(plan: ConvergencePlan, version: str, site: str, runs: Sequence[ConvergenceRun]) -> ConvergenceDocument:
    kinds = dict.fromkeys(event.what for run in runs for event in run.events)
    return ConvergenceDocument(
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


def _rows(what: str, runs: Sequence[ConvergenceRun]) -> list[ConvergenceRow]:
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


def _row(what: str, events: Sequence[ConvergenceEvent]) -> ConvergenceRow:
    kind = _kind(what)
    target = {"start": START_S_MAX, "killed": FAILURE_S_MAX, "silent": SILENCE_S_MAX}.get(kind)
    tree = spread([event.tree_s for event in events])
    return ConvergenceRow(
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


def _kind(what: str) -> str:
    if what.startswith("start"):
        return "start"
    if " back" in what:
        return ""
    return "silent" if what.endswith(SILENT) else "killed"


def report(told: ConvergenceDocument) -> MeasurementReport:
    columns = [
        Column("what happens", lambda row: row.what, "left"),
        Column("runs", lambda row: str(row.runs), no_wrap=False),
        Column("all answer", lambda row: _shown(row.ready), no_wrap=False),
        Column("tree stands", lambda row: _shown(row.tree), no_wrap=False),
        Column("all hear all", lambda row: _shown(row.whole), no_wrap=False),
        Column("last change", lambda row: _shown(row.final), no_wrap=False),
        Column("target", lambda row: "-" if row.target is None else f"< {row.target:g}"),
        Column("verdict", lambda row: "-" if row.reached is None else verdict(row.reached)),
        Column("paper", lambda row: row.paper),
    ]
    title = f"A tree of {told.nodes} nodes: seconds, mean and standard deviation (least to greatest)"
    lost = [
        f"Lost in run {place}: {', '.join(f'{way} {count}' for way, count in one.missing.items())}."
        for place, one in enumerate(told.runs, start=1)
        if one.missing
    ]
    return MeasurementReport(
        document=told,
        tables=[table(title, columns, told.rows)],
        notes=[
            _method(told),
            f"QoS 1 meanwhile: {told.published:,} messages acknowledged, {told.delivered:,} deliveries to "
            f"{told.nodes} subscribers, {told.lost:,} lost.",
            *lost,
        ],
        failed=bool(told.lost),
        draw=lambda file: draw(told, file),
    )


def _shown(one: Spread) -> str:
    return f"{one.mean:.2f} ± {one.deviation:.2f}\n{one.least:.2f} to {one.greatest:.2f}"


def _method(told: ConvergenceDocument) -> str:
    return (
        f"{told.version}.  {told.site}; strategy {told.strategy}; every timer at its default.  "
        f"From launching the last process, or from the SIGKILL, the SIGSTOP or the cut of the cable, as read from the "
        f"admin port of every node that lives.  The tree stands "
        f"when all living nodes agree on the root and exactly the links of the tree are up.  Programs are loaded when "
        f"the last node answers.  The paper's figures follow from the timers of its code."
    )


def draw(told: ConvergenceDocument, file: Path) -> None:
    """Bars of means with least and greatest; the paper's range as a grey band where it has one.  Seconds, logarithmic:
    the paper's times are an order of magnitude away."""
    figure = empty_figure(10, 5.5)
    axes = figure.add_subplot()
    for place, row in enumerate(told.rows):
        for number, (name, one) in enumerate((("tree stands", row.tree), ("all hear all", row.whole))):
            at = place + (number - 0.5) * BAR / 2
            label = name if not place else None
            axes.bar(at, one.mean, BAR / 2 * 0.92, color=COLOURS[number], label=label, edgecolor="black", linewidth=0.5)
            reach = [[one.mean - one.least], [one.greatest - one.mean]]
            axes.errorbar(at, one.mean, yerr=reach, color="black", capsize=4)
            axes.annotate(f"{one.mean:.2f}", (at, one.greatest), ha="center", va="bottom", fontsize=9)
        if " to " in row.paper:
            low, high = (float(word) for word in row.paper.split(" to "))
            axes.fill_between([place - BAR / 2, place + BAR / 2], low, high, color=COLOURS[4])
            axes.annotate(f"paper:\n{row.paper} s", (place, high), ha="center", va="bottom", fontsize=8)
        if row.target is not None:
            axes.plot([place - BAR / 2, place + BAR / 2], [row.target] * 2, "--", color=COLOURS[3])
    axes.plot([], [], "--", color=COLOURS[3], label="target")
    axes.set_yscale("log")
    axes.set_ylim(0.05, 300)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.set_xticks(range(len(told.rows)), [fill(row.what, LABEL_WIDTH) for row in told.rows])
    axes.set_ylabel("seconds")
    axes.set_title(f"Spanning tree of {told.nodes} nodes, {len(told.runs)} run(s)")
    finish(axes, 4)
    figure.savefig(file)
