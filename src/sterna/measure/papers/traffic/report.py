"""`sterna experiment traffic`: bytes between brokers, judged beside bridges and told beside the paper's figures.

TrafficFigures are medians over the rounds.  The paper's own figures stand beside them for the shape, not the size: its
brokers, packets and clients were others.
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
from sterna.measure.papers.traffic import systems
from sterna.measure.papers.traffic.experiment import TrafficPlan, TrafficSample, run
from sterna.measure.papers.traffic.placement import LOCALITIES
from sterna.measure.papers.traffic.systems import MOSQUITTO
from sterna.measure.plots import BAR, COLOURS, empty_figure, finish
from sterna.measure.report import Column, MeasurementReport, table
from sterna.measure.wire.byte_account import HEADERS
from sterna.measure.wire.capture import Capture, may_capture
from sterna.measure.wire.relay import Relays

PAPER = {
    "paper: distributed": {0: (98_505, 877_280), 50: (334_224, 1_060_326), 100: (0, 817_676)},
    "paper: bridging": {0: (363_872, 1_011_320), 50: (359_648, 1_009_339), 100: (356_414, 1_014_473)},
}
"""Publish forwarding and the rest, by locality (its tables 6.2 and 6.1)."""
KINDS_SHOWN = 8
PLAN_TOLD = ("rounds", "publishers", "subscribers", "messages", "interval_s", "qos", "overlay", "seed")


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
        Literal["static", "spanning-tree"], typer.Option(help="How our nodes find each other; bridges are static.")
    ] = "static",
    seed: Annotated[int, typer.Option(help="Of the places of clients.")] = 1,
    relay: Annotated[
        bool, typer.Option("--relay", help="Count with relays even if packets could be captured.")
    ] = False,
) -> MeasurementReport:
    """Bytes between five brokers, ours with each strategy and Mosquitto's bridges, at the same time (ten minutes)."""
    unknown = [one for one in locality or [] if one not in LOCALITIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of 0, 50, 100", param_hint="--locality")
    plan = TrafficPlan(
        localities=tuple(locality or LOCALITIES), rounds=rounds, messages=messages, interval_s=interval, qos=qos,
        overlay=overlay, seed=seed, capture=may_capture() and not relay,
    )  # fmt: skip
    versions = systems.versions()
    return report(document(plan, versions, run(plan, means.say)))


def document(plan: TrafficPlan, versions: dict[str, str], samples: Sequence[TrafficSample]) -> TrafficDocument:
    figures = [
        summarise([sample for sample in samples if (sample.system, sample.locality) == (system, locality)])
        for locality in plan.localities
        for system in (*plan.strategies, MOSQUITTO)
    ]
    return TrafficDocument(
        versions=versions,
        method=Capture.method if plan.capture else Relays.method,
        plan={name: getattr(plan, name) for name in PLAN_TOLD},
        figures=figures,
        targets=judge(figures),
        paper=PAPER,
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
    )


def judge(figures: Sequence[TrafficFigures]) -> list[TrafficTarget]:
    """The targets: no forwarding where nobody wants it, less than bridges everywhere, control included.

    Publication flooding sends everything everywhere by definition, so nothing is asked of it at 100 %.
    """
    bridges = {one.locality: one for one in figures if one.system == MOSQUITTO}
    targets: list[TrafficTarget] = []
    for one in figures:
        peer = bridges.get(one.locality)
        if one.system == MOSQUITTO or peer is None:
            continue
        floods = one.system == "publication-flooding"
        if one.locality == 100 and not floods:
            targets.append(_target("publish forwarding is 0", one, one.publish, 0.0, one.publish == 0))
        below = one.publish < peer.publish
        targets.append(_target("publish forwarding below bridges", one, one.publish, peer.publish, below))
        targets.append(_target("all bytes below bridges", one, one.total, peer.total, one.total < peer.total))
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
        tables=[_table(told), _kinds(told)],
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


def _largest(one: TrafficFigures) -> str:
    kinds = sorted(one.kinds, key=lambda kind: (-one.kinds[kind], kind))[:KINDS_SHOWN]
    return "; ".join(f"{kind} {one.kinds[kind]:,.0f} / {one.counts[kind]:,.0f}" for kind in kinds)


def _method(told: TrafficDocument) -> str:
    plan = told.plan
    header = (
        f"; {HEADERS} belong to publish if the packet carries a message" if "headers included" in told.method else ""
    )
    return (
        f"{'; '.join(told.versions.values())}.  Measured: {told.method}{header}.  "
        f"Median of {plan['rounds']} round(s); {plan['publishers']} publishers x {plan['messages']} messages at QoS "
        f"{plan['qos']}, one every {plan['interval_s']} s; {plan['subscribers']} subscribers; "
        f"overlay {plan['overlay']}; "
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
