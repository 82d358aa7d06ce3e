"""`sterna experiment emma` and `factories`: EX-S1, EX-S2 and EX-S3 of the thesis, beside its figures.

The town is simulated (`town.py`): measuring, selection, scaling and orders are the product's code with its
defaults (the factories: `calm_s` and `young_s` of 30 s), hosts and MQTT are a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import typer

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.settings import GROUPS_MS, AdaptationTuning
from sterna.measure.command import Means
from sterna.measure.papers.emma.playbooks import EAST, WEST, Playbook, emma, factories, open_factories
from sterna.measure.papers.emma.sweeps import ManagementRow, ThresholdRow, management, tables, thresholds
from sterna.measure.papers.emma.town import Second, Town, Way
from sterna.measure.plots import COLOURS, empty_figure
from sterna.measure.report import Column, MeasurementReport, Verdict, table, targets_missed, verdict

SETTLED_S = 30
"""The first seconds after each step are not counted as settled."""
SPIKE_RATIO, SPIKE_MS = 1.1, 1.0
Seed = Annotated[int, typer.Option(min=0, help="Of all dice.")]


class EmmaTarget(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    figure: float
    bound: str
    thesis: str
    verdict: Verdict


class TownRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    title: str
    way: str
    moves: int
    starts: list[tuple[float, str]]
    stops: list[tuple[float, str]]
    management_messages: float
    """Share of all messages."""
    management_bytes: float
    nodes: list[int]
    """At the end of each minute."""
    managed: list[int]
    """Management messages of each minute."""
    latency_ms: dict[str, list[float | None]]
    """Mean of each minute, by topic."""


class TownDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    seed: int
    runs: list[TownRow]
    targets: list[EmmaTarget]
    management: list[ManagementRow] = []
    thresholds: list[ThresholdRow] = []


def emma_experiment(
    means: Means,
    seed: Seed = 1,
    sweeps: Annotated[
        bool, typer.Option("--sweeps", help="Besides: management by brokers and gateways, and thresholds of a start.")
    ] = False,
) -> MeasurementReport:
    """EMMA's eight steps: brokers by hand and by pressure, gateways by coordinates and by measuring everything.

    Simulated: coordinator and measuring are those of the product, hosts and MQTT traffic are a model.
    """
    static, still = emma(), AdaptationTuning(scaling="off")
    measured = _run(
        means, static, AdaptationTuning(scaling="off", selection="measure-all", pass_s=15), "measure-all", seed
    )
    placed = _run(means, static, still, "coordinates", seed)
    dynamic = _run(means, emma(scaled=True), AdaptationTuning(), "coordinates", seed)
    whole = _run(means, emma(scaled=True, all_workers=True), AdaptationTuning(), "coordinates", seed)
    towns = [
        (static, measured),
        (static, placed),
        (emma(scaled=True), dynamic),
        (emma(scaled=True, all_workers=True), whole),
    ]
    ways = ["measure-all", "coordinates", "coordinates", "coordinates"]
    rows = [_row(book, town, way) for (book, town), way in zip(towns, ways, strict=True)]
    same = 100 * _same_choice(static, measured, placed)
    slower = _slower(placed, dynamic, len(static.steps_s) - 1, static)
    messages, size = 100 * placed.traffic.share("messages"), 100 * placed.traffic.share("bytes")
    fewer = measured.traffic.bytes["management"] / placed.traffic.bytes["management"]
    truly = measured.traffic.wire / placed.traffic.wire
    targets = [
        _target("settled gateway-seconds as near as by measuring everything, %", same, ">= 99", "the same", same >= 99),
        _target("management, % of messages", messages, "<= 0.50", "6.24 -> 0.50", messages <= 0.50),
        _target("management, % of bytes", size, "<= 0.23", "2.18 -> 0.23", size <= 0.23),
        _target("bytes of measuring everything / ours, by the thesis' sizes", fewer, ">= 10", "9.5", fewer >= 10),
        _target("the same, true bytes with headers", truly, ">= 10", "not given", truly >= 10),
        _target(
            "dynamic / static latency, worst topic, last minute of a step", slower, "<= 1.1", "the same", slower <= 1.1
        ),
    ]
    found = _report("emma", seed, rows, targets, ["global", WEST, EAST])
    return _with_sweeps(means, found, seed) if sweeps else found


def _with_sweeps(means: Means, report: MeasurementReport, seed: int) -> MeasurementReport:
    managed, swept = management(means, seed), thresholds(means, seed)
    document = msgspec.structs.replace(report.document, management=managed, thresholds=swept)
    return replace(report, document=document, tables=[*report.tables, *tables(managed, swept)])


def factories_experiment(means: Means, seed: Seed = 1) -> MeasurementReport:
    """Three factories open and close: nodes start beside them and stop again, beside nodes that always run.

    Simulated: coordinator and measuring are those of the product, hosts and MQTT traffic are a model.
    """
    tuning = AdaptationTuning(calm_s=30.0, young_s=30.0)
    books = factories(scaled=False), factories(scaled=True)
    static = _run(means, books[0], AdaptationTuning(scaling="off"), "coordinates", seed)
    dynamic = _run(means, books[1], tuning, "coordinates", seed)
    minutes = [sum(second.nodes for second in town.seconds) / 60 for town in (static, dynamic)]
    share = 100 * minutes[1] / minutes[0]
    cold, *later = _spikes(static, dynamic, books[1])
    longest = max(later)
    extra = [second.nodes - 1 - open_factories(number / 60) for number, second in enumerate(dynamic.seconds)]
    matched = 100 * sum(one == 0 for one in extra) / len(extra)
    targets = [
        _target("broker-minutes, % of static", share, "<= 30", "not given (ideal 27)", share <= 30),
        _target("longest spike after an opening, s", longest, "<= 15", "short", longest <= 15),
        _target("the same at the start, when nobody knows where it is, s", cold, "<= 15", "short", cold <= 15),
        _target("seconds in which nodes = open factories + 1, %", matched, "-", "always", None),
    ]
    rows = [_row(books[0], static, "coordinates"), _row(books[1], dynamic, "coordinates")]
    return _report("factories", seed, rows, targets, ["A", "B", "C"])


def _run(means: Means, playbook: Playbook, settings: AdaptationTuning, way: Way, seed: int) -> Town:
    means.say(f"{playbook.title}, {way}")
    return Town(playbook, settings, way, seed).run()


def _target(what: str, figure: float, bound: str, thesis: str, reached: bool | None) -> EmmaTarget:
    return EmmaTarget(what=what, figure=figure, bound=bound, thesis=thesis, verdict=verdict(reached))


def _minutes(town: Town) -> list[list[Second]]:
    return [town.seconds[begin : begin + 60] for begin in range(0, len(town.seconds), 60)]


def _mean_of(seconds: Sequence[Second], topic: str) -> float | None:
    values = [second.latency_ms[topic] for second in seconds if topic in second.latency_ms]
    return fmean(values) if values else None


def _row(playbook: Playbook, town: Town, way: str) -> TownRow:
    topics = sorted({topic for second in town.seconds for topic in second.latency_ms})
    return TownRow(
        title=playbook.title,
        way=way,
        moves=town.moves,
        starts=town.starts,
        stops=town.stops,
        management_messages=town.traffic.share("messages"),
        management_bytes=town.traffic.share("bytes"),
        nodes=[minute[-1].nodes for minute in _minutes(town)],
        managed=[sum(second.management for second in minute) for minute in _minutes(town)],
        latency_ms={topic: [_mean_of(minute, topic) for minute in _minutes(town)] for topic in topics},
    )


def _same_choice(playbook: Playbook, measured: Town, placed: Town) -> float:
    """Settled gateway-seconds in which a gateway is in the same latency group as when everything is measured."""
    groups = LatencyGroups(GROUPS_MS)
    same = count = 0
    for number, (one, other) in enumerate(zip(measured.seconds, placed.seconds, strict=True)):
        if any(0 <= number - step < SETTLED_S for step in playbook.steps_s):
            continue
        for gateway, node in one.on.items():
            if gateway in other.on:
                count += 1
                there, here = placed.usual_s(gateway, node), placed.usual_s(gateway, other.on[gateway])
                same += node == other.on[gateway] or groups.of(here) <= groups.of(there)
    return same / max(count, 1)


def _slower(static: Town, dynamic: Town, steps: int, playbook: Playbook) -> float:
    """The worst ratio of latencies in the last minute of a step, up to the one in which a broker is stopped by hand."""
    ratios = []
    for step in range(1, steps):
        end = int(playbook.steps_s[step] + (playbook.steps_s[1] - playbook.steps_s[0]))
        for topic in ("global", WEST, EAST):
            one, other = (_mean_of(town.seconds[end - 60 : end], topic) for town in (static, dynamic))
            if one is not None and other is not None:
                ratios.append(other / one)
    return max(ratios)


def _spikes(static: Town, dynamic: Town, playbook: Playbook) -> list[int]:
    """After each step, the seconds in which a topic was slower than with nodes that had always been there."""
    found = []
    settled = static.seconds[90:120]
    calm = {topic: _mean_of(settled, topic) or 0.0 for topic in ("A", "B", "C")}
    for step in playbook.steps_s:
        slow = 0
        for number in range(int(step), min(int(step) + 120, len(dynamic.seconds))):
            latencies = dynamic.seconds[number].latency_ms
            slow += any(latencies[topic] > SPIKE_RATIO * calm[topic] + SPIKE_MS for topic in latencies)
        found.append(slow)
    return found


def _report(
    experiment: str, seed: int, rows: list[TownRow], targets: list[EmmaTarget], topics: list[str]
) -> MeasurementReport:
    told = TownDocument(experiment=experiment, seed=seed, runs=rows, targets=targets)
    columns = [
        Column("minute", lambda at: str(at), "right"),
        *(_nodes_column(row) for row in rows),
        *(_latency_column(row, topic) for topic in topics for row in rows),
    ]
    first = table("Nodes, and mean latency in ms by topic, minute by minute", columns, range(len(rows[0].nodes)))
    second = table(
        "Runs",
        [
            Column("run", lambda row: f"{row.title}, {row.way}", "left"),
            Column("moves", lambda row: str(row.moves)),
            Column(
                "starts", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.starts) or "-", "left", False
            ),
            Column(
                "stops", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.stops) or "-", "left", False
            ),
            Column("messages", lambda row: f"{100 * row.management_messages:.2f} %"),
            Column("bytes", lambda row: f"{100 * row.management_bytes:.2f} %"),
        ],
        rows,
    )
    third = table(
        "To reach",
        [
            Column("what", lambda one: one.what, "left", False),
            Column("figure", lambda one: f"{one.figure:.2f}"),
            Column("bound", lambda one: one.bound),
            Column("thesis", lambda one: one.thesis),
            Column("verdict", lambda one: one.verdict, "left"),
        ],
        targets,
    )
    notes = [
        "The product's measuring and decisions over simulated hosts; MQTT is a model; delivery is not checked here. "
        "Management is counted by the thesis' sizes, with the mesh of workers and the reports of gateways; true bytes "
        "are those of echoes, questions, answers, reports of gateways and orders, with headers of UDP, TCP and MQTT. "
        "Reports of workers, every two seconds, are the same in both ways and not counted.",
        targets_missed([one.what for one in targets if one.verdict == "missed"]),
    ]
    return MeasurementReport(
        document=told, tables=[first, second, third], notes=notes, draw=lambda file: draw(told, topics, file)
    )


def _nodes_column(row: TownRow) -> Column:
    return Column(f"nodes\n{_short(row)}", lambda at: str(row.nodes[at]))


def _latency_column(row: TownRow, topic: str) -> Column:
    return Column(f"{topic}\n{_short(row)}", lambda at: _told(row.latency_ms.get(topic, [])[at]))


def _short(row: TownRow) -> str:
    return "all" if row.way == "measure-all" else row.title.split(", ")[1].replace("dynamic (all workers)", "dyn. all")


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def draw(told: TownDocument, topics: Sequence[str], file: Path) -> None:
    """Latency by topic, nodes and management messages, minute by minute; a column of panels for each run."""
    figure = empty_figure(3.2 * len(told.runs), 7)
    for place, row in enumerate(told.runs, 1):
        minutes = range(len(row.nodes))
        latency = figure.add_subplot(3, len(told.runs), place)
        for number, topic in enumerate(topics):
            points = [(at, ms) for at, ms in enumerate(row.latency_ms.get(topic, [])) if ms is not None]
            if points:
                latency.plot(*zip(*points, strict=True), color=COLOURS[number + 1], label=topic)
        latency.set_title(f"{row.title}\n{row.way}", fontsize=8)
        latency.set_ylim(0)
        nodes = figure.add_subplot(3, len(told.runs), len(told.runs) + place)
        nodes.step(minutes, row.nodes, color=COLOURS[2], where="post")
        nodes.set_ylim(0)
        managed = figure.add_subplot(3, len(told.runs), 2 * len(told.runs) + place)
        managed.bar(minutes, row.managed, color=COLOURS[1])
        managed.set_xlabel("minute", fontsize=8)
        if place == 1:
            latency.legend(frameon=False, fontsize=7)
            latency.set_ylabel("latency, ms", fontsize=8)
            nodes.set_ylabel("nodes", fontsize=8)
            managed.set_ylabel("management messages", fontsize=8)
        for axes in (latency, nodes, managed):
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
