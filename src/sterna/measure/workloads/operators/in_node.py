"""The cost of computing in one node: an average over a thousand topics, and a thousand expressions that look on.

The same load goes, in turn and in fresh processes, to a node that computes `$AVG/+/+/t`, to a node with a plain
subscriber and to Mosquitto with one.  The cost of bystanders is measured within one process, with and without them.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from sterna.measure.figures import FigureRow
from sterna.measure.harness import meter
from sterna.measure.harness.brokers import MOSQUITTO, STERNA, BrokerKind, started
from sterna.measure.harness.comparison import RoundPlan, Say, round_plan
from sterna.measure.harness.measurement import Measurement
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.numbers import TOPICS
from sterna.measure.load.shapes import SensorNumbers, Workload
from sterna.measure.report import verdict

AVERAGE = "$AVG/+/+/t"
PLAIN = "+/+/t"
RATE_MIN = 50_000
"""Publications a second, each with its result delivered."""
BYSTANDERS_MAX = 1.10
"""Most that non-matching traffic may cost with a thousand expressions, as a multiple of its cost without."""
PAIRS = 8
"""Of intervals without and with bystanders, one after the other; the median of their ratios counts."""
PAIR_S = 1.0

EXPRESSIONS = 1_000
BYSTANDERS = tuple(f"$AVG/elsewhere/{number}/+" for number in range(EXPRESSIONS))
"""None of them takes any message of the load."""
LOAD = Workload("numbers", f"numbers on {TOPICS:,} topics, QoS 0, saturated", SensorNumbers(PLAIN))


def measure_node(say: Say, quick: bool) -> list[FigureRow]:
    plan = round_plan(quick=quick, rounds=None)
    sides = {"computed": (STERNA, AVERAGE), "plain": (STERNA, PLAIN), "peer": (MOSQUITTO, PLAIN)}
    found: dict[str, list[Measurement]] = {name: [] for name in sides}
    for number in range(plan.rounds):
        for name, (broker, topic_filter) in sides.items():
            (one,) = _run(broker, topic_filter, plan, 1)
            found[name].append(one)
            say(f"    round {number + 1}/{plan.rounds} {broker.name:<10} {topic_filter:<10} {_line(one)}")
    looked_on = _run(STERNA, PLAIN, replace(plan, measure_s=PAIR_S), 2 * (3 if quick else PAIRS))
    for one in looked_on:
        say(f"    bystanders {_line(one)}")
    return [*judge_average(found["computed"], found["plain"], found["peer"]), judge_bystanders(looked_on)]


def _run(broker: BrokerKind, topic_filter: str, plan: RoundPlan, rounds: int) -> list[Measurement]:
    """A fresh broker, and one generator that measures so many rounds."""
    broker_core, generator_core = meter.two_cores()
    with started(broker, LOAD, broker_core) as running:
        job = GeneratorJob(
            load=SensorNumbers(topic_filter),
            near=running.port,
            pids=(running.pid,),
            warm_up_s=plan.warm_up_s,
            measure_s=plan.measure_s,
            rounds=rounds,
            looking_on=BYSTANDERS,
        )
        return generate(broker.name, job, generator_core)


def judge_average(computed: list[Measurement], plain: list[Measurement], peer: list[Measurement]) -> list[FigureRow]:
    rates, peer_rates = [one.throughput for one in computed], [one.throughput for one in peer]
    lost = sum(one.lost for one in computed)
    remarks = [f"{lost:,} results were lost."] if lost else []
    if any(one.generator_bound for one in computed):
        remarks.append("Generator-bound: the rate is a lower bound.")
    if any(one.disturbed for one in computed + plain + peer):
        remarks.append("Disturbed by other work on this machine: rates are worse than need be.")
    cost, plain_cost, peer_cost = _cost(computed), _cost(plain), _cost(peer)
    busy = median(one.broker_busy for one in computed)
    remarks.append(f"{cost:.2f} us of CPU for each; the broker was at work for {busy:.0%} of the time.")
    return [
        FigureRow(
            name="average",
            summary=f"{AVERAGE} over {TOPICS:,} topics, a result for each message; beside it Mosquitto with {PLAIN}.",
            unit="publications/s, one core",
            figure=median(rates),
            beside=median(peer_rates),
            ratio=median(rates) / median(peer_rates),
            target=f">= {RATE_MIN}",
            verdict=verdict(median(rates) >= RATE_MIN and not lost),
            rounds=_pairs(rates, peer_rates),
            remarks=remarks,
        ),
        FigureRow(
            name="average-cpu",
            summary="the same in CPU time of the broker; beside it Mosquitto with a plain subscriber.",
            unit="us CPU/publication",
            figure=cost,
            beside=peer_cost,
            ratio=peer_cost / cost,
            verdict="shown",
            rounds=_pairs(_costs(computed), _costs(peer)),
        ),
        FigureRow(
            name="plain-cpu",
            summary=f"the same load to a plain subscriber of {PLAIN}; beside it Mosquitto.",
            unit="us CPU/publication",
            figure=plain_cost,
            beside=peer_cost,
            ratio=peer_cost / plain_cost,
            verdict="shown",
            rounds=_pairs(_costs(plain), _costs(peer)),
        ),
    ]


def judge_bystanders(rounds: list[Measurement]) -> FigureRow:
    """Rounds without and with, in turn."""
    without, with_them = _costs(rounds[0::2]), _costs(rounds[1::2])
    ratio = median(more / less for more, less in zip(with_them, without, strict=True))
    lost = sum(one.lost for one in rounds)
    return FigureRow(
        name="bystanders",
        summary=f"{EXPRESSIONS:,} expressions that take none of the messages; beside it the same without them.",
        unit="us CPU/publication",
        figure=median(with_them),
        beside=median(without),
        ratio=ratio,
        target=f"<= {BYSTANDERS_MAX:g}x",
        verdict=verdict(ratio <= BYSTANDERS_MAX and not lost),
        rounds=_pairs(with_them, without),
        remarks=[f"{lost:,} messages were lost."] if lost else [],
    )


def _cost(rounds: list[Measurement]) -> float:
    return median(_costs(rounds))


def _costs(rounds: list[Measurement]) -> list[float]:
    return [one.cpu_us_per_message or 0.0 for one in rounds]


def _pairs(ours: list[float], theirs: list[float]) -> list[tuple[float, float | None]]:
    return list(zip(ours, theirs, strict=True))


def _line(one: Measurement) -> str:
    return f"{one.cpu_us_per_message or 0:.2f} us CPU, {one.throughput:,.0f}/s (broker {one.broker_busy:.0%} busy)"
