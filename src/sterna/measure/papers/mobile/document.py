"""The findings of `sterna experiment mobile`, as its JSON document has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from sterna import __version__
from sterna.measure.papers.mobile.statements import TARGETS, JudgedStatement, judge
from sterna.measure.papers.mobile.statistics import Estimate, FigureOf, MobileResults
from sterna.measure.papers.mobile.sweep import MobileSample
from sterna.measure.report import Machine, machine
from sterna.simulation.papers.first_approach import FirstApproach
from sterna.simulation.papers.ideal_tree import BrokerFactory
from sterna.simulation.papers.messages import Name
from sterna.simulation.papers.mft import EXPLAINED, PRINTED, MftBroker, MftReading
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.wrong_tables import cut_or_merge, ends_wrong, move_one


class CellFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One protocol at one size and speed, over all seeds."""

    protocol: str
    configuration: str
    speed_m_s: float
    stations: int
    figures: dict[str, Estimate | None]
    roles: dict[str, dict[str, Estimate | None]]
    cpu_s: float
    """Of a run, on average."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol less another, on the same positions."""

    protocol: str
    beside: str
    configuration: str
    speed_m_s: float
    figures: dict[str, Estimate | None]


class WrongTables(msgspec.Struct, frozen=True, kw_only=True):
    """Runs on ideal links that end with wrong tables though all is quiet."""

    protocol: str
    steps: str
    wrong: int
    runs: int


class MobileDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "mobile"
    version: str
    machine: Machine
    method: str
    configurations: list[str]
    speeds: list[float]
    protocols: list[str]
    seeds: int
    wall_s: float
    cpu_s: dict[str, float]
    """By protocol, of all its runs."""
    cells: list[CellFigures]
    differences: list[PairedDifference]
    statements: list[JudgedStatement]
    targets: list[JudgedStatement]
    """Of the product itself."""
    wrong_tables: list[WrongTables]
    without_acks: list[CellFigures]
    samples: list[MobileSample]


FIGURES: dict[str, FigureOf] = {
    "rate": lambda run: run.rate,
    "fair_rate": lambda run: run.fair_rate,
    "delivered": lambda run: run.delivered,
    "duplicates": lambda run: run.duplicates,
    "delay_s": lambda run: run.delay_s,
    "hops": lambda run: run.hops,
    "frames": lambda run: run.frames,
    "control_frames": lambda run: run.control_frames,
    "sent_bytes": lambda run: run.sent_bytes,
    "changes_a_minute": lambda run: run.changes_a_minute,
    "depth": lambda run: run.depth,
}
COMPARED = ("rate", "fair_rate", "delivered", "frames", "control_frames")
BESIDE = ("mft", "aodv")
"""The others are compared with each of these."""


def document(
    samples: Sequence[MobileSample],
    without_acks: Sequence[MobileSample],
    wrong_tables: list[WrongTables],
    method: str,
    wall_s: float,
) -> MobileDocument:
    results = MobileResults(samples)
    plans = [sample.figures.plan for sample in samples]
    protocols = list(dict.fromkeys(plan.protocol for plan in plans))
    sizes = sorted({plan.configuration for plan in plans}, key=lambda name: int(name[1:]))
    speeds = sorted({plan.speed_m_s for plan in plans})
    places = [(size, speed) for size in sizes for speed in speeds]
    return MobileDocument(
        version=__version__,
        machine=machine(),
        method=method,
        configurations=sizes,
        speeds=speeds,
        protocols=protocols,
        seeds=len({plan.seed for plan in plans}),
        wall_s=wall_s,
        cpu_s={name: sum(one.cpu_s for one in samples if one.figures.plan.protocol == name) for name in protocols},
        cells=[cell(results, name, size, speed) for size, speed in places for name in protocols],
        differences=[
            difference(results, name, beside, size, speed)
            for beside in BESIDE
            for size, speed in places
            for name in protocols
            if beside in protocols and name != beside
        ],
        statements=judge(results),
        targets=judge(results, TARGETS),
        wrong_tables=wrong_tables,
        without_acks=_cells(without_acks),
        samples=list(samples),
    )


def _cells(samples: Sequence[MobileSample]) -> list[CellFigures]:
    results = MobileResults(samples)
    plans = [sample.figures.plan for sample in samples]
    found = dict.fromkeys((plan.protocol, plan.configuration, plan.speed_m_s) for plan in plans)
    return [cell(results, *one) for one in found]


def cell(results: MobileResults, protocol: str, size: str, speed: float) -> CellFigures:
    runs = results.runs(protocol, size, speed)
    return CellFigures(
        protocol=protocol,
        configuration=size,
        speed_m_s=speed,
        stations=runs[0].figures.stations,
        figures={name: results.mean(figure, protocol, size, speed) for name, figure in FIGURES.items()},
        roles={role: _of_role(results, role, protocol, size, speed) for role in runs[0].figures.roles},
        cpu_s=sum(one.cpu_s for one in runs) / len(runs),
    )


def _of_role(results: MobileResults, role: str, protocol: str, size: str, speed: float) -> dict[str, Estimate | None]:
    shown = ("frames", "control_frames", "acks", "sent_bytes")
    return {
        name: results.mean(lambda run, name=name: getattr(run.roles[role], name), protocol, size, speed)  # type: ignore[misc]
        for name in shown
    }


def difference(results: MobileResults, protocol: str, beside: str, size: str, speed: float) -> PairedDifference:
    return PairedDifference(
        protocol=protocol,
        beside=beside,
        configuration=size,
        speed_m_s=speed,
        figures={name: results.difference(FIGURES[name], protocol, beside, size, speed) for name in COMPARED},
    )


def _mft(reading: MftReading, name: Name, send: Send) -> MftBroker:
    return MftBroker(name, send, reading)


def count_wrong_tables(runs: int) -> list[WrongTables]:
    brokers: dict[str, BrokerFactory] = {
        "mft-printed": partial(_mft, PRINTED),
        "mft": partial(_mft, EXPLAINED),
        "first": FirstApproach,
    }
    steps: dict[str, Callable[[BrokerFactory, int], bool]] = {
        "one move": lambda broker, seed: ends_wrong(broker, seed, 1, move_one),
        "four moves": lambda broker, seed: ends_wrong(broker, seed, 4, move_one),
        "four cuts and merges, healed": lambda broker, seed: ends_wrong(broker, seed, 4, cut_or_merge),
        "ten cuts and merges, healed": lambda broker, seed: ends_wrong(broker, seed, 10, cut_or_merge),
    }
    return [
        WrongTables(protocol=name, steps=text, wrong=sum(ends(broker, seed) for seed in range(runs)), runs=runs)
        for name, broker in brokers.items()
        for text, ends in steps.items()
    ]
