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
from sterna.measure.papers.migration.document import (
    OF_MODEL,
    LatencyRow,
    MigrationDocument,
    MoveDuration,
    MoveRow,
    document,
)
from sterna.measure.papers.migration.plan import (
    BY_NAME,
    KINDS,
    PAPER_SHORTEST_MS,
    PARTS,
    MigrationPlan,
    MoveExperiment,
)
from sterna.measure.papers.migration.wire import PAPER_PER_MESSAGE, MoveWire, WireMove
from sterna.measure.report import Column, MeasurementReport, Spread, table, verdict
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.extras import how_to_add


def experiment(
    means: Means,
    runs: Annotated[int | None, typer.Option(min=1, max=99, help="Of every set.  [default: 10]")] = None,
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these sets, such as ahead-A0.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help=f"Only these clients: {', '.join(KINDS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One run of every set.")] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if distances could be made, which needs root.")
    ] = False,
    records: Annotated[Path | None, typer.Option(help="Keep what clients wrote down in this new directory.")] = None,
) -> MeasurementReport:
    """Move clients between nodes while messages flow, and account for every message (an hour; --quick: ten minutes)."""
    for name in kind or ():
        known(name, dict.fromkeys(KINDS), "kind", "--kind")
    parts = [known(name, {name: name for name in PARTS}, "part", "--part") for name in part or ()]
    plan = MigrationPlan(
        experiments=_chosen(parts, only or ()),
        runs=runs or (1 if quick else 10),
        kinds=tuple(one for one in KINDS if not kind or one in kind),
        at_a_distance=may_be_at_a_distance() and not loopback,
    )
    if records is not None and records.exists():
        raise typer.BadParameter(f"{records} is there already", param_hint="--records")
    # Before an hour of measuring.
    if find_spec("pyspark") is None:
        raise SternaError(f"the records are analysed with Spark, which is not installed; {how_to_add('pipeline')}")
    directory = records or Path(means.cleanup.enter_context(TemporaryDirectory(prefix="sterna-migration-")))
    is_wire_asked_for = "wire" in parts or not (parts or only)
    return report(measured(plan, means, directory, wire=is_wire_asked_for and plan.at_a_distance), directory)


def _chosen(parts: Sequence[str], only: Sequence[str]) -> tuple[MoveExperiment, ...]:
    """Those of the parts, and those named; all, if nothing is said."""
    named = [known(name, BY_NAME, "set", "--only") for name in only]
    return tuple(one for one in BY_NAME.values() if one.part in parts or one in named or not (parts or only))


def measured(plan: MigrationPlan, means: Means, directory: Path, *, wire: bool) -> MigrationDocument:
    from sterna.measure.papers.migration import experiment as moving
    from sterna.measure.papers.migration import wire_runs
    from sterna.measure.papers.migration.records import read

    counted = wire_runs.measure(plan, means.say) if wire else None
    if not plan.experiments:
        return document(plan, f"sterna {__version__}", [], [], counted)
    moving.run(plan, directory, means.say)
    with means.spark() as spark:
        from sterna.pipeline.audit.move_audit import account

        accounted = account(spark, directory)
    return document(plan, f"sterna {__version__}", accounted, read(directory, "moves"), counted)


def report(told: MigrationDocument, records: Path) -> MeasurementReport:
    """`records` are what the clients wrote down: pictures are drawn from them."""
    return MeasurementReport(
        document=told,
        tables=_tables(told),
        notes=[_method(told), *told.problems],
        failed=told.invalid,
        draw=partial(_draw, told, records),
    )


def _draw(told: MigrationDocument, records: Path, directory: Path) -> list[Path]:
    from sterna.measure.papers.migration.plots import draw

    return draw(told, records, directory)


def _tables(told: MigrationDocument) -> list[Table]:
    tables = [_losses(told), _durations(told), _silences(told)] if told.rows else []
    if told.latency:
        tables.append(_latency(told))
    if told.wire is not None:
        tables += [_moves_on_the_wire(told.wire), _sizes(told.wire)]
    return [*tables, _verdicts(told)] if told.targets else tables


