"""`sterna experiment emma` and `factories`: EX-S1, EX-S2 and EX-S3 of the thesis, beside its figures.

By default the town is simulated (`town.py`): measuring, selection, scaling and orders are the product's code with its
defaults (the factories: `calm_s` and `young_s` of 30 s), hosts and MQTT are a model.  With `--live` it is one of real
processes (`live_town.py`), smaller and in a shorter time.  Records and analysis are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table

from sterna.measure.command import Means
from sterna.measure.papers.emma.analysis import CrowdVisit, PlainAnalysis, RecordAnalysis, TownRow, visits
from sterna.measure.papers.emma.live_report import NOTE as LIVE_NOTE
from sterna.measure.papers.emma.live_report import are_kept, live_targets
from sterna.measure.papers.emma.on_spark import SparkAnalysis
from sterna.measure.papers.emma.plans import emma_plans, factories_plans, nearest, played
from sterna.measure.papers.emma.playbooks import EAST, WEST
from sterna.measure.papers.emma.records import RunRecords
from sterna.measure.papers.emma.sweeps import ManagementRow, ThresholdRow, management, tables, thresholds
from sterna.measure.papers.emma.targets import EmmaTarget, target
from sterna.measure.plots import COLOURS, empty_figure
from sterna.measure.report import Column, MeasurementReport, table, targets_missed


class TownDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    seed: int
    live: bool
    runs: list[TownRow]
    targets: list[EmmaTarget]
    visits: list[CrowdVisit] = []
    """Of the run whose nodes come and go."""
    management: list[ManagementRow] = []
    thresholds: list[ThresholdRow] = []


SIMULATED_NOTE: Final = (
    "The product's measuring and decisions over simulated hosts; MQTT is a model; delivery is not checked here. "
    "Management is counted by the thesis' sizes, with the mesh of workers and the reports of gateways; true bytes "
    "are those of echoes, questions, answers, reports of gateways and orders, with headers of UDP, TCP and MQTT. "
    "Reports of workers, every two seconds, are the same in both ways and not counted."
)
Seed = Annotated[int, typer.Option(min=0, help="Of all dice.")]
Live = Annotated[bool, typer.Option("--live", help="Real processes at a distance, in a shorter time (needs root).")]
Minute = Annotated[float, typer.Option(min=10, max=60, help="With --live: seconds that a minute of the thesis takes.")]
Records = Annotated[
    Path | None, typer.Option(help="Write the records of all runs into this directory, as Parquet.", show_default=False)
]
OnSpark = Annotated[bool, typer.Option("--spark", help="Have Spark work out the figures, from records in Parquet.")]


def emma_experiment(
    means: Means,
    seed: Seed = 1,
    sweeps: Annotated[
        bool, typer.Option("--sweeps", help="Besides: management by brokers and gateways, and thresholds of a start.")
    ] = False,
    live: Live = False,
    minute: Minute = 30.0,
    records: Records = None,
    on_spark: OnSpark = False,
) -> MeasurementReport:
    """EMMA's eight steps: brokers by hand and by pressure, gateways by coordinates and by measuring everything.

    Simulated, unless it is --live: coordinator and measuring are those of the product, hosts and MQTT are a model.
    """
    plans = emma_plans(minute if live else None)
    runs = played(plans, seed, means.say, live=live, keep=on_spark or records is not None)
    if live:
        runs = [nearest(runs[0]), *runs]
    with _analysis(means, runs, records, on_spark=on_spark) as analysis:
        measured, static, dynamic = runs[:3]
        rows = [analysis.row(run) for run in runs]
        same = 100 * analysis.same_choice(measured, static)
        slower = analysis.slower(static, dynamic)
    targets = [
        target("settled gateway-seconds as near as by measuring everything, %", same, ">= 99", "the same", same >= 99),
        *([] if live else _management_targets(rows[0], rows[1])),
        target(
            "dynamic / static latency, worst topic, last minute of a step", slower, "<= 1.1", "the same", slower <= 1.1
        ),
    ]
    if live:
        # The run with everything measured was worked out, and has nothing to show.
        targets += live_targets(runs[1:], dynamic, plans[1].tuning.calm_s)
        return _report("emma", seed, runs[1:], rows[1:], dynamic, targets, ["global", WEST, EAST], live=True)
    found = _report("emma", seed, runs, rows, dynamic, targets, ["global", WEST, EAST], live=False)
    return _with_sweeps(means, found, seed) if sweeps else found


def _management_targets(measured: TownRow, placed: TownRow) -> list[EmmaTarget]:
    messages, size = 100 * placed.management_messages, 100 * placed.management_bytes
    fewer = measured.managed_bytes / placed.managed_bytes
    truly = measured.wire_bytes / placed.wire_bytes
    return [
        target("management, % of messages", messages, "<= 0.50", "6.24 -> 0.50", messages <= 0.50),
        target("management, % of bytes", size, "<= 0.23", "2.18 -> 0.23", size <= 0.23),
        target("bytes of measuring everything / ours, by the thesis' sizes", fewer, ">= 10", "9.5", fewer >= 10),
        target("the same, true bytes with headers", truly, ">= 10", "not given", truly >= 10),
    ]


def _with_sweeps(means: Means, report: MeasurementReport, seed: int) -> MeasurementReport:
    managed, swept = management(means, seed), thresholds(means, seed)
    document = msgspec.structs.replace(report.document, management=managed, thresholds=swept)
    return replace(report, document=document, tables=[*report.tables, *tables(managed, swept)])


def factories_experiment(
    means: Means,
    seed: Seed = 1,
    live: Live = False,
    minute: Minute = 30.0,
    records: Records = None,
    on_spark: OnSpark = False,
) -> MeasurementReport:
    """Three factories open and close: nodes start beside them and stop again, beside nodes that always run.

    Simulated, unless it is --live: coordinator and measuring are those of the product, hosts and MQTT are a model.
    """
    plans = factories_plans(minute if live else None)
    runs = played(plans, seed, means.say, live=live, keep=on_spark or records is not None)
    with _analysis(means, runs, records, on_spark=on_spark) as analysis:
        static, dynamic = runs
        rows = [analysis.row(run) for run in runs]
        share = 100 * analysis.node_seconds(dynamic) / analysis.node_seconds(static)
        cold, *later = analysis.spikes(static, dynamic)
        matched = 100 * analysis.matched(dynamic)
    longest = max(later)
    targets = [
        target("broker-minutes, % of static", share, "<= 30", "not given (ideal 27)", share <= 30),
        target("longest spike after an opening, s", longest, "<= 15", "short", longest <= 15),
        target("the same at the start, when nobody knows where it is, s", cold, "<= 15", "short", cold <= 15),
        target("seconds in which nodes = open factories + 1, %", matched, "-", "always", None),
    ]
    if live:
        targets += live_targets(runs, dynamic, plans[1].tuning.calm_s)
    return _report("factories", seed, runs, rows, dynamic, targets, ["A", "B", "C"], live=live)


@contextmanager
def _analysis(
    means: Means, runs: Sequence[RunRecords], directory: Path | None, *, on_spark: bool
) -> Iterator[RecordAnalysis]:
    """The records are written where they are wanted, and for Spark."""
    with tempfile.TemporaryDirectory(prefix="sterna-records-") as name:
        if on_spark or directory is not None:
            for run in runs:
                run.write(directory or Path(name))
        if not on_spark:
            yield PlainAnalysis()
            return
        with means.spark() as session:
            yield SparkAnalysis(session, directory or Path(name))


def _report(
    experiment: str,
    seed: int,
    runs: list[RunRecords],
    rows: list[TownRow],
    dynamic: RunRecords,
    targets: list[EmmaTarget],
    topics: list[str],
    *,
    live: bool,
) -> MeasurementReport:
    """`dynamic`: the run whose nodes come and go."""
    found = visits(dynamic)
    told = TownDocument(experiment=experiment, seed=seed, live=live, runs=rows, targets=targets, visits=found)
    columns = [
        Column("minute", lambda at: str(at), "right"),
        *(_nodes_column(row) for row in rows),
        *(_latency_column(row, topic) for topic in topics for row in rows),
    ]
    first = table("Nodes, and mean latency in ms by topic, minute by minute", columns, range(len(rows[0].nodes)))
    second = table(
        "Runs",
        [
            Column("run", lambda row: f"{row.title}, {row.way}", "left"),
            Column("moves", lambda row: str(row.moves)),
            Column(
                "starts", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.starts) or "-", "left", False
            ),
            Column(
                "stops", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.stops) or "-", "left", False
            ),
            Column("messages", lambda row: f"{100 * row.management_messages:.2f} %"),
            Column("bytes", lambda row: f"{100 * row.management_bytes:.2f} %"),
        ],
        rows,
    )
    third = table(
        "To reach",
        [
            Column("what", lambda one: one.what, "left", False),
            Column("figure", lambda one: f"{one.figure:.2f}"),
            Column("bound", lambda one: one.bound),
            Column("thesis", lambda one: one.thesis),
            Column("verdict", lambda one: one.verdict, "left"),
        ],
        targets,
    )
    notes = [
        LIVE_NOTE if live else SIMULATED_NOTE,
        targets_missed([one.what for one in targets if one.verdict == "missed"]),
    ]
    return MeasurementReport(
        document=told,
        tables=[first, second, _visits_table(found), third],
        notes=notes,
        failed=not are_kept(runs),
        draw=lambda file: draw(told, topics, file),
    )


def _nodes_column(row: TownRow) -> Column:
    return Column(f"nodes\n{_short(row)}", lambda at: str(row.nodes[at]))


def _latency_column(row: TownRow, topic: str) -> Column:
    return Column(
        f"{topic}\n{_short(row)}", lambda at: _told(row.latency_ms[topic][at] if topic in row.latency_ms else None)
    )


def _short(row: TownRow) -> str:
    return "all" if row.way == "measure-all" else row.title.split(", ")[1].replace("dynamic (all workers)", "dyn. all")


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _visits_table(found: list[CrowdVisit]) -> Table:
    return table(
        "Crowds where a node may start",
        [
            Column("site", lambda one: one.site, "left"),
            Column("comes, s", lambda one: f"{one.at_s:.0f}"),
            Column("served after, s", lambda one: _seconds(one.served_s)),
            Column("node off after it left, s", lambda one: _seconds(one.off_s) if one.leaves else "stays"),
        ],
        found,
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def draw(told: TownDocument, topics: Sequence[str], file: Path) -> None:
    """Latency by topic, nodes and management messages, minute by minute; a column of panels for each run."""
    figure = empty_figure(3.2 * len(told.runs), 7)
    for place, row in enumerate(told.runs, 1):
        minutes = range(len(row.nodes))
        latency = figure.add_subplot(3, len(told.runs), place)
        for number, topic in enumerate(topics):
            points = [(at, ms) for at, ms in enumerate(row.latency_ms.get(topic, [])) if ms is not None]
            if points:
                latency.plot(*zip(*points, strict=True), color=COLOURS[number + 1], label=topic)
        latency.set_title(f"{row.title}\n{row.way}", fontsize=8)
        latency.set_ylim(0)
        nodes = figure.add_subplot(3, len(told.runs), len(told.runs) + place)
        nodes.step(minutes, row.nodes, color=COLOURS[2], where="post")
        nodes.set_ylim(0)
        managed = figure.add_subplot(3, len(told.runs), 2 * len(told.runs) + place)
        managed.bar(minutes, row.managed, color=COLOURS[1])
        managed.set_xlabel("minute", fontsize=8)
        if place == 1:
            latency.legend(frameon=False, fontsize=7)
            latency.set_ylabel("latency, ms", fontsize=8)
            nodes.set_ylabel("nodes", fontsize=8)
            managed.set_ylabel("management messages", fontsize=8)
        for axes in (latency, nodes, managed):
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
