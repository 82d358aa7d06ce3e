"""Two systems, one run: every case against both, fresh processes each time, the order alternating.

Rounds of one case follow each other, so that a machine that slows down slows both systems down.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.measurement import Measurement, Summary, summarise
from sterna.measure.load.shapes import Workload

DESCRIPTORS = 16_384

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    rounds: int = 3
    warm_up_s: float = 1.0
    measure_s: float = 3.0
    short: bool = False
    """Take the measured interval as it is, even where a workload wants longer for its percentiles."""

    def seconds(self, workload: Workload) -> float:
        return self.measure_s if self.short else max(self.measure_s, workload.seconds_min)


QUICK = RoundPlan(rounds=1, warm_up_s=0.5, measure_s=1.0, short=True)


def round_plan(*, quick: bool, rounds: int | None) -> RoundPlan:
    plan = QUICK if quick else RoundPlan()
    return RoundPlan(rounds or plan.rounds, plan.warm_up_s, plan.measure_s, plan.short)


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two: its name, and one measurement of it."""

    name: str
    run: Callable[[], Measurement]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    workload: Workload
    sides: tuple[ComparedSide, ComparedSide]
    """Subject and peer."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Both summaries, or why there is none."""

    subject: Summary | None = None
    peer: Summary | None = None
    failure: str | None = None


def compare(cases: Sequence[Case], plan: RoundPlan, say: Say) -> list[Compared]:
    """Run everything; a case that fails is reported and the rest goes on."""
    _raise_descriptor_limit()
    found = []
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.name}: {case.workload.summary}")
        try:
            found.append(_compare_one(case, plan, say, first=number % 2))
        except MeasurementError as error:
            say(f"    failed: {error}")
            found.append(Compared(failure=str(error)))
    return found


def _compare_one(case: Case, plan: RoundPlan, say: Say, first: int) -> Compared:
    """`first` is who begins: with a single round the order still alternates from case to case."""
    measured: tuple[list[Measurement], list[Measurement]] = ([], [])
    rounds = plan.rounds if plan.short else plan.rounds * case.workload.repeats
    for number in range(rounds):
        for place in (0, 1) if (number + first) % 2 else (1, 0):
            side = case.sides[place]
            one = side.run()
            measured[place].append(one)
            say(f"    round {number + 1}/{rounds} {side.name:<10} {in_one_line(one)}")
    ours, theirs = (summarise(case.workload.figure, runs) for runs in measured)
    return Compared(subject=ours, peer=theirs)


def in_one_line(one: Measurement) -> str:
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
