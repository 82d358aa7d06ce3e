"""`sterna experiment traffic`: bytes between brokers, judged beside bridges and told beside the paper's figures.

TrafficFigures are medians over the rounds.  The paper's own figures stand beside them: its totals hold its discovery,
its measuring of round trips and its tree, so ours that find their tree themselves are judged against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import msgspec
import typer
from rich.table import Table

from sterna.measure.command import Means
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.traffic import systems
from sterna.measure.papers.traffic.experiment import (
    CABLE_BITS_PER_S,
    CABLE_S,
    FLOODING,
    HEADLINE,
    OVERLAYS,
    TrafficPlan,
    TrafficSample,
    name_of,
    run,
    systems_of,
)
from sterna.measure.papers.traffic.placement import LOCALITIES
from sterna.measure.papers.traffic.systems import MOSQUITTO
from sterna.measure.plots import BAR, COLOURS, empty_figure, finish
from sterna.measure.report import Column, MeasurementReport, table
from sterna.measure.wire.byte_account import HEADERS
from sterna.measure.wire.capture import Capture, may_capture
from sterna.measure.wire.relay import Relays
from sterna.measure.wire.switched import Switched

PAPER = {
    "paper: distributed": {0: (98_505, 877_280), 50: (334_224, 1_060_326), 100: (0, 817_676)},
    "paper: bridging": {0: (363_872, 1_011_320), 50: (359_648, 1_009_339), 100: (356_414, 1_014_473)},
}
"""Publish forwarding and the rest, by locality (its tables 6.2 and 6.1)."""
PAPER_CPU: dict[str, dict[int, tuple[float, ...]]] = {
    "paper: distributed": {
        0: (139.163, 143.590, 147.346, 145.880, 144.320),
        50: (146.590, 143.205, 145.844, 145.858, 153.646),
        100: (145.520, 143.798, 150.352, 146.213, 146.434),
    },
    "paper: bridging": {
        0: (92.198, 88.869, 85.453, 2.500, 0.844),
        50: (92.125, 88.794, 86.121, 0.806, 0.771),
        100: (92.823, 89.442, 85.822, 1.684, 0.813),
    },
}
"""Per cent of a core, broker by broker (its tables 6.3 to 6.5)."""
PAPER_MEMORY: dict[str, dict[int, tuple[float, ...]]] = {
    "paper: distributed": {
        0: (1.689, 1.280, 2.208, 1.286, 1.211),
        50: (2.383, 1.258, 1.157, 2.471, 1.140),
        100: (2.596, 2.709, 2.249, 1.550, 2.154),
    },
    "paper: bridging": {
        0: (0.790, 0.769, 0.770, 1.177, 0.750),
        50: (0.794, 0.768, 1.135, 0.764, 0.744),
        100: (1.116, 1.157, 1.107, 1.112, 0.747),
    },
}
"""Per cent of its machine's 12 GB (its tables 6.6 to 6.8)."""
PAPER_MIB = 12_000 / 100
"""One per cent of them."""
KINDS_SHOWN = 8
PLAN_TOLD = (
    "rounds",
    "publishers",
    "subscribers",
    "messages",
    "interval_s",
    "qos",
    "overlays",
    "at_a_distance",
    "seed",
)


class TrafficFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One system at one locality, over all rounds."""

    system: str
    locality: int
    publish: float
    control: float
    total: float
    total_min: float
    total_max: float
    needed_copies: float
    publish_packets: float
    publication_bytes: float
    delivered: int
    expected: int
    kinds: dict[str, float]
    counts: dict[str, float]
    cpu_percent: tuple[float, ...] = ()
    resident_mib: tuple[float, ...] = ()


class TrafficTarget(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    system: str
    locality: int
    ours: float
    bound: float
    reached: bool


class TrafficDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "traffic"
    versions: dict[str, str]
    method: str
    plan: dict[str, object]
    figures: list[TrafficFigures]
    targets: list[TrafficTarget]
    paper: dict[str, dict[int, tuple[int, int]]]
    paper_cpu_percent: dict[str, dict[int, tuple[float, ...]]]
    paper_memory_percent: dict[str, dict[int, tuple[float, ...]]]
    samples: list[TrafficSample]

    @property
    def lost(self) -> int:
        return sum(sample.expected - sample.delivered for sample in self.samples)


def experiment(
    means: Means,
    rounds: Annotated[int, typer.Option(min=1, max=99, help="Rounds; medians count.")] = 3,
    locality: Annotated[list[int] | None, typer.Option(help="Only these: 0, 50, 100.")] = None,
    messages: Annotated[int, typer.Option(min=1, help="Messages of every publisher.")] = 50,
    interval: Annotated[float, typer.Option(min=0.001, help="Seconds between messages of a publisher.")] = 1.0,
    qos: Annotated[int, typer.Option(min=0, max=2, help="Of publishers and subscribers.")] = 2,
    overlay: Annotated[
        Literal["both", "static", "spanning-tree"],
        typer.Option(help="How our nodes find each other; bridges are static."),
    ] = "both",
    seed: Annotated[int, typer.Option(help="Of the places of clients.")] = 1,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if brokers could have cables, which needs root.")
    ] = False,
    relay: Annotated[
        bool, typer.Option("--relay", help="On loopback, count with relays even if packets could be captured.")
    ] = False,
) -> MeasurementReport:
    """Bytes between five brokers, ours with each strategy and Mosquitto's bridges, at the same time (15 minutes)."""
    unknown = [one for one in locality or [] if one not in LOCALITIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of 0, 50, 100", param_hint="--locality")
    far = may_be_at_a_distance() and not loopback and not relay
    captured = may_capture() and not relay
    known = OVERLAYS if far or captured else OVERLAYS[-1:]
    plan = TrafficPlan(
        localities=tuple(locality or LOCALITIES), rounds=rounds, messages=messages, interval_s=interval, qos=qos,
        overlays=known if overlay == "both" else (overlay,), seed=seed, at_a_distance=far, capture=captured,
    )  # fmt: skip
    versions = systems.versions()
    return report(document(plan, versions, run(plan, means.say)))


def document(plan: TrafficPlan, versions: dict[str, str], samples: Sequence[TrafficSample]) -> TrafficDocument:
    figures = [
        summarise([sample for sample in samples if (sample.system, sample.locality) == (system, locality)])
        for locality in plan.localities
        for system in [one.name for one in systems_of(plan)]
    ]
    return TrafficDocument(
        versions=versions,
        method=Switched.method if plan.at_a_distance else Capture.method if plan.capture else Relays.method,
        plan={name: getattr(plan, name) for name in PLAN_TOLD} | {"overlays": [*plan.overlays]},
        figures=figures,
        targets=judge(figures),
        paper=PAPER,
        paper_cpu_percent=PAPER_CPU,
        paper_memory_percent=PAPER_MEMORY,
        samples=list(samples),
    )


def summarise(samples: Sequence[TrafficSample]) -> TrafficFigures:
    kinds = sorted({kind for sample in samples for kind in sample.kinds})
    totals = [sample.total for sample in samples]
    return TrafficFigures(
        system=samples[0].system,
        locality=samples[0].locality,
        publish=median(sample.publish for sample in samples),
        control=median(sample.control for sample in samples),
        total=median(totals),
        total_min=min(totals),
        total_max=max(totals),
        needed_copies=median(sample.needed_copies for sample in samples),
        publish_packets=median(sample.publish_packets for sample in samples),
        publication_bytes=median(sample.publication_bytes for sample in samples),
        delivered=sum(sample.delivered for sample in samples),
        expected=sum(sample.expected for sample in samples),
        kinds={kind: median(sample.kinds.get(kind, 0) for sample in samples) for kind in kinds},
        counts={kind: median(sample.counts.get(kind, 0) for sample in samples) for kind in kinds},
        cpu_percent=_medians([sample.cpu_percent for sample in samples]),
        resident_mib=_medians([sample.resident_mib for sample in samples]),
    )


def _medians(rounds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Broker by broker, the busiest first: clients are elsewhere in every round."""
    return tuple(median(brokers) for brokers in zip(*(sorted(one, reverse=True) for one in rounds), strict=True))


def judge(figures: Sequence[TrafficFigures]) -> list[TrafficTarget]:
    """The targets: no forwarding where nobody wants it; less than bridges everywhere, control included; where the tree
    is found by itself, also less than the paper's own total.

    Publication flooding sends everything everywhere by definition, so nothing is asked of it at 100 %.
    """
    bridges = {one.locality: one for one in figures if one.system == MOSQUITTO}
    targets: list[TrafficTarget] = []
    for one in figures:
        peer = bridges.get(one.locality)
        if one.system == MOSQUITTO or peer is None:
            continue
        floods = one.system.startswith(FLOODING)
        if one.locality == 100 and not floods:
            targets.append(_target("publish forwarding is 0", one, one.publish, 0.0, one.publish == 0))
        below = one.publish < peer.publish
        targets.append(_target("publish forwarding below bridges", one, one.publish, peer.publish, below))
        targets.append(_target("all bytes below bridges", one, one.total, peer.total, one.total < peer.total))
        if one.system.endswith(name_of("", HEADLINE)):
            paper = sum(PAPER["paper: distributed"][one.locality])
            targets.append(_target("all bytes below the paper's", one, one.total, paper, one.total < paper))
    return targets


def _target(text: str, one: TrafficFigures, ours: float, bound: float, reached: bool) -> TrafficTarget:
    return TrafficTarget(text=text, system=one.system, locality=one.locality, ours=ours, bound=bound, reached=reached)


# -- for people -------------------------------------------------------------------------------------------------------


def report(told: TrafficDocument) -> MeasurementReport:
    missed = [
        f"Missed: {target.text}, {target.system} at {target.locality} %: {target.ours:,.0f} bytes, "
        f"the bound is {target.bound:,.0f}."
        for target in told.targets
        if not target.reached
    ]
    return MeasurementReport(
        document=told,
        tables=[_table(told), _kinds(told), _load(told)],
        notes=[
            _method(told),
            *missed,
            f"Targets reached: {sum(target.reached for target in told.targets)} of {len(told.targets)}.",
            f"Messages not delivered, all systems and rounds: {told.lost}.",
        ],
        failed=bool(told.lost and told.plan["qos"]),
        draw=lambda file: draw(told, file),
    )


def _table(told: TrafficDocument) -> Table:
    made = Table(title="Bytes between brokers")
    made.add_column("locality", justify="right")
    made.add_column("system", no_wrap=True)
    for heading in ("publish", "control", "total", "least to greatest", "copies (needed)", "B per copy", "/ bridges"):
        made.add_column(heading, justify="right", no_wrap=True)
    bridges = {one.locality: one.total for one in told.figures if one.system == MOSQUITTO}
    before: int | None = None
    for one in told.figures:
        if before not in (None, one.locality):
            made.add_section()
        before = one.locality
        made.add_row(
            f"{one.locality} %",
            one.system,
            *(f"{value:,.0f}" for value in (one.publish, one.control, one.total)),
            f"{one.total_min:,.0f} to {one.total_max:,.0f}",
            f"{one.publish_packets:,.0f} ({one.needed_copies:,.0f})",
            f"{one.publish / one.publish_packets:,.0f}" if one.publish_packets else "-",
            f"{one.total / bridges[one.locality]:.2f}" if bridges.get(one.locality) else "-",
        )
    for name, by_locality in told.paper.items():
        made.add_section()
        for locality, (publish, rest) in by_locality.items():
            made.add_row(f"{locality} %", name, f"{publish:,}", f"{rest:,}", f"{publish + rest:,}", "", "", "", "")
    return made


def _kinds(told: TrafficDocument) -> Table:
    columns = [
        Column("locality", lambda one: f"{one.locality} %", no_wrap=False),
        Column("system", lambda one: one.system, "left"),
        Column("largest kinds", _largest, "left", no_wrap=False),
    ]
    return table("Where the bytes go (bytes / how many)", columns, told.figures)


def _load(told: TrafficDocument) -> Table:
    """The paper's tables 6.3 to 6.8."""
    made = Table(title="CPU (% of a core) and resident memory (MiB) of each broker, the greatest first")
    for heading in ("locality", "system", "CPU", "memory"):
        made.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for one in told.figures:
        made.add_row(f"{one.locality} %", one.system, _each(one.cpu_percent, 1), _each(one.resident_mib, 0))
    for name, by_locality in told.paper_cpu_percent.items():
        made.add_section()
        for locality, cpu in by_locality.items():
            memory = [PAPER_MIB * percent for percent in told.paper_memory_percent[name][locality]]
            made.add_row(f"{locality} %", name, _each(cpu, 1), _each(memory, 0))
    return made


def _each(values: Sequence[float], digits: int) -> str:
    return "  ".join(f"{value:.{digits}f}" for value in sorted(values, reverse=True)) or "-"


def _largest(one: TrafficFigures) -> str:
    kinds = sorted(one.kinds, key=lambda kind: (-one.kinds[kind], kind))[:KINDS_SHOWN]
    return "; ".join(f"{kind} {one.kinds[kind]:,.0f} / {one.counts[kind]:,.0f}" for kind in kinds)


def _method(told: TrafficDocument) -> str:
    plan = told.plan
    header = (
        f"; {HEADERS} belong to publish if the packet carries a message" if "headers included" in told.method else ""
    )
    cables = (
        f"cables of {1000 * CABLE_S:g} ms and {CABLE_BITS_PER_S / 1e6:g} Mb/s" if plan["at_a_distance"] else "loopback"
    )
    return (
        f"{'; '.join(told.versions.values())}.  Measured: {told.method}{header}.  Between brokers: {cables}.  "
        f"Median of {plan['rounds']} round(s); {plan['publishers']} publishers x {plan['messages']} messages at QoS "
        f"{plan['qos']}, one every {plan['interval_s']} s; {plan['subscribers']} subscribers; "
        f"every system at the same time, from the start of its brokers until everything had arrived."
    )


def draw(told: TrafficDocument, file: Path) -> None:
    """Grouped bars per locality; the hatched top of a bar is publish forwarding, as in the paper's figure 6.1."""
    figure = empty_figure(10, 5.5)
    axes = figure.add_subplot()
    localities = list(dict.fromkeys(one.locality for one in told.figures))
    names = list(dict.fromkeys(one.system for one in told.figures))
    by_place = {(one.system, one.locality): one for one in told.figures}
    width = BAR / len(names)
    for number, name in enumerate(names):
        colour = COLOURS[3] if name == names[-1] else COLOURS[number % 3]
        for group, locality in enumerate(localities):
            one = by_place[name, locality]
            at = group - BAR / 2 + width * (number + 0.5)
            label = name if not group else None
            axes.bar(at, one.control, width * 0.92, color=colour, label=label, edgecolor="black", linewidth=0.5)
            axes.bar(at, one.publish, width * 0.92, bottom=one.control, color="white", hatch="////", edgecolor=colour)
            text = f"{one.total / 1000:,.0f}\n({one.publish / 1000:,.0f})"
            axes.annotate(text, (at, one.total), ha="center", va="bottom", fontsize=8)
    axes.bar(0, 0, 0, color="white", hatch="////", edgecolor="black", label="of it: publish forwarding (in brackets)")
    axes.set_xticks(range(len(localities)), [f"{locality} % locality" for locality in localities])
    axes.set_ylabel("kB between brokers")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value / 1000:,.0f}")
    axes.set_ylim(0, 1.25 * max(one.total for one in told.figures))
    axes.set_title(
        f"Bytes between five brokers: {told.plan['publishers']} publishers x {told.plan['messages']} messages, "
        f"QoS {told.plan['qos']}"
    )
    finish(axes, 3)
    figure.savefig(file)
