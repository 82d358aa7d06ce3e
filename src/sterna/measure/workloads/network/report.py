"""Rows of brokers told twice: one JSON document for machines, tables for people, from the same values.

Every ratio is peer / ours where less is better and ours / peer where more is, so more than 1 means we are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sterna.measure.harness.comparison import Plan
from sterna.measure.harness.measurement import Summary
from sterna.measure.harness.rows import System
from sterna.measure.workloads.network.comparison import Cell
from sterna.measure.workloads.network.shapes import ACROSS, ALONE, BY_NAME, JUDGED, Shape

Verdict = Literal["reached", "missed", "shown", "failed"]
Pair = tuple[float, float]


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """What one more broker on the way adds: (row - lone broker) / hops.  Pairs are (ours, the peer's)."""

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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str = "network"
    subject: str
    peer: str
    versions: dict[str, str]
    machine: dict[str, str | int | bool]
    rounds: int
    warm_up_s: float
    measure_s: float
    cells: list[Cell]
    hops: list[Hop]
    judgements: list[Judgement]

    @property
    def failed(self) -> bool:
        return any(cell.failure for cell in self.cells)

    @property
    def missed(self) -> list[str]:
        hops = [f"hop, {hop.load}, {hop.nodes} nodes" for hop in self.hops if hop.verdict == "missed"]
        return hops + [one.claim for one in self.judgements if one.verdict == "missed"]


def build(
    pair: tuple[System, System],
    versions: dict[str, str],
    machine: dict[str, str | int | bool],
    plan: Plan,
    cells: Sequence[Cell],
) -> Report:
    return Report(
        subject=pair[0].name,
        peer=pair[1].name,
        versions=versions,
        machine=machine,
        rounds=plan.rounds,
        warm_up_s=plan.warm_up_s,
        measure_s=plan.measure_s,
        cells=list(cells),
        hops=hops_of(cells),
        judgements=judgements_of(cells),
    )


def hops_of(cells: Sequence[Cell]) -> list[Hop]:
    """For every row with subscribers at its far end, what its hops added."""
    found = []
    for cell in cells:
        alone = _cell(cells, cell.load, ALONE)
        if cell.place == "remote" and alone is not None:
            hop = _hop(cell, alone)
            if hop is not None:
                found.append(hop)
    return found


def _hop(row: Cell, alone: Cell) -> Hop | None:
    cpu = _added(row, alone, "cpu_us_per_message")
    if cpu is None:
        return None
    ours, theirs = cpu
    judged = row.load in JUDGED
    return Hop(
        load=row.load,
        nodes=row.nodes,
        cpu_us_per_message=cpu,
        ratio=theirs / ours if min(cpu) > 0 else None,
        latency_p50_us=_added(row, alone, "latency_p50_us"),
        latency_p99_us=_added(row, alone, "latency_p99_us"),
        verdict=("reached" if ours < theirs else "missed") if judged else "shown",
    )


def _added(row: Cell, alone: Cell, name: str) -> Pair | None:
    """Per hop, for us and the peer; None where one of them has no such figure."""
    added = []
    for long, short in ((row.subject, alone.subject), (row.peer, alone.peer)):
        many, one = getattr(long, name, None), getattr(short, name, None)
        if many is None or one is None:
            return None
        added.append((many - one) / (row.nodes - 1))
    return added[0], added[1]


def judgements_of(cells: Sequence[Cell]) -> list[Judgement]:
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
    return Judgement(claim=claim, figures=figures, ratio=ratio, verdict="reached" if ratio >= 1 else "missed")


def _cell(cells: Sequence[Cell], load: str, shape: Shape) -> Cell | None:
    wanted = (load, shape.nodes, shape.place)
    return next((cell for cell in cells if (cell.load, cell.nodes, cell.place) == wanted), None)


def show(report: Report, console: Console) -> None:
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> list[RenderableType]:
    parts: list[RenderableType] = [_rows(report)]
    if report.hops:
        parts.append(_hops(report))
    for one in report.judgements:
        ours, theirs = (_number(figure) for figure in one.figures)
        parts.append(Text(f"{one.claim}: {ours} against {theirs} ({one.ratio:.2f}x, target >= 1x): {one.verdict}."))
    parts.append(Text(_method(report)))
    parts.extend(Text(remark) for remark in _remarks(report))
    parts.append(Text("Targets missed: " + (", ".join(report.missed) or "none") + "."))
    return parts


def _rows(report: Report) -> Table:
    table = Table(title="Rows of brokers beside each other")
    table.add_column("load, shape", no_wrap=True)
    for heading in ("us CPU/msg", "deliveries per CPU s", "msg/s", "p50 / p99 us"):
        table.add_column(f"{heading}\n{report.subject}\n{report.peer}", justify="right", no_wrap=True)
    table.add_column("CPU ratio", justify="right", no_wrap=True)
    for cell in report.cells:
        sides = (cell.subject, cell.peer)
        cpu = [side.cpu_us_per_message if side else None for side in sides]
        table.add_row(
            f"{cell.load}, {_shape(cell).name}",
            "\n".join("-" if value is None else _number(value) for value in cpu),
            "\n".join("-" if not value else f"{1e6 / value:,.0f}" for value in cpu),
            "\n".join(f"{side.throughput:,.0f}" if side else "-" for side in sides),
            "\n".join(_latency(side) for side in sides),
            f"{cpu[1] / cpu[0]:.2f}x" if cpu[0] and cpu[1] else "-",
        )
    return table


def _latency(side: Summary | None) -> str:
    if side is None or side.latency_p50_us is None or side.latency_p99_us is None:
        return "-"
    return f"{side.latency_p50_us:,.0f} / {side.latency_p99_us:,.0f}"


def _hops(report: Report) -> Table:
    table = Table(title="What one more broker on the way adds")
    table.add_column("load, row", no_wrap=True)
    for heading in (f"us CPU/msg {report.subject}", report.peer, "ratio", "target", "verdict"):
        table.add_column(heading, justify="right")
    table.add_column(f"p50 / p99 us {report.subject}", justify="right")
    table.add_column(report.peer, justify="right")
    for hop in report.hops:
        p50, p99 = hop.latency_p50_us, hop.latency_p99_us
        table.add_row(
            f"{hop.load}, {hop.nodes} nodes",
            *(_number(value) for value in hop.cpu_us_per_message),
            "-" if hop.ratio is None else f"{hop.ratio:.2f}x",
            "-" if hop.verdict == "shown" else "> 1x",
            hop.verdict,
            *(f"{p50[side]:,.0f} / {p99[side]:,.0f}" if p50 and p99 else "-" for side in (0, 1)),
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def _remarks(report: Report) -> list[str]:
    remarks = [f"{load}: {note}" for load in dict.fromkeys(cell.load for cell in report.cells) if (note := _note(load))]
    disturbed: list[str] = []
    for cell in report.cells:
        where = f"{cell.load}, {_shape(cell).name}"
        if cell.failure:
            remarks.append(f"{where}: failed: {cell.failure}")
        for name, side in ((report.subject, cell.subject), (report.peer, cell.peer)):
            if side and side.generator_bound:
                remarks.append(f"{where}: {name}: generator-bound; CPU per message holds, msg/s is a lower bound.")
            if side and side.lost:
                remarks.append(f"{where}: {name}: {side.lost:,} deliveries lost.")
            if side and side.disturbed:
                disturbed.append(f"{name} on {where}")
    if disturbed:
        told = f"all {len(disturbed)} of them" if len(disturbed) == 2 * len(report.cells) else "; ".join(disturbed)
        remarks.append(f"Disturbed by other work on this machine, msg/s and latency are worse than need be: {told}.")
    return remarks


def _shape(cell: Cell) -> Shape:
    return Shape(cell.nodes, "local" if cell.place == "local" else "remote")


def _note(load: str) -> str:
    return BY_NAME[load].note


def _method(report: Report) -> str:
    cores = "all brokers on one core, the generator on another" if report.machine["pinned"] else "nothing pinned"
    return (
        f"{'; '.join(dict.fromkeys(report.versions.values()))}.  "
        f"{report.machine['cpu']}, {report.machine['cores']} cores, Linux {report.machine['kernel']}; {cores}.  "
        f"Median of {report.rounds} round(s) of {report.measure_s:g} s or more after {report.warm_up_s:g} s of "
        f"warm-up, fresh processes each; MQTT 3.1.1, 32 bytes of payload.  CPU is that of all brokers of the row.  "
        f"{report.subject} above, {report.peer} below; a ratio above 1 means {report.subject} is better."
    )
