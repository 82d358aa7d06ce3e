"""The traffic experiment told twice: one JSON document for machines, tables for people, from the same values.

Figures are medians over the rounds.  The paper's own figures stand beside them for the shape, not the size: its
brokers, packets and clients were others.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sterna.measure.papers.traffic.experiment import Plan, Sample
from sterna.measure.papers.traffic.systems import MOSQUITTO
from sterna.measure.wire.byte_account import HEADERS
from sterna.measure.wire.capture import Capture
from sterna.measure.wire.relay import Relays

PAPER = {
    "paper: distributed": {0: (98_505, 877_280), 50: (334_224, 1_060_326), 100: (0, 817_676)},
    "paper: bridging": {0: (363_872, 1_011_320), 50: (359_648, 1_009_339), 100: (356_414, 1_014_473)},
}
"""Publish forwarding and the rest, by locality (its tables 6.2 and 6.1)."""
KINDS_SHOWN = 8


class Figures(msgspec.Struct, frozen=True, kw_only=True):
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


class Target(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    system: str
    locality: int
    ours: float
    bound: float
    reached: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "traffic"
    versions: dict[str, str]
    method: str
    plan: dict[str, object]
    figures: list[Figures]
    targets: list[Target]
    paper: dict[str, dict[int, tuple[int, int]]]
    samples: list[Sample]

    @property
    def lost(self) -> int:
        return sum(sample.expected - sample.delivered for sample in self.samples)


def build(plan: Plan, versions: dict[str, str], samples: Sequence[Sample]) -> Report:
    figures = [
        summarise([sample for sample in samples if (sample.system, sample.locality) == (system, locality)])
        for locality in plan.localities
        for system in (*plan.strategies, MOSQUITTO)
    ]
    return Report(
        versions=versions,
        method=Capture.method if plan.capture else Relays.method,
        plan={
            "rounds": plan.rounds,
            "publishers": plan.publishers,
            "subscribers": plan.subscribers,
            "messages": plan.messages,
            "interval_s": plan.interval_s,
            "qos": plan.qos,
            "overlay": plan.overlay,
            "seed": plan.seed,
        },
        figures=figures,
        targets=judge(figures),
        paper=PAPER,
        samples=list(samples),
    )


def summarise(samples: Sequence[Sample]) -> Figures:
    kinds = sorted({kind for sample in samples for kind in sample.kinds})
    totals = [sample.total for sample in samples]
    return Figures(
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


def judge(figures: Sequence[Figures]) -> list[Target]:
    """What is to be reached: no forwarding where nobody wants it, less than bridges everywhere, control included.

    Publication flooding sends everything everywhere by definition, so nothing is asked of it at 100 %.
    """
    bridges = {one.locality: one for one in figures if one.system == MOSQUITTO}
    targets: list[Target] = []
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


def _target(text: str, one: Figures, ours: float, bound: float, reached: bool) -> Target:
    return Target(text=text, system=one.system, locality=one.locality, ours=ours, bound=bound, reached=reached)


# -- for people -------------------------------------------------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    console.print(_table(report))
    console.print(_kinds(report))
    console.print(Text(_method(report)))
    for target in report.targets:
        if not target.reached:
            console.print(
                f"Missed: {target.text}, {target.system} at {target.locality} %: {target.ours:,.0f} bytes, "
                f"the bound is {target.bound:,.0f}."
            )
    reached = sum(target.reached for target in report.targets)
    console.print(f"Targets reached: {reached} of {len(report.targets)}.")
    console.print(f"Messages not delivered, all systems and rounds: {report.lost}.")


def _table(report: Report) -> Table:
    table = Table(title="Bytes between brokers")
    table.add_column("locality", justify="right")
    table.add_column("system", no_wrap=True)
    for heading in ("publish", "control", "total", "least to greatest", "copies (needed)", "B per copy", "/ bridges"):
        table.add_column(heading, justify="right", no_wrap=True)
    bridges = {one.locality: one.total for one in report.figures if one.system == MOSQUITTO}
    before: int | None = None
    for one in report.figures:
        if before not in (None, one.locality):
            table.add_section()
        before = one.locality
        table.add_row(
            f"{one.locality} %",
            one.system,
            *(f"{value:,.0f}" for value in (one.publish, one.control, one.total)),
            f"{one.total_min:,.0f} to {one.total_max:,.0f}",
            f"{one.publish_packets:,.0f} ({one.needed_copies:,.0f})",
            f"{one.publish / one.publish_packets:,.0f}" if one.publish_packets else "-",
            f"{one.total / bridges[one.locality]:.2f}" if bridges.get(one.locality) else "-",
        )
    for name, by_locality in report.paper.items():
        table.add_section()
        for locality, (publish, rest) in by_locality.items():
            table.add_row(f"{locality} %", name, f"{publish:,}", f"{rest:,}", f"{publish + rest:,}", "", "", "", "")
    return table


def _kinds(report: Report) -> Table:
    table = Table(title="Where the bytes go (bytes / how many)")
    table.add_column("locality", justify="right")
    table.add_column("system", no_wrap=True)
    table.add_column("largest kinds")
    for one in report.figures:
        largest = sorted(one.kinds, key=lambda kind: (-one.kinds[kind], kind))[:KINDS_SHOWN]
        told = [f"{kind} {one.kinds[kind]:,.0f} / {one.counts[kind]:,.0f}" for kind in largest]
        table.add_row(f"{one.locality} %", one.system, "; ".join(told))
    return table


def _method(report: Report) -> str:
    plan = report.plan
    header = (
        f"; {HEADERS} belong to publish if the packet carries a message" if "headers included" in report.method else ""
    )
    return (
        f"{'; '.join(report.versions.values())}.  Measured: {report.method}{header}.  "
        f"Median of {plan['rounds']} round(s); {plan['publishers']} publishers x {plan['messages']} messages at QoS "
        f"{plan['qos']}, one every {plan['interval_s']} s; {plan['subscribers']} subscribers; "
        f"overlay {plan['overlay']}; "
        f"every system at the same time, from the start of its brokers until everything had arrived."
    )
