"""`sterna bench network`: rows of brokers beside each other, and what one more broker on the way adds.

Publishers are always at the first broker of a row; subscribers there too (local) or at the last (remote).  A hop costs
what a row costs beyond a lone broker, divided by the hops.  Every ratio is peer / ours where less is better and
ours / peer where more is, so more than 1 means we are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.table import Table

from sterna.measure import plots
from sterna.measure.command import Means, Rounds, known
from sterna.measure.harness import meter
from sterna.measure.harness.comparison import Case, Compared, ComparedSide, RoundPlan, compare, round_plan
from sterna.measure.harness.measurement import Measurement, Summary
from sterna.measure.harness.rows import ROW_OF_MOSQUITTO, ROW_OF_STERNA, RowSystem, started_row
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.shapes import Acknowledged, Lane, Paced, Saturation, Workload
from sterna.measure.pairs import PairDocument, pair_fields
from sterna.measure.report import (
    Column,
    Machine,
    MeasurementReport,
    Verdict,
    machine,
    number,
    table,
    targets_missed,
    times,
    verdict,
)

RowEnd = Literal["local", "remote"]
Pair = tuple[float, float]

PAIRS = 50
BEHIND_MAX = 200
PACED_RATE = 1_000
WARM_UP_MESSAGES = 10_000
"""More than one journal frame of messages."""
PAIR = ROW_OF_STERNA, ROW_OF_MOSQUITTO


@dataclass(frozen=True, slots=True)
class NetworkShape:
    nodes: int
    place: RowEnd

    @property
    def name(self) -> str:
        return "1 node" if self.nodes == 1 else f"{self.nodes} nodes, {self.place}"


ALONE = NetworkShape(1, "local")
SHAPES = (
    ALONE,
    NetworkShape(3, "local"),
    NetworkShape(3, "remote"),
    NetworkShape(5, "local"),
    NetworkShape(5, "remote"),
)


def pairs(count: int) -> tuple[Lane, ...]:
    """One publisher and one subscriber each."""
    return tuple(Lane(((f"bench/row/{n:02}",),), ((f"bench/row/{n:02}",),), fan=1) for n in range(count))


LOADS: tuple[Workload, ...] = (
    Workload("qos0", "10 pairs, QoS 0, saturated", Saturation(pairs(10), block=32, window=640)),
    Workload("qos1", f"{PAIRS} pairs, QoS 1, window 20", Acknowledged(PAIRS, 1, behind_max=BEHIND_MAX)),
    Workload(
        "qos1-fsync",
        "the same on disk, persistent sessions",
        Acknowledged(PAIRS, 1, clean=False, behind_max=BEHIND_MAX),
        durability="fsync",
        note="Mosquitto acknowledges long before anything is on disk: persistence saves every 30 minutes.",
    ),
    Workload(
        "paced",
        f"10 pairs, QoS 0, {PACED_RATE:,} msg/s, one message per write",
        Paced(pairs(10), rate=PACED_RATE),
        figure="latency_p99_us",
        seconds_min=5.5,
    ),
)
JUDGED = ("qos0", "qos1", "paced")
"""Loads on which a hop has to be cheaper than the peer's; the others are shown."""
ACROSS = NetworkShape(3, "remote")
"""Where QoS 1 has to be at least as fast as the peer, in messages a second and in CPU time."""

BY_NAME = {load.name: load for load in LOADS}


