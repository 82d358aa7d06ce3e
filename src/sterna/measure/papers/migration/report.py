"""`sterna experiment migration`: the command, and its tables beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table

from sterna import __version__
from sterna.measure.command import Means, known
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.migration.document import OF_MODEL, MigrationDocument, MoveDuration, MoveRow, document
from sterna.measure.papers.migration.plan import BY_NAME, KINDS, PAPER_SHORTEST_MS, MigrationPlan
from sterna.measure.report import Column, MeasurementReport, Spread, table, verdict
from sterna.vocabulary.errors import SternaError


def experiment(
    means: Means,
    runs: Annotated[int | None, typer.Option(min=1, max=99, help="Of every experiment.  [default: 10]")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these experiments, such as ahead-A0.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help=f"Only these clients: {', '.join(KINDS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One run of every experiment.")] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if distances could be made, which needs root.")
    ] = False,
    records: Annotated[Path | None, typer.Option(help="Keep what clients wrote down in this new directory.")] = None,
) -> MeasurementReport:
    """Move clients between two nodes while messages flow, and account for every message (half an hour)."""
    for name in kind or ():
        known(name, dict.fromkeys(KINDS), "kind", "--kind")
    plan = MigrationPlan(
        experiments=tuple(known(name, BY_NAME, "experiment", "--only") for name in only or BY_NAME),
        runs=runs or (1 if quick else 10),
        kinds=tuple(one for one in KINDS if not kind or one in kind),
        at_a_distance=may_be_at_a_distance() and not loopback,
    )
    if records is not None and records.exists():
        raise typer.BadParameter(f"{records} is there already", param_hint="--records")
    # Before half an hour of measuring.
    if find_spec("pyspark") is None:
        raise SternaError("the records are analysed with Spark, which is not installed; pip install 'sterna[pipeline]'")
    directory = records or Path(means.cleanup.enter_context(TemporaryDirectory(prefix="sterna-migration-")))
    return report(measured(plan, means, directory), directory)


def measured(plan: MigrationPlan, means: Means, directory: Path) -> MigrationDocument:
    from sterna.measure.papers.migration import experiment as moving
    from sterna.measure.papers.migration.records import read

    processing_ms = moving.processing_ms(plan, means.say)
    moving.run(plan, directory, means.say)
    with means.spark() as spark:
        from sterna.pipeline.audit.move_audit import account

        accounted = account(spark, directory)
    return document(plan, f"sterna {__version__}", accounted, read(directory, "moves"), processing_ms)


def report(told: MigrationDocument, records: Path) -> MeasurementReport:
    """`records` are what the clients wrote down: pictures are drawn from them."""
    return MeasurementReport(
        document=told,
        tables=[_losses(told), _durations(told), _verdicts(told)],
        notes=[_method(told), *told.problems],
        failed=told.invalid,
        draw=partial(_draw, told, records),
    )


def _draw(told: MigrationDocument, records: Path, directory: Path) -> list[Path]:
    from sterna.measure.papers.migration.plots import draw

    return draw(told, records, directory)


def _losses(told: MigrationDocument) -> Table:
    kinds = "/".join(told.kinds)
    first_topic = {row.experiment: row.topic for row in reversed(told.rows)}
    columns = [
        Column("experiment", lambda row: row.experiment if row.topic == first_topic[row.experiment] else "", "left"),
        Column("topic", lambda row: row.topic, "left", no_wrap=False),
        Column("QoS", lambda row: str(row.qos), no_wrap=False),
        Column(f"lost\n{kinds}", lambda row: "/".join(str(cell.lost) for cell in row.cells), no_wrap=False),
        Column("paper", lambda row: str(row.paper_lost), no_wrap=False),
        Column(f"duplicated\n{kinds}", lambda row: "/".join(str(cell.duplicated) for cell in row.cells), no_wrap=False),
        Column("paper", lambda row: str(row.paper_duplicated), no_wrap=False),
        Column("out of\norder", lambda row: str(sum(cell.reordered for cell in row.cells)), no_wrap=False),
        Column("valid\nruns", lambda row: _valid(told, row), no_wrap=False),
        Column("latency ms\nbefore > after", _latencies, no_wrap=False),
    ]
    title = f"Lost and duplicated in {told.runs} run(s), beside the paper's table 6.4 (ten runs)"
    return table(title, columns, told.rows)


def _valid(told: MigrationDocument, row: MoveRow) -> str:
    return f"{sum(cell.valid_runs for cell in row.cells)} of {told.runs * len(row.cells)}"


def _latencies(row: MoveRow) -> str:
    first = row.cells[0]
    return f"{_ms(first.latency_before_ms)} > {_ms(first.latency_after_ms)}"


def _durations(told: MigrationDocument) -> Table:
    """A row an experiment: its moves, kind by kind."""
    names = dict.fromkeys(one.experiment for one in told.durations)
    rows = [[one for one in told.durations if one.experiment == name] for name in names]
    columns = [Column("experiment", lambda row: row[0].experiment, "left")]
    for place, kind in enumerate(told.kinds):
        columns.append(_spread_column(f"{kind}: source done", place, "took"))
        columns.append(_spread_column("client at target", place, "served"))
    columns += [
        Column("model", lambda row: f"{row[0].model_ms:.0f}", no_wrap=False),
        Column("shortest", lambda row: f"{row[0].shortest_ms:.0f}", no_wrap=False),
        Column(f"{OF_MODEL:g} x + processing", lambda row: f"{row[0].limit_ms:.0f}", no_wrap=False),
        Column("verdict", _all_reached, no_wrap=False),
    ]
    return table("How long a move takes: milliseconds, mean (least to greatest)", columns, rows)


def _spread_column(heading: str, place: int, field: str) -> Column:
    return Column(heading, lambda row: _shown(getattr(row[place], field)), no_wrap=False)


def _all_reached(row: Sequence[MoveDuration]) -> str:
    return verdict(all(one.reached for one in row))


def _verdicts(told: MigrationDocument) -> Table:
    columns = [
        Column("what", lambda one: one.what, "left", no_wrap=False),
        Column("measured", lambda one: one.ours, "left", no_wrap=False),
        Column("limit", lambda one: one.limit, "left", no_wrap=False),
        Column("verdict", lambda one: verdict(one.reached), "left", no_wrap=False),
    ]
    return table("To reach", columns, told.targets)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _shown(one: Spread | None) -> str:
    return "-" if one is None else f"{one.mean:.0f} ({one.least:.0f} to {one.greatest:.0f})"


def _method(told: MigrationDocument) -> str:
    return (
        f"{told.version}.  {told.site}.  Every run moves a client of each kind, one shortly after another; counts "
        f"come from the audit on Spark of what publishers and clients wrote down.  Processing is what a move takes "
        f"where links take no time: {told.processing_ms:.0f} ms.  The paper says of its durations only that the "
        f"shortest were {PAPER_SHORTEST_MS} ms, where its model has 120."
    )
