"""`sterna experiment mobile`: the command, its tables, and each statement of the thesis with a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from sterna.measure.command import Means, known
from sterna.measure.papers.mobile.document import (
    BESIDE,
    COMPARED,
    CellFigures,
    MobileDocument,
    PairedDifference,
    WrongTables,
    count_wrong_tables,
    document,
)
from sterna.measure.papers.mobile.statements import SPEED, JudgedStatement
from sterna.measure.papers.mobile.statistics import Estimate
from sterna.measure.papers.mobile.sweep import MobileSample, in_processes, on_spark
from sterna.measure.report import Column, MeasurementReport, machine_in_words, table
from sterna.simulation.papers.protocols import PROTOCOLS
from sterna.simulation.papers.radio_run import CONFIGURATIONS, RunPlan, Workload
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.extras import how_to_add

SPEEDS = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
QUICK_SPEEDS = (0.0, 8.0)
QUICK_S = (100.0, 40.0)
WRONG_RUNS = 1000


def experiment(
    means: Means,
    configuration: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(CONFIGURATIONS)}.")] = None,
    speed: Annotated[list[float] | None, typer.Option(min=0.0, max=100.0, help="Only these, in m/s.")] = None,
    protocol: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(PROTOCOLS)}.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=99, help="Runs of each.  [default: 10]")] = None,
    workload: Annotated[
        Workload, typer.Option(help="Every subscriber wants everything, or each message is for one of them.")
    ] = "all",
    kbit_s: Annotated[int, typer.Option(min=250, max=100_000, help="Of the radio; the CC2420 has 250.")] = 250,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds, 0 and 8 m/s, 140 s each (3 minutes).")] = False,
    records: Annotated[
        Path | None, typer.Option(help="Keep each run in this directory; those that are there are not done again.")
    ] = None,
    on: Annotated[
        Literal["spark", "processes"] | None,
        typer.Option(help="Where runs are done.  [default: spark if it is installed]"),
    ] = None,
) -> MeasurementReport:
    """Brokers that move, on a simulated radio: MFT-PubSub, AODV and others (2 to 3 hours; --quick: 3 minutes)."""
    sizes = [known(name, {name: name for name in CONFIGURATIONS}, "configuration", "--configuration")
             for name in configuration or CONFIGURATIONS]  # fmt: skip
    protocols = [known(name, {name: name for name in PROTOCOLS}, "protocol", "--protocol")
                 for name in protocol or PROTOCOLS]  # fmt: skip
    speeds = speed or list(QUICK_SPEEDS if quick else SPEEDS)
    count = seeds or (2 if quick else 10)
    if on == "spark" and find_spec("pyspark") is None:
        raise SternaError(f"Spark is not installed; give --on processes, or {how_to_add('pipeline')}")
    plans = [
        _plan(size, one, name, seed, workload, kbit_s, acks=True, quick=quick)
        for size in sizes for one in speeds for name in protocols for seed in range(1, count + 1)
    ]  # fmt: skip
    bare = [
        _plan("C16", SPEED, name, seed, workload, kbit_s, acks=False, quick=quick)
        for name in protocols for seed in range(1, count + 1) if "C16" in sizes and SPEED in speeds
    ]  # fmt: skip
    begun = time.monotonic()
    if records is not None:
        records.mkdir(parents=True, exist_ok=True)
    samples = _run([*plans, *bare], means, records, on)
    wall = time.monotonic() - begun
    where = on or ("spark" if find_spec("pyspark") is not None else "processes")
    means.say("wrong tables on ideal links")
    told = document(
        _ordered([one for one in samples if one.figures.plan.acks], plans),
        _ordered([one for one in samples if not one.figures.plan.acks], bare),
        count_wrong_tables(WRONG_RUNS // 5 if quick else WRONG_RUNS),
        _method(workload, kbit_s, quick=quick, where=where),
        wall,
    )
    return report(told)


def _plan(
    size: str, speed: float, protocol: str, seed: int, workload: Workload, kbit_s: int, *, acks: bool, quick: bool
) -> RunPlan:
    publish_s, silence_s = QUICK_S if quick else (500.0, 200.0)
    return RunPlan(
        configuration=size, speed_m_s=speed, protocol=protocol, seed=seed, workload=workload, acks=acks,
        kbit_s=kbit_s, publish_s=publish_s, silence_s=silence_s,
    )  # fmt: skip


def _run(plans: Sequence[RunPlan], means: Means, records: Path | None, on: str | None) -> list[MobileSample]:
    if on == "processes" or (on is None and find_spec("pyspark") is None):
        return in_processes(plans, records, means.say)
    return on_spark(plans, means.spark, records, means.say)


def _ordered(samples: Sequence[MobileSample], plans: Sequence[RunPlan]) -> list[MobileSample]:
    by_plan = {sample.figures.plan: sample for sample in samples}
    return [by_plan[plan] for plan in plans]


def _method(workload: Workload, kbit_s: int, *, quick: bool, where: str) -> str:
    wanted = "every subscriber wants both publishers' messages" if workload == "all" else "each message is for one"
    length = "100 s of messages and 40 s of silence" if quick else "500 s of messages and 200 s of silence"
    return (
        f"Simulated, on {where}, {kbit_s} kbit/s.  {length}, one message per second and publisher; {wanted}.  "
        "Heartbeats, HELLOs and hellos every second, hops acknowledged with three retries, events of 22 bytes.  "
        "Same seed, same positions for all.  "
        "Rate: delivered of what was routed to a known subscriber, as in the thesis; fair: of all that was published."
    )


def report(told: MobileDocument) -> MeasurementReport:
    shown = SPEED if SPEED in told.speeds else told.speeds[-1]
    return MeasurementReport(
        document=told,
        tables=[
            *_figures(told, shown),
            _by_speed(told),
            _by_role(told, shown),
            *(_differences(told, beside, shown) for beside in BESIDE if beside in told.protocols),
            *([_without_acks(told)] if told.without_acks else []),
            _wrong(told.wrong_tables),
            _statements("The thesis' statements, judged by our runs", told.statements),
            _statements("Aims of our own overlay and strategy", told.targets),
        ],
        notes=[
            told.method,
            f"{told.seeds} seed(s); ± is the 95 % confidence interval of the mean.  {machine_in_words(told.machine)}.",
            f"{told.wall_s:,.0f} s in all; CPU seconds: "
            + ", ".join(f"{name} {seconds:,.0f}" for name, seconds in told.cpu_s.items())
            + ".",
        ],
        draw=lambda directory: _draw(told, directory),
    )


def _draw(told: MobileDocument, directory: Path) -> list[Path]:
    from sterna.measure.papers.mobile.plots import draw

    return draw(told, directory)


def told(estimate: Estimate | None, digits: int = 2) -> str:
    if estimate is None:
        return "-"
    margin = f" ± {estimate.margin:,.{digits}f}" if estimate.runs > 1 else ""
    return f"{estimate.mean:,.{digits}f}{margin}"


def _cell(name: str, digits: int, heading: str) -> Column:
    return Column(heading, lambda cell: told(cell.figures[name], digits))


def _place() -> list[Column]:
    return [
        Column("size", lambda cell: cell.configuration, "left"),
        Column("protocol", lambda cell: cell.protocol, "left"),
    ]


def _figures(told: MobileDocument, speed: float) -> list[Table]:
    arrived = [
        *_place(),
        _cell("rate", 3, "rate"),
        _cell("fair_rate", 3, "fair"),
        _cell("delivered", 0, "delivered"),
        _cell("duplicates", 0, "twice"),
        _cell("delay_s", 2, "delay s"),
        _cell("hops", 2, "hops"),
    ]
    cost = [
        *_place(),
        Column("nodes", lambda cell: str(cell.stations)),
        _cell("frames", 0, "frames"),
        _cell("control_frames", 0, "control"),
        _cell("sent_bytes", 0, "bytes"),
        _cell("changes_a_minute", 1, "parents/min"),
        _cell("depth", 2, "depth"),
        Column("CPU s", lambda cell: f"{cell.cpu_s:.1f}"),
    ]
    rows = _at(told.cells, speed)
    return [
        table(f"Delivered at {speed:g} m/s", arrived, rows),
        table(f"Sent at {speed:g} m/s: frames, those without events, and bytes per node", cost, rows),
    ]


def _at(cells: Sequence[CellFigures], speed: float) -> list[CellFigures]:
    return [one for one in cells if one.speed_m_s == speed]


def _by_speed(told: MobileDocument) -> Table:
    by_place = {(one.configuration, one.protocol, one.speed_m_s): one for one in told.cells}
    rows = [(size, name) for size in told.configurations for name in told.protocols]

    def text(row: tuple[str, str], speed: float) -> str:
        figures = by_place[(*row, speed)].figures
        return " / ".join(
            "-" if (one := figures[name]) is None else f"{one.mean:.2f}" for name in ("rate", "fair_rate")
        )

    def changes(row: tuple[str, str], speed: float) -> str:
        one = by_place[(*row, speed)].figures["changes_a_minute"]
        return "-" if one is None else f"{one.mean:.1f}"

    columns = [
        Column("size", lambda row: row[0], "left"),
        Column("protocol", lambda row: row[1], "left"),
        *(Column(f"{speed:g} m/s", lambda row, speed=speed: text(row, speed)) for speed in told.speeds),  # type: ignore[misc]
        *(
            Column(f"parents/min\n{speed:g} m/s", lambda row, speed=speed: changes(row, speed))  # type: ignore[misc]
            for speed in (told.speeds[0], told.speeds[-1])
        ),
    ]
    return table("Delivery rate of the thesis / fair rate, by speed; changes of parents", columns, rows)


def _by_role(told_all: MobileDocument, speed: float) -> Table:
    def column(role: str, name: str, heading: str) -> Column:
        return Column(heading, lambda cell: told(cell.roles[role][name], 0), no_wrap=False)

    columns = [
        *_place(),
        *(
            column(role, name, f"{role}\n{heading}")
            for role in ("broker", "subscriber", "publisher")
            for name, heading in (("frames", "frames"), ("acks", "acks"), ("sent_bytes", "bytes"))
        ),
    ]
    return table(f"Per node of each role, {speed:g} m/s", columns, _at(told_all.cells, speed))


def _differences(told_all: MobileDocument, beside: str, speed: float) -> Table:
    def column(name: str) -> Column:
        digits = 3 if name.endswith("rate") else 0

        def text(row: PairedDifference) -> str:
            found = row.figures[name]
            if found is None:
                return "-"
            sign = "+" if found.is_above_zero else "-" if found.is_below_zero else "="
            return f"{found.mean:+,.{digits}f} ± {found.margin:,.{digits}f} ({sign})"

        return Column(name.replace("_", " "), text)

    rows = [one for one in told_all.differences if (one.beside, one.speed_m_s) == (beside, speed)]
    columns = [*_place(), *map(column, COMPARED)]
    return table(f"Less {beside}, on the same positions, {speed:g} m/s; (=): the interval holds zero", columns, rows)


def _without_acks(told: MobileDocument) -> Table:
    acknowledged = [one for one in told.cells if one.configuration == "C16" and one.speed_m_s == SPEED]
    rows = [(f"{one.protocol}, {text}", one)
            for both in zip(acknowledged, told.without_acks, strict=True)
            for one, text in zip(both, ("acknowledged", "not acknowledged"), strict=True)]  # fmt: skip
    shown = (("rate", 3), ("fair_rate", 3), ("delivered", 0), ("frames", 0), ("sent_bytes", 0))
    columns = [
        Column("hops", lambda row: row[0], "left"),
        *(
            Column(name.replace("_", " "), lambda row, name=name, digits=digits: told_of(row[1], name, digits))  # type: ignore[misc]
            for name, digits in shown
        ),
        Column("acks per broker", lambda row: told_role(row[1])),
    ]
    return table(f"With and without acknowledged hops, C16, {SPEED:g} m/s", columns, rows)


def told_of(cell: CellFigures, name: str, digits: int) -> str:
    return told(cell.figures[name], digits)


def told_role(cell: CellFigures) -> str:
    return told(cell.roles["broker"]["acks"], 0)


def _wrong(rows: Sequence[WrongTables]) -> Table:
    columns = [
        Column("protocol", lambda row: row.protocol, "left"),
        Column("seven brokers on ideal links", lambda row: row.steps, "left"),
        Column("wrong", lambda row: f"{row.wrong} of {row.runs}"),
    ]
    return table("Runs that end with wrong tables though all is quiet", columns, rows)


def _statements(title: str, rows: Sequence[JudgedStatement]) -> Table:
    columns = [
        Column("place", lambda row: row.place, "left"),
        Column("statement", lambda row: row.text, "left", no_wrap=False),
        Column("verdict", lambda row: row.judgement, "left"),
        Column("ours", lambda row: row.figures, "left", no_wrap=False),
    ]
    return table(title, columns, rows)
