"""`sterna bench ...`: measure brokers beside each other, and the pipeline.

The table or the JSON goes to stdout, progress to stderr.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console

from sterna import __version__
from sterna.cli.pipeline import spark_session
from sterna.measure import figures
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import BROKERS, Broker
from sterna.measure.harness.comparison import QUICK, Plan, Say, compare, machine
from sterna.measure.harness.rows import ROW_OF_MOSQUITTO, ROW_OF_STERNA
from sterna.measure.load.shapes import BY_NAME, WORKLOADS, Workload
from sterna.measure.workloads.brokers import report
from sterna.measure.workloads.migration import bench as migration_bench
from sterna.measure.workloads.migration import report as migration_bench_report
from sterna.measure.workloads.network import plot as network_plot
from sterna.measure.workloads.network import report as network_report
from sterna.measure.workloads.network import shapes as rows
from sterna.measure.workloads.network.comparison import compare_rows
from sterna.measure.workloads.operators import bench as operators
from sterna.measure.workloads.pipeline import plan as bench_plan

TABLE_COLUMNS = 120
"""Width when stdout is not a terminal."""

_Report = TypeVar("_Report", report.Report, network_report.Report, migration_bench_report.Report, figures.Report)


def _on_spark(say: Say, quick: bool) -> list[figures.Row]:
    from sterna.measure.workloads.operators.on_spark import measure_spark

    return measure_spark(say, quick)


def _in_order_on_spark(say: Say, quick: bool) -> list[figures.Row]:
    from sterna.measure.workloads.operators.in_order import measure_in_order

    return measure_in_order(say, quick)


EXPRESSION_PARTS: dict[str, operators.Part] = {
    **operators.PARTS,
    "spark": _on_spark,
    "spark-in-order": _in_order_on_spark,
}

app = typer.Typer(help="Measure what a broker costs, and the pipeline.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure what a broker costs, and the pipeline."""


@app.command()
def brokers(
    peer: Annotated[str, typer.Option(help=f"Broker to compare with: {', '.join(BROKERS)}.")] = "mosquitto",
    subject: Annotated[str, typer.Option(help="Broker to judge; the peer itself shows the noise.")] = "sterna",
    workload: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(BY_NAME)}.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=99, help="Rounds; the median counts.  [default: 3]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short round of each workload, about a minute.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Start two brokers in turn, drive both with the same load, print a table with ratios (about six minutes)."""
    talk = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    plan = QUICK if quick else Plan()
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    pair = _broker(subject, "--subject"), _broker(peer, "--peer")
    chosen = [_workload(name) for name in workload] if workload else list(WORKLOADS)
    try:
        versions = {broker.name: broker.describe() for broker in pair}
        results = compare(*pair, chosen, plan, lambda line: talk.print(line, markup=False, soft_wrap=True))
    except MeasurementError as error:
        talk.print(str(error), markup=False)
        raise typer.Exit(1) from None
    told = report.build(pair, versions, machine(), plan, results)
    _tell(told, report.show, json)


@app.command()
def network(
    load: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(rows.BY_NAME)}.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="Only rows of so many: 1, 3, 5.  Hops need 1 too.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=99, help="Rounds; the median counts.  [default: 3]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short round of everything, some minutes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the tables.")] = False,
    png: Annotated[Path | None, typer.Option(help="Draw it too, into this file (needs matplotlib).")] = None,
) -> None:
    """Rows of 1, 3 and 5 nodes beside rows of Mosquittos with bridges: what a hop costs (about twenty minutes)."""
    talk = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    _check_can_draw(png)
    plan = QUICK if quick else Plan()
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    loads = [_load(name) for name in load] if load else list(rows.LOADS)
    shapes = [shape for shape in rows.SHAPES if not nodes or shape.nodes in nodes]
    if not shapes:
        raise typer.BadParameter("there are rows of 1, 3 and 5", param_hint="--nodes")
    pair = ROW_OF_STERNA, ROW_OF_MOSQUITTO
    try:
        versions = {system.name: system.broker.describe() for system in pair}
        say = partial(talk.print, markup=False, soft_wrap=True)
        cells = compare_rows(*pair, loads, shapes, plan, say)
    except MeasurementError as error:
        talk.print(str(error), markup=False)
        raise typer.Exit(1) from None
    told = network_report.build(pair, versions, machine(), plan, cells)
    if png is not None:
        network_plot.draw(told, png)
    _tell(told, network_report.show, json)


