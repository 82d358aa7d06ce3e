"""`sterna bench brokers`: two brokers beside each other, workload by workload, each judged by its target.

Every ratio is peer / ours of a figure where less is better, so more than 1 means we are better.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import typer

from sterna.measure.command import Means, Rounds, known
from sterna.measure.harness import meter
from sterna.measure.harness.brokers import BROKERS, BrokerKind, started
from sterna.measure.harness.comparison import Case, Compared, ComparedSide, RoundPlan, compare, round_plan
from sterna.measure.harness.measurement import Measurement, Summary
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.shapes import (
    Acknowledged,
    Figure,
    Idle,
    InTurn,
    Lane,
    Paced,
    Saturation,
    Workload,
    WorkloadTarget,
    fan_in,
    fan_out,
    new_topics,
    wildcards,
)
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

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "fan-out",
        "5 topics x 10 publishers x 10 subscribers, QoS 0, saturated",
        Saturation(fan_out(5, 10, 10), block=64, window=2560),
        WorkloadTarget(ratio=6.0),
    ),
    Workload(
        "fan-out-10k",
        "the same at 10,000 msg/s in, 100,000 out",
        Paced(fan_out(5, 10, 10), rate=10_000),
        WorkloadTarget(ratio=1.2),
    ),
    Workload(
        "fan-in",
        "100 publishers : 1 subscriber, QoS 0, saturated",
        Saturation(fan_in(100), block=32, window=6400),
        WorkloadTarget(ratio=2.0),
    ),
    Workload("qos1", "50 pairs, QoS 1, window 20", Acknowledged(50, 1), WorkloadTarget(ratio=1.2)),
    Workload("qos2", "50 pairs, QoS 2, window 20", Acknowledged(50, 2), WorkloadTarget(ratio=1.2)),
    Workload(
        "qos1-fsync",
        "the same on disk, persistent sessions, QoS 1",
        Acknowledged(50, 1, clean=False),
        durability="fsync",
    ),
    Workload(
        "qos2-fsync",
        "the same on disk, persistent sessions, QoS 2",
        Acknowledged(50, 2, clean=False),
        durability="fsync",
    ),
    Workload(
        "wildcards",
        "10,000 wildcard subscriptions of 100 subscribers, 20 publishers, QoS 0, saturated",
        Saturation(wildcards(10_000, 20, 100), block=100, window=4000),
        WorkloadTarget(ratio=2.0),
        note="Each of 10,000 topics matches one filter; topics recur, so a broker may remember what it matched.",
    ),
    Workload(
        "new-topics",
        "the same subscriptions, and every message on a topic that was never used before",
        Saturation(new_topics(10_000, 20, 100), block=100, window=4000),
        WorkloadTarget(ratio=8.0),
        note="Each message matches one filter of 10,000; no topic comes twice, so nothing can be remembered of it.",
    ),
    Workload(
        "topics-in-turn",
        "1,000 wildcard subscriptions of 100 subscribers; 1,000, 100,000 and 1,000,000 topics in turn",
        InTurn(tuple(Saturation(new_topics(1_000, 10, 100, n), block=100, window=4000) for n in (1, 100, 1000))),
        WorkloadTarget(ceiling=1.3),
        figure="cost_spread",
        note="The dearest of the three per message, as a multiple of the cheapest.",
    ),
    Workload(
        "latency",
        "10 pairs, QoS 0, 1,000 msg/s",
        Paced(tuple(Lane(((f"bench/pair/{n}",),), ((f"bench/pair/{n}",),), fan=1) for n in range(10)), rate=1_000),
        WorkloadTarget(ratio=1 / 1.5),
        figure="latency_p99_us",
        seconds_min=5.5,
        repeats=3,
    ),
    Workload(
        "idle",
        "5,000 connections that do nothing",
        Idle(5_000),
        WorkloadTarget(ceiling=12.0),
        figure="kib_per_connection",
        note="Memory of the broker process; the kernel's socket buffers are the same for everyone and not counted.",
    ),
)

BY_NAME = {workload.name: workload for workload in WORKLOADS}
UNITS: dict[Figure, str] = {
    "cpu_us_per_message": "us CPU/msg",
    "cost_spread": "dearest / cheapest",
    "latency_p99_us": "us p99",
    "kib_per_connection": "KiB per connection",
}


class WorkloadRow(msgspec.Struct, frozen=True, kw_only=True):
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


class BrokersDocument(PairDocument, frozen=True, kw_only=True):
    rows: list[WorkloadRow]

    @property
    def failed(self) -> bool:
        return any(row.verdict == "failed" for row in self.rows)


def bench(
    means: Means,
    peer: Annotated[str, typer.Option(help=f"Broker to compare with: {', '.join(BROKERS)}.")] = "mosquitto",
    subject: Annotated[str, typer.Option(help="Broker to judge; the peer itself shows the noise.")] = "sterna",
    workload: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(BY_NAME)}.")] = None,
    rounds: Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short round of each workload, about a minute.")] = False,
) -> MeasurementReport:
    """Start two brokers in turn, drive both with the same load, print a table with ratios (about six minutes)."""
    plan = round_plan(quick=quick, rounds=rounds)
    pair = known(subject, BROKERS, "broker", "--subject"), known(peer, BROKERS, "broker", "--peer")
    chosen = [known(name, BY_NAME, "workload", "--workload") for name in workload or BY_NAME]
    versions = {broker.name: broker.describe() for broker in pair}
    compared = compare([case(pair, one, plan) for one in chosen], plan, means.say)
    rows = [judge(one, found, pair) for one, found in zip(chosen, compared, strict=True)]
    return report(document(pair, versions, machine(), plan, rows))


def case(pair: tuple[BrokerKind, BrokerKind], workload: Workload, plan: RoundPlan) -> Case:
    ours, theirs = (ComparedSide(broker.name, partial(run_once, broker, workload, plan)) for broker in pair)
    return Case(workload.name, workload, (ours, theirs))


def run_once(broker: BrokerKind, workload: Workload, plan: RoundPlan) -> Measurement:
    """One fresh broker, one generator, one measurement."""
    broker_core, generator_core = meter.two_cores()
    with started(broker, workload, broker_core) as running:
        job = GeneratorJob(
            load=workload.load,
            near=running.port,
            pids=(running.pid,),
            warm_up_s=plan.warm_up_s,
            measure_s=plan.seconds(workload),
        )
        (measured,) = generate(broker.name, job, generator_core)
        return measured


def document(
    pair: tuple[BrokerKind, BrokerKind],
    versions: dict[str, str],
    where: Machine,
    plan: RoundPlan,
    rows: list[WorkloadRow],
) -> BrokersDocument:
    names = pair[0].name, pair[1].name
    return BrokersDocument(rows=rows, **pair_fields("brokers", names, versions, where, plan))


def judge(workload: Workload, compared: Compared, pair: tuple[BrokerKind, BrokerKind]) -> WorkloadRow:
    ours, theirs = compared.subject, compared.peer
    ratio = theirs.figure / ours.figure if ours and theirs and ours.figure > 0 else None
    return WorkloadRow(
        workload=workload.name,
        summary=workload.summary,
        unit=UNITS[workload.figure],
        ratio=ratio,
        target=_target(workload.target),
        verdict=verdict(_is_reached(workload.target, ours, ratio)) if ours else "failed",
        slower=ratio is not None and ratio < 1,
        remarks=_remarks(workload, compared, pair),
        subject=ours,
        peer=theirs,
    )


def _target(target: WorkloadTarget | None) -> str:
    if target is None:
        return "-"
    return f"<= {target.ceiling:g}" if target.ratio is None else f">= {target.ratio:.2g}x"


def _is_reached(target: WorkloadTarget | None, ours: Summary, ratio: float | None) -> bool | None:
    if target is None:
        return None
    if target.ceiling is not None:
        return ours.figure <= target.ceiling
    assert target.ratio is not None, "a target is a ratio or a ceiling"
    return ratio is not None and ratio >= target.ratio


def _remarks(workload: Workload, compared: Compared, pair: tuple[BrokerKind, BrokerKind]) -> list[str]:
    remarks = [workload.note]
    if compared.failure:
        remarks.append(f"failed: {compared.failure}")
    for broker, side in zip(pair, (compared.subject, compared.peer), strict=True):
        told = [broker.remark(workload)]
        if side and side.generator_bound:
            told.append("generator-bound; CPU per message holds, throughput is a lower bound.")
        if side and side.disturbed:
            told.append("disturbed by other work on this machine; throughput and latency are worse than they need be.")
        if side and side.lost:
            told.append(f"{side.lost:,} deliveries lost.")
        remarks.extend(f"{broker.name}: {remark}" for remark in told if remark)
    return [remark for remark in dict.fromkeys(remarks) if remark]


def report(told: BrokersDocument) -> MeasurementReport:
    slower = [f"{row.workload} ({row.ratio:.2f}x)" for row in told.rows if row.slower]
    columns = [
        Column("workload", lambda row: row.workload, "left"),
        Column("figure (less is better)", lambda row: row.unit, "left", no_wrap=False),
        Column(told.subject, lambda row: _figure(row.subject)),
        Column(told.peer, lambda row: _figure(row.peer)),
        Column("ratio", lambda row: times(row.ratio)),
        Column("target", lambda row: row.target),
        Column("verdict", lambda row: row.verdict, "left"),
        Column("msg/s out", _throughputs),
        Column("broker / generator busy", _busy, no_wrap=False),
    ]
    return MeasurementReport(
        document=told,
        tables=[table("Brokers beside each other", columns, told.rows)],
        notes=[
            _method(told),
            *(f"{row.workload}: {remark}" for row in told.rows for remark in row.remarks),
            f"Where {told.subject} is behind {told.peer}: {', '.join(slower) or 'nowhere'}.",
            targets_missed([row.workload for row in told.rows if row.verdict == "missed"]),
        ],
        failed=told.failed,
    )


def _throughputs(row: WorkloadRow) -> str:
    pair = row.subject, row.peer
    return "\n".join(f"{side.throughput:,.0f}" if side and side.throughput else "-" for side in pair)


def _busy(row: WorkloadRow) -> str:
    pair = row.subject, row.peer
    return "\n".join(f"{side.broker_busy:.0%} / {side.generator_busy:.0%}" if side else "-" for side in pair)


def _figure(side: Summary | None) -> str:
    if side is None:
        return "-"
    lines = [number(side.figure)]
    if len(side.rounds) > 1:
        lines.append(f"{number(side.figure_min)} to {number(side.figure_max)}")
    if side.latency_p50_us is not None and side.latency_p99_us is not None:
        lines.append(f"p50 {number(side.latency_p50_us)} us")
        lines.append(f"p99 {number(side.latency_p99_us)} us")
    return "\n".join(lines)


def _method(told: BrokersDocument) -> str:
    cores = "broker and generator each on a core of its own" if told.machine["pinned"] else "one core, nothing pinned"
    return (
        f"{told.method(cores)}, a fresh process each, least and greatest below it; "
        f"MQTT 3.1.1, 32 bytes of payload.  Ratio = {told.peer} / {told.subject}: more than 1 means "
        f"{told.subject} is better.  msg/s and busy: {told.subject} above, {told.peer} below."
    )