class NetworkCell(Compared, frozen=True, kw_only=True):
    """One load on one shape."""

    load: str
    nodes: int
    place: str

    @property
    def shape(self) -> NetworkShape:
        return NetworkShape(self.nodes, "local" if self.place == "local" else "remote")

    @property
    def name(self) -> str:
        return f"{self.load}, {self.shape.name}"


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one more broker on the way: (row - lone broker) / hops.  Pairs are (ours, the peer's)."""

    load: str
    nodes: int
    cpu_us_per_message: Pair
    ratio: float | None
    """None where a figure is below the noise, that is, not above zero."""
    latency_p50_us: Pair | None
    latency_p99_us: Pair | None
    verdict: Verdict


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """QoS 1 across the network beside the peer's."""

    claim: str
    figures: Pair
    ratio: float
    verdict: Verdict


class NetworkDocument(PairDocument, frozen=True, kw_only=True):
    cells: list[NetworkCell]
    hops: list[Hop]
    judgements: list[Judgement]

    @property
    def failed(self) -> bool:
        return any(cell.failure for cell in self.cells)

    @property
    def missed(self) -> list[str]:
        hops = [f"hop, {hop.load}, {hop.nodes} nodes" for hop in self.hops if hop.verdict == "missed"]
        return hops + [one.claim for one in self.judgements if one.verdict == "missed"]


def bench(
    means: Means,
    load: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(BY_NAME)}.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="Only rows of so many: 1, 3, 5.  Hops need 1 too.")] = None,
    rounds: Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short round of everything, some minutes.")] = False,
) -> MeasurementReport:
    """Rows of 1, 3 and 5 nodes beside rows of Mosquittos with bridges: what a hop costs (about twenty minutes)."""
    plan = round_plan(quick=quick, rounds=rounds)
    loads = [known(name, BY_NAME, "load", "--load") for name in load or BY_NAME]
    shapes = [shape for shape in SHAPES if not nodes or shape.nodes in nodes]
    if not shapes:
        raise typer.BadParameter("there are rows of 1, 3 and 5", param_hint="--nodes")
    versions = {system.name: system.alone.describe() for system in PAIR}
    everything = [(one, shape) for one in loads for shape in shapes]
    compared = compare([case(one, shape, plan) for one, shape in everything], plan, means.say)
    cells = [
        NetworkCell(
            load=one.name, nodes=shape.nodes, place=shape.place, subject=found.subject, peer=found.peer,
            failure=found.failure,
        )
        for (one, shape), found in zip(everything, compared, strict=True)
    ]  # fmt: skip
    return report(document(versions, machine(), plan, cells))


def case(load: Workload, shape: NetworkShape, plan: RoundPlan) -> Case:
    ours, theirs = (ComparedSide(system.name, partial(run_row, system, load, shape, plan)) for system in PAIR)
    return Case(f"{load.name}, {shape.name}", load, (ours, theirs))


def run_row(system: RowSystem, load: Workload, shape: NetworkShape, plan: RoundPlan) -> Measurement:
    """One fresh row, one generator, one measurement."""
    broker_core, generator_core = meter.two_cores()
    with started_row(system, shape.nodes, load, broker_core) as row:
        job = GeneratorJob(
            load=load.load,
            near=row.near,
            far=row.near if shape.place == "local" else row.far,
            pids=row.pids,
            warm_up_s=plan.warm_up_s,
            measure_s=plan.seconds(load),
            warm_up_messages=WARM_UP_MESSAGES,
            is_row=True,
        )
        (measured,) = generate(system.name, job, generator_core)
        return measured


def document(
    versions: dict[str, str], where: Machine, plan: RoundPlan, cells: Sequence[NetworkCell]
) -> NetworkDocument:
    return NetworkDocument(
        cells=list(cells),
        hops=hops_of(cells),
        judgements=judgements_of(cells),
        **pair_fields("network", (PAIR[0].name, PAIR[1].name), versions, where, plan),
    )


def hops_of(cells: Sequence[NetworkCell]) -> list[Hop]:
    """For every row with subscribers at its far end, what its hops added."""
    found = []
    for cell in cells:
        alone = _cell(cells, cell.load, ALONE)
        if cell.place == "remote" and alone is not None:
            hop = _hop(cell, alone)
            if hop is not None:
                found.append(hop)
    return found


