"""`sterna bench adaptation`: the CPU and memory of a coordinator's pass over many gateways and workers."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from random import Random
from typing import Annotated

import typer

from sterna.adaptation.deciding import decide
from sterna.adaptation.picture import (
    KnownGateway,
    KnownWorker,
    Measured,
    Observations,
    ReportStamp,
    Weight,
    WorkerNodeState,
)
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.command import Means
from sterna.measure.figures import FigureRow, figures, measure_parts, report
from sterna.measure.report import MeasurementReport, verdict
from sterna.measure.workloads.adaptation import gateway_cost, settled
from sterna.measure.workloads.adaptation.processes import LOADS, PROCESSES, measured
from sterna.overlay.coordinates import Coordinate

PASS_S = 1.0
MEMORY_MIB = 200.0
ROUNDS = 3


def bench(
    means: Means,
    gateways: Annotated[int, typer.Option(min=1, max=50_000, help="Gateways that report.")] = 5000,
    workers: Annotated[int, typer.Option(min=2, max=1000, help="Workers, a fifth of which run a node.")] = 200,
    part: Annotated[str, typer.Option(help="Only this: settled, measuring, fan-out or qos1.")] = "",
) -> MeasurementReport:
    """The cost of a coordinator's pass: a picture, a judgement on every gateway and the pressure on every worker.

    And what a second process of a node brings.
    """
    name = f"{gateways} x {workers}"
    parts = {name: lambda: _measured(gateways, workers, name)}
    parts["settled"] = settled.measured
    parts["measuring"] = gateway_cost.measured
    parts |= {f"{load.name}, {PROCESSES} processes": partial(measured, load) for load in LOADS}
    wanted = {title: row for title, row in parts.items() if part in ("", *title.split(", "))}
    if not wanted:
        raise typer.BadParameter(f"parts are {', '.join(parts)}", param_hint="--part")
    rows = measure_parts(wanted, means.say)
    title = "A coordinator's pass, and nodes of several processes"
    return report(figures("adaptation", title, "CPU time, pinned where a row says so", rows, quick=False))


def _measured(gateways: int, workers: int, name: str) -> list[FigureRow]:
    # Without patience: a pass that orders as much as it may.
    settings = AdaptationTuning(steady_s=0.0, high_s=0.0)
    passes = []
    for _ in range(ROUNDS):
        known = town(gateways, workers, Random(1))
        began = time.process_time()
        outcome = decide(known.picture(1.0), settings)
        passes.append(time.process_time() - began)
    tracemalloc.start()
    known = town(gateways, workers, Random(1))
    outcome = decide(known.picture(1.0), settings)
    most = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    judged = f"{len(outcome.judgements)} judgements, {len(outcome.decisions)} decisions"
    seconds = sorted(passes)[len(passes) // 2]
    return [
        FigureRow(
            name=f"pass, {name}",
            summary=f"CPU seconds of one pass, median of {ROUNDS}; {judged}",
            unit="s CPU",
            figure=seconds,
            target=f"< {PASS_S:g}",
            verdict=verdict(seconds < PASS_S),
            rounds=[(one, None) for one in passes],
        ),
        FigureRow(
            name=f"memory, {name}",
            summary="most memory that reports, picture and pass held at once (the interpreter is not counted)",
            unit="MiB",
            figure=most,
            target=f"< {MEMORY_MIB:g}",
            verdict=verdict(most < MEMORY_MIB),
        ),
    ]


def town(gateways: int, workers: int, rng: Random) -> Observations:
    """Reports of participants anywhere, each gateway with ten measured round trips."""
    known = Observations(dimensions=4, lost_s=60.0, fresh_s=600.0)
    names = [f"w{number:04}" for number in range(workers)]
    running = names[:: max(workers // 40, 5)]
    serves: dict[str, dict[str, Weight]] = {name: {} for name in names}
    for number in range(gateways):
        gateway = f"g{number:05}"
        serves[rng.choice(running)][gateway] = Weight(10, 10, 10.0)
        trips = {name: Measured(rng.uniform(0.001, 0.3), 0.0) for name in rng.sample(names, min(10, workers))}
        known.gateway_reported(KnownGateway(gateway, _anywhere(rng), trips), ReportStamp(1, 1), 0.0)
    for name in names:
        state = WorkerNodeState.SERVING if name in running else WorkerNodeState.OFF
        worker = KnownWorker(name, _anywhere(rng), site=name[:3], state=state, serves=serves[name])
        known.worker_reported(worker, ReportStamp(1, 1), 0.0)
    return known


def _anywhere(rng: Random) -> Coordinate:
    return Coordinate(tuple(rng.uniform(-0.1, 0.1) for _ in range(4)), rng.uniform(0.0, 0.01), 0.2)