@app.command()
def pipeline(
    only: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(bench_plan.NAMES)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller, one round, about three minutes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    png: Annotated[Path | None, typer.Option(help="Draw it too, into this file (needs matplotlib).")] = None,
) -> None:
    """From a node through Spark: speed, latency, and what the feed costs the node (about eight minutes)."""
    talk = Console(stderr=True, highlight=False)
    _check_can_draw(png)
    names = only or list(bench_plan.NAMES)
    for name in names:
        if name not in bench_plan.NAMES:
            raise typer.BadParameter(f"no row {name!r}; known: {', '.join(bench_plan.NAMES)}", param_hint="--only")
    with spark_session("sterna bench", "local[*]", None) as spark:
        from sterna.measure.workloads.pipeline import bench

        say = partial(talk.print, markup=False, soft_wrap=True)
        told = bench.run(spark, names, bench_plan.QUICK if quick else bench_plan.Plan(), say)
    if png is not None:
        figures.draw(told, png)
    _tell(told, figures.show, json)


@app.command("operators")
def bench_operators(
    part: Annotated[str, typer.Option(help=f"Only this one: {', '.join(EXPRESSION_PARTS)}, or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="One short round of everything.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    png: Annotated[Path | None, typer.Option(help="Draw it too, into this file (needs matplotlib).")] = None,
) -> None:
    """Subscriptions that compute: in a node, between nodes, on Spark; what they cost those who do not (ten minutes)."""
    talk = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    _check_can_draw(png)
    if part != "all" and part not in EXPRESSION_PARTS:
        raise typer.BadParameter(f"no part {part!r}; known: {', '.join(EXPRESSION_PARTS)}, all", param_hint="--part")
    parts = EXPRESSION_PARTS if part == "all" else {part: EXPRESSION_PARTS[part]}
    told = operators.run(parts, partial(talk.print, markup=False, soft_wrap=True), quick=quick)
    if png is not None:
        figures.draw(told, png)
    _tell(told, figures.show, json)


@app.command("migration")
def migration_command(
    clients: Annotated[int | None, typer.Option(min=10, max=2000, help="That move.  [default: 300]")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=99, help="Rounds; the median counts.  [default: 3]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer clients, one round, half a minute.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Move clients between three nodes: moves a second, what those on the way wait longer, memory (four minutes)."""
    talk = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    plan = migration_bench.QUICK if quick else migration_bench.Plan()
    plan = replace(plan, clients=clients or plan.clients, rounds=rounds or plan.rounds)
    try:
        measured = migration_bench.measure(plan, partial(talk.print, markup=False, soft_wrap=True))
    except MeasurementError as error:
        talk.print(str(error), markup=False)
        raise typer.Exit(1) from None
    told = migration_bench_report.build(plan, f"sterna {__version__}", machine(), measured)
    _tell(told, migration_bench_report.show, json)


def _check_can_draw(png: Path | None) -> None:
    if png is not None and not network_plot.can_draw():
        raise typer.BadParameter("matplotlib is not installed; leave --png out or install it", param_hint="--png")


def _tell(told: _Report, show: Callable[[_Report, Console], None], as_json: bool) -> None:
    """To stdout; a report of something that failed is a failure."""
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        out = Console(highlight=False)
        show(told, out if out.is_terminal else Console(highlight=False, width=TABLE_COLUMNS))
    if told.failed:
        raise typer.Exit(1)


def _load(name: str) -> Workload:
    if name not in rows.BY_NAME:
        raise typer.BadParameter(f"no load {name!r}; known: {', '.join(rows.BY_NAME)}", param_hint="--load")
    return rows.BY_NAME[name]


def _broker(name: str, option: str) -> Broker:
    if name not in BROKERS:
        raise typer.BadParameter(f"no broker {name!r}; known: {', '.join(BROKERS)}", param_hint=option)
    return BROKERS[name]


def _workload(name: str) -> Workload:
    if name not in BY_NAME:
        raise typer.BadParameter(f"no workload {name!r}; known: {', '.join(BY_NAME)}", param_hint="--workload")
    return BY_NAME[name]


def _leave(number: int, frame: FrameType | None) -> None:
    """Being told to end is a way out like any other: brokers and their directories go first."""
    raise SystemExit(128 + number)