def _hop(row: NetworkCell, alone: NetworkCell) -> Hop | None:
    cpu = _added(row, alone, "cpu_us_per_message")
    if cpu is None:
        return None
    ours, theirs = cpu
    return Hop(
        load=row.load,
        nodes=row.nodes,
        cpu_us_per_message=cpu,
        ratio=theirs / ours if min(cpu) > 0 else None,
        latency_p50_us=_added(row, alone, "latency_p50_us"),
        latency_p99_us=_added(row, alone, "latency_p99_us"),
        verdict=verdict(ours < theirs if row.load in JUDGED else None),
    )


def _added(row: NetworkCell, alone: NetworkCell, name: str) -> Pair | None:
    """Per hop, for us and the peer; None where one of them has no such figure."""
    added = []
    for long, short in ((row.subject, alone.subject), (row.peer, alone.peer)):
        many, one = getattr(long, name, None), getattr(short, name, None)
        if many is None or one is None:
            return None
        added.append((many - one) / (row.nodes - 1))
    return added[0], added[1]


def judgements_of(cells: Sequence[NetworkCell]) -> list[Judgement]:
    cell = _cell(cells, "qos1", ACROSS)
    if cell is None or cell.subject is None or cell.peer is None:
        return []
    ours, theirs = cell.subject, cell.peer
    speed = ours.throughput, theirs.throughput
    cost = ours.figure, theirs.figure
    return [
        _judgement(f"QoS 1, {ACROSS.name}: messages per second", speed, speed[0] / speed[1]),
        _judgement(f"QoS 1, {ACROSS.name}: us CPU per message", cost, cost[1] / cost[0]),
    ]


def _judgement(claim: str, figures: Pair, ratio: float) -> Judgement:
    return Judgement(claim=claim, figures=figures, ratio=ratio, verdict=verdict(ratio >= 1))


def _cell(cells: Sequence[NetworkCell], load: str, shape: NetworkShape) -> NetworkCell | None:
    wanted = (load, shape.nodes, shape.place)
    return next((cell for cell in cells if (cell.load, cell.nodes, cell.place) == wanted), None)


# -- for people --


def report(told: NetworkDocument) -> MeasurementReport:
    return MeasurementReport(
        document=told,
        tables=[_rows(told), *([_hops(told)] if told.hops else [])],
        notes=[
            *(_judged(one) for one in told.judgements),
            _method(told),
            *_remarks(told),
            targets_missed(told.missed),
        ],
        failed=told.failed,
        draw=lambda file: draw(told, file),
    )


def _judged(one: Judgement) -> str:
    ours, theirs = (number(figure, 1000) for figure in one.figures)
    return f"{one.claim}: {ours} against {theirs} ({one.ratio:.2f}x, target >= 1x): {one.verdict}."


def _rows(told: NetworkDocument) -> Table:
    pair = f"{told.subject}\n{told.peer}"
    columns = [
        Column("load, shape", lambda cell: cell.name, "left"),
        Column(f"us CPU/msg\n{pair}", lambda cell: "\n".join(number(cost, 1000) for cost in _costs(cell))),
        Column(
            f"deliveries per CPU s\n{pair}",
            lambda cell: "\n".join(f"{1e6 / cost:,.0f}" if cost else "-" for cost in _costs(cell)),
        ),
        Column(
            f"msg/s\n{pair}",
            lambda cell: "\n".join(f"{side.throughput:,.0f}" if side else "-" for side in (cell.subject, cell.peer)),
        ),
        Column(f"p50 / p99 us\n{pair}", lambda cell: "\n".join(_latency(side) for side in (cell.subject, cell.peer))),
        Column("CPU ratio", _cost_ratio),
    ]
    return table("Rows of brokers beside each other", columns, told.cells)


def _costs(cell: NetworkCell) -> list[float | None]:
    return [side.cpu_us_per_message if side else None for side in (cell.subject, cell.peer)]


def _cost_ratio(cell: NetworkCell) -> str:
    ours, theirs = _costs(cell)
    return times(theirs / ours if ours and theirs else None)


