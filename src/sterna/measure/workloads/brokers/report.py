"""The comparison told twice: one JSON document for machines, one table for people, from the same values.

Every ratio is peer / ours of a figure where less is better, so more than 1 means we are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sterna.measure.harness.brokers import Broker
from sterna.measure.harness.comparison import Plan, Result
from sterna.measure.harness.measurement import Summary
from sterna.measure.load.shapes import BY_NAME, Figure, Workload

Verdict = Literal["reached", "missed", "shown", "failed"]
UNITS: dict[Figure, str] = {
    "cpu_us_per_message": "us CPU/msg",
    "cost_spread": "dearest / cheapest",
    "latency_p99_us": "us p99",
    "kib_per_connection": "KiB per connection",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, judged."""

    workload: str
    summary: str
    unit: str
    ratio: float | None
    target: str
    verdict: Verdict
    slower: bool
    remarks: list[str]
    subject: Summary | None
    peer: Summary | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str = "brokers"
    subject: str
    peer: str
    versions: dict[str, str]
    machine: dict[str, str | int | bool]
    rounds: int
    warm_up_s: float
    measure_s: float
    rows: list[Row]

    @property
    def failed(self) -> bool:
        return any(row.verdict == "failed" for row in self.rows)


def judge(result: Result, pair: tuple[Broker, Broker]) -> Row:
    workload = BY_NAME[result.workload]
    ours, theirs = result.subject, result.peer
    ratio = theirs.figure / ours.figure if ours and theirs and ours.figure > 0 else None
    return Row(
        workload=workload.name,
        summary=workload.summary,
        unit=UNITS[workload.figure],
        ratio=ratio,
        target=_target(workload),
        verdict=_verdict(workload, ours, ratio),
        slower=ratio is not None and ratio < 1,
        remarks=_remarks(workload, result, pair),
        subject=ours,
        peer=theirs,
    )


def build(
    pair: tuple[Broker, Broker],
    versions: dict[str, str],
    machine: dict[str, str | int | bool],
    plan: Plan,
    results: Sequence[Result],
) -> Report:
    subject, peer = pair
    return Report(
        subject=subject.name,
        peer=peer.name,
        versions=versions,
        machine=machine,
        rounds=plan.rounds,
        warm_up_s=plan.warm_up_s,
        measure_s=plan.measure_s,
        rows=[judge(result, pair) for result in results],
    )


def _target(workload: Workload) -> str:
    target = workload.target
    if target is None:
        return "-"
    if target.ratio is not None:
        return f">= {target.ratio:.2g}x"
    return f"<= {target.ceiling:g}"


def _verdict(workload: Workload, ours: Summary | None, ratio: float | None) -> Verdict:
    target = workload.target
    if ours is None:
        return "failed"
    if target is None:
        return "shown"
    if target.ceiling is not None:
        return "reached" if ours.figure <= target.ceiling else "missed"
    assert target.ratio is not None, "a target is a ratio or a ceiling"
    return "reached" if ratio is not None and ratio >= target.ratio else "missed"


def _remarks(workload: Workload, result: Result, pair: tuple[Broker, Broker]) -> list[str]:
    remarks = [workload.note]
    if result.failure:
        remarks.append(f"failed: {result.failure}")
    for broker, side in zip(pair, (result.subject, result.peer), strict=True):
        known = [broker.remark(workload)]
        if side and side.generator_bound:
            known.append("generator-bound; CPU per message holds, throughput is a lower bound.")
        if side and side.disturbed:
            known.append("disturbed by other work on this machine; throughput and latency are worse than they need be.")
        if side and side.lost:
            known.append(f"{side.lost:,} deliveries lost.")
        remarks.extend(f"{broker.name}: {remark}" for remark in known if remark)
    return [remark for remark in dict.fromkeys(remarks) if remark]


def show(report: Report, console: Console) -> None:
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> list[RenderableType]:
    parts: list[RenderableType] = [_table(report), Text(_method(report))]
    for row in report.rows:
        parts.extend(Text(f"{row.workload}: {remark}") for remark in row.remarks)
    slower = [f"{row.workload} ({row.ratio:.2f}x)" for row in report.rows if row.slower]
    missed = [row.workload for row in report.rows if row.verdict == "missed"]
    parts.append(Text(f"Where {report.subject} is behind {report.peer}: " + (", ".join(slower) or "nowhere") + "."))
    parts.append(Text("Targets missed: " + (", ".join(missed) or "none") + "."))
    return parts


def _table(report: Report) -> Table:
    table = Table(title="Brokers beside each other")
    table.add_column("workload", no_wrap=True)
    table.add_column("figure (less is better)")
    for heading in (report.subject, report.peer, "ratio", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("msg/s out", justify="right", no_wrap=True)
    table.add_column("broker / generator busy", justify="right")
    for row in report.rows:
        pair = (row.subject, row.peer)
        table.add_row(
            row.workload,
            row.unit,
            *(_figure(side) for side in pair),
            "-" if row.ratio is None else f"{row.ratio:.2f}x",
            row.target,
            row.verdict,
            "\n".join(f"{side.throughput:,.0f}" if side and side.throughput else "-" for side in pair),
            "\n".join(f"{side.broker_busy:.0%} / {side.generator_busy:.0%}" if side else "-" for side in pair),
        )
    return table


def _figure(side: Summary | None) -> str:
    if side is None:
        return "-"
    lines = [_number(side.figure)]
    if len(side.rounds) > 1:
        lines.append(f"{_number(side.figure_min)} to {_number(side.figure_max)}")
    if side.latency_p50_us is not None and side.latency_p99_us is not None:
        lines.append(f"p50 {_number(side.latency_p50_us)} us")
        lines.append(f"p99 {_number(side.latency_p99_us)} us")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _method(report: Report) -> str:
    cores = "broker and generator each on a core of its own" if report.machine["pinned"] else "one core, nothing pinned"
    return (
        f"{'; '.join(dict.fromkeys(report.versions.values()))}.  "
        f"{report.machine['cpu']}, {report.machine['cores']} cores, Linux {report.machine['kernel']}; {cores}.  "
        f"Median of {report.rounds} round(s) of {report.measure_s:g} s or more after {report.warm_up_s:g} s of "
        f"warm-up, a fresh process each, least and greatest below it; "
        f"MQTT 3.1.1, 32 bytes of payload.  Ratio = {report.peer} / {report.subject}: more than 1 means "
        f"{report.subject} is better.  msg/s and busy: {report.subject} above, {report.peer} below."
    )