def _losses(told: MigrationDocument) -> Table:
    kinds = "/".join(told.kinds)
    columns = [
        *_subscription(told),
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


def _subscription(told: MigrationDocument) -> list[Column]:
    first_topic = {row.experiment: row.topic for row in reversed(told.rows)}
    return [
        Column("set", lambda row: row.experiment if row.topic == first_topic[row.experiment] else "", "left"),
        Column("topic", lambda row: row.topic, "left", no_wrap=False),
        Column("QoS\npublished > subscribed", lambda row: f"{row.published} > {row.qos}", no_wrap=False),
    ]


def _silences(told: MigrationDocument) -> Table:
    columns = _subscription(told)
    for place, kind in enumerate(told.kinds):
        columns.append(Column(f"{kind}: silence", partial(_of_cell, place, "silence_ms"), no_wrap=False))
        columns.append(Column("mean gap", partial(_of_cell, place, "gap_ms"), no_wrap=False))
        columns.append(Column("times", partial(_silence_ratio, place), no_wrap=False))
    title = "The longest silence of a stream around the move, worst run, beside its mean gap: milliseconds"
    return table(title, columns, told.rows)


def _of_cell(place: int, field: str, row: MoveRow) -> str:
    return _ms(getattr(row.cells[place], field))


def _silence_ratio(place: int, row: MoveRow) -> str:
    cell = row.cells[place]
    return "-" if cell.silence_ms is None or not cell.gap_ms else f"{cell.silence_ms / cell.gap_ms:.2f}"


def _latency(told: MigrationDocument) -> Table:
    columns = [
        Column("one way, all links", lambda row: f"{row.latency_ms:g}"),
        Column("paper: 8 x", lambda row: f"{row.paper_ms:g}"),
        Column("model's shortest", lambda row: f"{row.shortest_ms:g}"),
    ]
    columns += [Column(kind, partial(_served_at, kind), no_wrap=False) for kind in told.kinds]
    slopes = ", ".join(f"{one.kind} {one.times_latency:.1f} x + {one.besides_ms:.0f} ms" for one in told.slopes)
    return table(
        f"Until the client is served at the target, by latency: milliseconds, mean\n({slopes})", columns, told.latency
    )


def _served_at(kind: str, row: LatencyRow) -> str:
    served = row.served_ms.get(kind)
    return "-" if served is None else f"{served:.0f} ({served / row.latency_ms:.1f} x)"


def _moves_on_the_wire(wire: MoveWire) -> Table:
    columns = [
        Column("client", lambda one: one.kind, "left"),
        Column("QoS", lambda one: str(one.qos)),
        Column("words between the nodes", _words, "left", no_wrap=False),
        Column("packets", lambda one: str(one.packets)),
        Column("bytes", lambda one: f"{one.bytes:,}"),
        Column("PUBLISH to the client a second\nbefore > around", _publishing, no_wrap=False),
        Column("client's bytes a second", lambda one: f"{one.client_per_s:,.0f}", no_wrap=False),
        Column("more around the move", lambda one: f"{one.client_extra:+,.0f}", no_wrap=False),
        Column("a message: packets, bytes", _per_message, no_wrap=False),
        Column("paper (6.7)", lambda one: "{}, {}".format(*PAPER_PER_MESSAGE[one.qos]), no_wrap=False),
    ]
    return table("A move on the wire, whole packets (the paper: at most six packets of moves)", columns, wire.moves)


def _words(one: WireMove) -> str:
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in one.words.items())


def _publishing(one: WireMove) -> str:
    return f"{one.publish_per_s:.1f} > {one.publish_around_per_s:.1f}"


def _per_message(one: WireMove) -> str:
    return f"{one.message_packets:.1f}, {one.message_bytes:.0f}"


def _sizes(wire: MoveWire) -> Table:
    columns = [
        Column("packet", lambda one: one.name, "left"),
        Column("seen", lambda one: str(one.count)),
        Column("bytes of its packet, mean", lambda one: f"{one.packet_bytes:.0f}"),
        Column("of it alone", lambda one: f"{one.own_bytes:.0f}"),
        Column("paper", lambda one: "-" if one.paper_bytes is None else str(one.paper_bytes)),
    ]
    title = "Sizes of packets (the paper's tables 6.5 and 6.6; words of moves share packets and names here)"
    return table(title, columns, [*wire.sizes, *wire.mqtt])


def _valid(told: MigrationDocument, row: MoveRow) -> str:
    return f"{sum(cell.valid_runs for cell in row.cells)} of {told.runs * len(row.cells)}"


def _latencies(row: MoveRow) -> str:
    first = row.cells[0]
    return f"{_ms(first.latency_before_ms)} > {_ms(first.latency_after_ms)}"


def _durations(told: MigrationDocument) -> Table:
    """A row an experiment: its moves, kind by kind."""
    names = dict.fromkeys(one.experiment for one in told.durations)
    rows = [[one for one in told.durations if one.experiment == name] for name in names]
    columns = [Column("set", lambda row: row[0].experiment, "left")]
    for place, kind in enumerate(told.kinds):
        columns.append(_spread_column(f"{kind}: served at target", place, "served"))
        columns.append(_spread_column("source done", place, "took"))
    columns += [
        Column("model", lambda row: f"{row[0].model_ms:.0f}", no_wrap=False),
        Column("shortest", lambda row: f"{row[0].shortest_ms:.0f}", no_wrap=False),
        Column(f"{OF_MODEL:g} x", lambda row: f"{row[0].limit_ms:.0f}", no_wrap=False),
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
        f"{told.version}.  {told.site}.  Every run moves a client of each kind, one shortly after another, and ends "
        f"when nothing has come for a while; counts come from the audit on Spark of what publishers and clients wrote "
        f"down.  The model's processing takes no time, and its limits contain none of ours.  The paper says of its "
        f"durations only that the shortest were {PAPER_SHORTEST_MS} ms, where its model has 120."
    )