def _latency(side: Summary | None) -> str:
    if side is None or side.latency_p50_us is None or side.latency_p99_us is None:
        return "-"
    return f"{side.latency_p50_us:,.0f} / {side.latency_p99_us:,.0f}"


def _hops(told: NetworkDocument) -> Table:
    columns = [
        Column("load, row", lambda hop: f"{hop.load}, {hop.nodes} nodes", "left"),
        Column(f"us CPU/msg {told.subject}", lambda hop: number(hop.cpu_us_per_message[0], 1000), no_wrap=False),
        Column(told.peer, lambda hop: number(hop.cpu_us_per_message[1], 1000), no_wrap=False),
        Column("ratio", lambda hop: times(hop.ratio), no_wrap=False),
        Column("target", lambda hop: "-" if hop.verdict == "shown" else "> 1x", no_wrap=False),
        Column("verdict", lambda hop: hop.verdict, no_wrap=False),
        Column(f"p50 / p99 us {told.subject}", lambda hop: _added_latency(hop, 0), no_wrap=False),
        Column(told.peer, lambda hop: _added_latency(hop, 1), no_wrap=False),
    ]
    return table("What one more broker on the way adds", columns, told.hops)


def _added_latency(hop: Hop, side: int) -> str:
    p50, p99 = hop.latency_p50_us, hop.latency_p99_us
    return f"{p50[side]:,.0f} / {p99[side]:,.0f}" if p50 and p99 else "-"


def _remarks(told: NetworkDocument) -> list[str]:
    remarks = [
        f"{load}: {note}" for load in dict.fromkeys(cell.load for cell in told.cells) if (note := BY_NAME[load].note)
    ]
    disturbed: list[str] = []
    for cell in told.cells:
        where = cell.name
        if cell.failure:
            remarks.append(f"{where}: failed: {cell.failure}")
        for name, side in ((told.subject, cell.subject), (told.peer, cell.peer)):
            if side and side.generator_bound:
                remarks.append(f"{where}: {name}: generator-bound; CPU per message holds, msg/s is a lower bound.")
            if side and side.lost:
                remarks.append(f"{where}: {name}: {side.lost:,} deliveries lost.")
            if side and side.disturbed:
                disturbed.append(f"{name} on {where}")
    if disturbed:
        which = f"all {len(disturbed)} of them" if len(disturbed) == 2 * len(told.cells) else "; ".join(disturbed)
        remarks.append(f"Disturbed by other work on this machine, msg/s and latency are worse than need be: {which}.")
    return remarks


def _method(told: NetworkDocument) -> str:
    cores = "all brokers on one core, the generator on another" if told.machine["pinned"] else "nothing pinned"
    return (
        f"{told.method(cores)}, fresh processes each; MQTT 3.1.1, 32 bytes of payload.  "
        f"CPU is that of all brokers of the row.  "
        f"{told.subject} above, {told.peer} below; a ratio above 1 means {told.subject} is better."
    )


def draw(told: NetworkDocument, file: Path) -> None:
    """CPU per message over the length of the row, a panel a load."""
    loads = list(dict.fromkeys(cell.load for cell in told.cells))
    figure = plots.empty_figure(4 * len(loads), 4)
    for place, load in enumerate(loads, 1):
        panel = figure.add_subplot(1, len(loads), place)
        # A lone broker is the beginning of the line: nothing is remote to it.
        row = [cell for cell in told.cells if cell.load == load and (cell.place == "remote" or cell.nodes == 1)]
        for name, side in ((told.subject, 0), (told.peer, 1)):
            points = [(cell.nodes, cost) for cell in row if (cost := _costs(cell)[side]) is not None]
            panel.plot([nodes for nodes, _ in points], [cost for _, cost in points], marker="o", label=name)
        panel.set_title(load)
        panel.set_xlabel("brokers in a row")
        panel.set_ylabel("us CPU per message, all brokers")
        panel.set_ylim(bottom=0)
        panel.legend()
    figure.savefig(file)
