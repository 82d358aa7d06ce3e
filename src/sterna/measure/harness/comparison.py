"""Two brokers, one run: every workload against both, a fresh process each time, the order alternating.

Rounds of one workload follow each other, so that a machine that slows down slows both brokers down.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.brokers import Broker, started, tie_to_parent
from sterna.measure.harness.measurement import Measurement, Summary, summarise
from sterna.measure.load.shapes import InTurn, Workload

GRACE_S = 60.0
"""Beyond warm-up and measured interval: connecting, draining, ending."""
DESCRIPTORS = 16_384

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int = 3
    warm_up_s: float = 1.0
    measure_s: float = 3.0
    short: bool = False
    """Take the measured interval as it is, even where a workload wants longer for its percentiles."""

    def seconds(self, workload: Workload) -> float:
        return self.measure_s if self.short else max(self.measure_s, workload.seconds_min)


QUICK = Plan(rounds=1, warm_up_s=0.5, measure_s=1.0, short=True)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One workload: both summaries, or why there is none."""

    workload: str
    subject: Summary | None = None
    peer: Summary | None = None
    failure: str | None = None


def compare(subject: Broker, peer: Broker, workloads: Sequence[Workload], plan: Plan, say: Say) -> list[Result]:
    """Run everything; a workload that fails is reported and the rest goes on."""
    _raise_descriptor_limit()
    results = []
    for number, workload in enumerate(workloads, 1):
        say(f"[{number}/{len(workloads)}] {workload.name}: {workload.summary}")
        try:
            results.append(_compare_one(subject, peer, workload, plan, say, first=number % 2))
        except MeasurementError as error:
            say(f"    failed: {error}")
            results.append(Result(workload=workload.name, failure=str(error)))
    return results


def _compare_one(subject: Broker, peer: Broker, workload: Workload, plan: Plan, say: Say, first: int) -> Result:
    """`first` is who begins: with a single round the order still alternates from workload to workload."""
    measured: tuple[list[Measurement], list[Measurement]] = ([], [])
    rounds = plan.rounds if plan.short else plan.rounds * workload.repeats
    for number in range(rounds):
        for side in (0, 1) if (number + first) % 2 else (1, 0):
            broker = (subject, peer)[side]
            one = run_once(broker, workload, plan)
            measured[side].append(one)
            say(f"    round {number + 1}/{rounds} {broker.name:<10} {_one_line(one)}")
    ours, theirs = (summarise(workload.figure, runs) for runs in measured)
    return Result(workload=workload.name, subject=ours, peer=theirs)


def run_once(broker: Broker, workload: Workload, plan: Plan) -> Measurement:
    """One fresh broker, one generator, one measurement."""
    broker_core, generator_core = meter.two_cores()
    seconds = plan.seconds(workload)
    with started(broker, workload, broker_core) as running:
        command = [sys.executable, "-m", "sterna.measure.load.generator", workload.name]
        command += ["--port", str(running.port), "--broker-pid", str(running.pid)]
        command += ["--warm-up", str(plan.warm_up_s), "--measure", str(seconds)]
        loads = len(workload.load.loads) if isinstance(workload.load, InTurn) else 1
        return run_generator(broker.name, command, loads * (plan.warm_up_s + seconds), generator_core)


def run_generator(broker: str, command: list[str], seconds: float, core: int | None) -> Measurement:
    """The load generator, and what it measured."""
    return msgspec.json.decode(told_by(broker, command, seconds, core), type=Measurement)


def told_by(broker: str, command: list[str], seconds: float, core: int | None) -> bytes:
    """What a load generator says, in a process of its own that ends with this one."""
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            timeout=seconds + GRACE_S,
            preexec_fn=lambda: tie_to_parent(core),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"{broker}: the generator did not finish in time") from None
    if ended.returncode:
        raise MeasurementError(f"{broker}: {ended.stderr.decode(errors='replace').strip()}")
    return ended.stdout


def machine() -> dict[str, str | int | bool]:
    """Where the figures come from."""
    cpu = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pinned": meter.two_cores()[0] is not None,
    }


def _one_line(one: Measurement) -> str:
    if one.kib_per_connection is not None:
        return f"{one.kib_per_connection:.2f} KiB per connection"
    text = f"{one.cpu_us_per_message or 0:.2f} us CPU per message, {one.throughput:,.0f} msg/s"
    if one.latency_p99_us is not None:
        text += f", p50 {one.latency_p50_us:.0f} us, p99 {one.latency_p99_us:.0f} us"
    if one.cost_spread is not None:
        each = ", ".join(f"{cost:.2f}" for cost in one.cpu_us_of_each)
        text += f", in turn {each} us: {one.cost_spread:.2f}x"
    text += f" (broker {one.broker_busy:.0%} busy, generator {one.generator_busy:.0%})"
    flags = {f"LOST {one.lost}": one.lost, "generator-bound": one.generator_bound, "disturbed": one.disturbed}
    return ", ".join([text, *(flag for flag, set_ in flags.items() if set_)])


def _raise_descriptor_limit() -> None:
    """For five thousand connections; the brokers inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
