"""Rows of two kinds of brokers in one run: every load and shape against both, fresh processes each time.

Rounds of one load and shape follow each other and who begins alternates, so that a machine that slows down slows both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.comparison import Plan, run_generator
from sterna.measure.harness.measurement import Measurement, Summary, summarise
from sterna.measure.harness.rows import Row, System, started_row
from sterna.measure.load.shapes import Workload
from sterna.measure.workloads.network.shapes import Shape

Say = Callable[[str], None]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one shape: both summaries, or why there is none."""

    load: str
    nodes: int
    place: str
    subject: Summary | None = None
    peer: Summary | None = None
    failure: str | None = None


def compare_rows(
    subject: System, peer: System, loads: Sequence[Workload], shapes: Sequence[Shape], plan: Plan, say: Say
) -> list[Cell]:
    """Run everything; what fails is reported and the rest goes on."""
    cells = []
    everything = [(load, shape) for load in loads for shape in shapes]
    for number, (load, shape) in enumerate(everything, 1):
        say(f"[{number}/{len(everything)}] {load.name}, {shape.name}: {load.summary}")
        try:
            cells.append(_compare_one((subject, peer), load, shape, plan, say, first=number % 2))
        except MeasurementError as error:
            say(f"    failed: {error}")
            cells.append(Cell(load=load.name, nodes=shape.nodes, place=shape.place, failure=str(error)))
    return cells


def _compare_one(pair: tuple[System, System], load: Workload, shape: Shape, plan: Plan, say: Say, first: int) -> Cell:
    measured: tuple[list[Measurement], list[Measurement]] = ([], [])
    for number in range(plan.rounds):
        for side in (0, 1) if (number + first) % 2 else (1, 0):
            one = run_row(pair[side], load, shape, plan)
            measured[side].append(one)
            say(f"    round {number + 1}/{plan.rounds} {pair[side].name:<10} {_one_line(one)}")
    ours, theirs = (summarise(load.figure, runs) for runs in measured)
    return Cell(load=load.name, nodes=shape.nodes, place=shape.place, subject=ours, peer=theirs)


def run_row(system: System, load: Workload, shape: Shape, plan: Plan) -> Measurement:
    """One fresh row, one generator, one measurement."""
    broker_core, generator_core = meter.two_cores()
    seconds = plan.seconds(load)
    with started_row(system, shape.nodes, load, broker_core) as row:
        command = _command(load, shape, row, plan.warm_up_s, seconds)
        return run_generator(system.name, command, plan.warm_up_s + seconds, generator_core)


def _command(load: Workload, shape: Shape, row: Row, warm_up_s: float, seconds: float) -> list[str]:
    far = row.near if shape.place == "local" else row.far
    command = [sys.executable, "-m", "sterna.measure.workloads.network.generator", load.name]
    command += ["--near", str(row.near), "--far", str(far)]
    for pid in row.pids:
        command += ["--pid", str(pid)]
    return [*command, "--warm-up", str(warm_up_s), "--measure", str(seconds)]


def _one_line(one: Measurement) -> str:
    text = f"{one.cpu_us_per_message or 0:.2f} us CPU per message, {one.throughput:,.0f} msg/s"
    if one.latency_p99_us is not None:
        text += f", p50 {one.latency_p50_us:.0f} us, p99 {one.latency_p99_us:.0f} us"
    text += f" (brokers {one.broker_busy:.0%} busy, generator {one.generator_busy:.0%})"
    flags = {f"LOST {one.lost}": one.lost, "generator-bound": one.generator_bound, "disturbed": one.disturbed}
    return ", ".join([text, *(flag for flag, set_ in flags.items() if set_)])
