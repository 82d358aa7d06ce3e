"""The migration experiment as a document, judged: its fields are those of the JSON.

The audit of what the clients wrote down, on Spark, counts what was lost, repeated, out of order, and how long a stream
was silent.  A move takes from the order until the client is served at the target.  Beside it stands what the paper
counted and what its model predicts; the model's processing takes no time, and nothing is added for ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression
from typing import Any

import msgspec

from sterna.measure.papers.migration.plan import (
    JITTER_MS,
    PAPER_RUNS,
    PAPER_TIMES_LATENCY,
    ClientKind,
    MigrationPlan,
    MovedTopic,
    MoveExperiment,
)
from sterna.measure.papers.migration.wire import MoveWire
from sterna.measure.report import Spread, spread

Found = Sequence[dict[str, Any]]

FEWER = 10.0
"""By what factor losses at QoS 0 and repetitions at QoS 1 are to be fewer than the paper's."""
OF_MODEL = 1.2
"""How much longer than the model's shortest time a move may take."""
OF_GAP = 1.5
"""How much longer than the mean gap of its stream a client behind a gateway may hear nothing, with brokers synced."""


class MoveCell(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription with one kind of client, over all runs."""

    kind: str
    expected: int
    lost: int
    duplicated: int
    reordered: int
    valid_runs: int
    """In which the promise of its QoS was kept, and the order."""
    latency_before_ms: float | None
    latency_after_ms: float | None
    silence_ms: float | None
    """The longest of a stream around the move, of the worst run,"""
    gap_ms: float | None
    """and the mean gap between messages of that stream."""


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    topic: str
    published: int
    """The QoS of publications,"""
    qos: int
    """of the subscription."""
    state: str
    cells: list[MoveCell]
    paper_lost: int
    paper_duplicated: int
    """Over ten runs."""


class MoveDuration(msgspec.Struct, frozen=True, kw_only=True):
    """Moves of one kind of client in one experiment; milliseconds."""

    experiment: str
    kind: str
    took: Spread | None
    """From the order until the source is done with it."""
    served: Spread | None
    """From the order until the client is connected to the target: the paper's from INITIALIZED to FINISHED."""
    model_ms: float
    """For this state of synchronisation,"""
    shortest_ms: float
    """and at the least."""
    limit_ms: float
    reached: bool


class LatencyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Moves over links that all take the same time, one way."""

    latency_ms: float
    paper_ms: float
    """Its headline: eight times the latency."""
    shortest_ms: float
    """Of the model."""
    served_ms: dict[str, float]
    """By kind of client: from the order until it is served at the target, mean."""


class LatencySlope(msgspec.Struct, frozen=True, kw_only=True):
    """The line through the rows: a move takes so many latencies, and something besides."""

    kind: str
    times_latency: float
    besides_ms: float


class MoveTarget(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    ours: str
    limit: str
    reached: bool


class MigrationDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = "migration"
    version: str
    site: str
    runs: int
    kinds: list[str]
    rows: list[MoveRow]
    durations: list[MoveDuration]
    latency: list[LatencyRow]
    slopes: list[LatencySlope]
    wire: MoveWire | None
    """Bytes and packets of moves; None: not measured."""
    targets: list[MoveTarget]
    problems: list[str]
    moves: list[dict[str, Any]]

    @property
    def invalid(self) -> bool:
        return bool(self.problems) or not self.targets[0].reached


def document(
    plan: MigrationPlan,
    version: str,
    accounted: Found,
    moves: Found,
    wire: MoveWire | None = None,
) -> MigrationDocument:
    """`accounted` is a row per client and subscription, see `sterna.pipeline.audit.move_audit.account`."""
    rows = [_row(plan, experiment, topic, accounted) for experiment in plan.experiments for topic in experiment.topics]
    durations = [_duration(plan, experiment, kind, moves) for experiment in plan.experiments for kind in plan.kinds]
    latency = [row for experiment in plan.experiments if (row := _latency(plan, experiment, durations))]
    return MigrationDocument(
        version=version,
        site=described(plan),
        runs=plan.runs,
        kinds=list(plan.kinds),
        rows=rows,
        durations=durations,
        latency=latency,
        slopes=[slope for kind in plan.kinds if (slope := _slope(kind, latency))],
        wire=wire,
        targets=_targets(plan, rows, durations, moves),
        problems=[f"{move['client']}: {move['problem']}" for move in moves if move["problem"]],
        moves=list(moves),
    )


def described(plan: MigrationPlan) -> str:
    if not plan.at_a_distance:
        return "processes on loopback, no distance between anybody: nobody is ahead or behind (distances need root)"
    return (
        f"processes in network namespaces; one way: source-target 40 ms, {plan.lag_ms:g} ms in the direction that "
        f"lags, client-source 40 ms, client-target 10 ms, publishers 0, each plus or minus {JITTER_MS:g} ms; in "
        f"the sets called latency all links alike"
    )


def _row(plan: MigrationPlan, experiment: MoveExperiment, topic: MovedTopic, accounted: Found) -> MoveRow:
    return MoveRow(
        experiment=experiment.name,
        topic=topic.name,
        published=topic.published,
        qos=topic.qos,
        state=topic.state,
        cells=[_cell(plan, experiment, topic, kind, accounted) for kind in plan.kinds],
        paper_lost=topic.losses,
        paper_duplicated=topic.duplicates,
    )


def _cell(
    plan: MigrationPlan,
    experiment: MoveExperiment,
    topic: MovedTopic,
    kind: ClientKind,
    accounted: Found,
) -> MoveCell:
    paths = {f"{experiment.name}/{number}/{topic.name}" for number in range(1, plan.runs + 1)}
    found = [row for row in accounted if row["topic"] in paths and row["client"].endswith(f" {kind}")]
    heard = [row for row in found if row["silence_ms"] is not None]
    worst = max(heard, key=lambda row: float(row["silence_ms"] / row["gap_ms"]), default=None)
    return MoveCell(
        kind=kind,
        expected=sum(row["expected"] for row in found),
        lost=sum(row["lost"] for row in found),
        duplicated=sum(row["duplicated"] for row in found),
        reordered=sum(row["reordered"] for row in found),
        valid_runs=sum(_is_valid(topic.delivered_at, row) for row in found),
        latency_before_ms=_middle([row["before_ms"] for row in found]),
        latency_after_ms=_middle([row["after_ms"] for row in found]),
        silence_ms=None if worst is None else worst["silence_ms"],
        gap_ms=None if worst is None else worst["gap_ms"],
    )


def _is_valid(qos: int, row: dict[str, Any]) -> bool:
    """The paper's table 6.1, and the order, which it does not check."""
    lost = qos > 0 and row["lost"] > 0
    twice = qos != 1 and row["duplicated"] > 0
    return row["delivered"] > 0 and not (lost or twice or row["reordered"])


def _middle(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _duration(plan: MigrationPlan, experiment: MoveExperiment, kind: ClientKind, moves: Found) -> MoveDuration:
    found = [move for move in moves if move["experiment"] == experiment.name and move["kind"] == kind]
    served = _spread_ms(found, "arrived")
    latencies = plan.latencies(experiment)
    model_ms = experiment.predicted_ms(latencies, plan.lag_ms if plan.at_a_distance else 0.0)
    # A target that is really behind has to be waited for: the shortest move is one in which nobody is.
    limit_ms = OF_MODEL * (model_ms if experiment.is_cut else latencies.shortest)
    return MoveDuration(
        experiment=experiment.name,
        kind=kind,
        took=_spread_ms(found, "finished"),
        served=served,
        model_ms=model_ms,
        shortest_ms=latencies.shortest,
        limit_ms=limit_ms,
        reached=served is not None and served.mean <= limit_ms,
    )


def _latency(plan: MigrationPlan, experiment: MoveExperiment, durations: Sequence[MoveDuration]) -> LatencyRow | None:
    if not experiment.all_ms or not plan.at_a_distance:
        return None
    found = [one for one in durations if one.experiment == experiment.name and one.served is not None]
    return LatencyRow(
        latency_ms=experiment.all_ms,
        paper_ms=PAPER_TIMES_LATENCY * experiment.all_ms,
        shortest_ms=plan.latencies(experiment).shortest,
        served_ms={one.kind: one.served.mean for one in found if one.served is not None},
    )


def _slope(kind: str, rows: Sequence[LatencyRow]) -> LatencySlope | None:
    points = [(row.latency_ms, row.served_ms[kind]) for row in rows if kind in row.served_ms]
    if len(points) < 2:
        return None
    slope, besides = linear_regression(*zip(*points, strict=True))
    return LatencySlope(kind=kind, times_latency=slope, besides_ms=besides)


def _spread_ms(moves: Found, end: str) -> Spread | None:
    known = [1000 * (move[end] - move["ordered"]) for move in moves if move[end] is not None]
    return spread(known) if known else None


def _targets(
    plan: MigrationPlan, rows: Sequence[MoveRow], durations: Sequence[MoveDuration], moves: Found
) -> list[MoveTarget]:
    by_name = {experiment.name: experiment for experiment in plan.experiments}
    paper = [row for row in rows if by_name[row.experiment].part == "paper"]
    at_qos_0 = [row for row in rows if not row.published and by_name[row.experiment].part == "published"]
    asked = [one for one in durations if by_name[one.experiment].part in ("paper", "cut", "nodes")]
    cut = [move for move in moves if by_name[move["experiment"]].is_cut]
    targets = [_all_valid(plan, rows, moves), _kept(rows)]
    if paper:
        targets.append(_fewer(plan, "lost at QoS 0, published at QoS 2", paper))
    if at_qos_0:
        targets.append(_fewer(plan, "lost at QoS 0, published at QoS 0", at_qos_0))
    if asked and plan.at_a_distance:
        within = sum(1 for one in asked if one.reached)
        what = f"client served at the target within {OF_MODEL:g} x the model's shortest"
        targets.append(_of_all(what, within, len(asked)))
        targets += _quiet(rows, by_name)
    if cut and plan.at_a_distance:
        behind = sum(1 for move in cut if move["third"] != "synced")
        targets.append(_of_all("sets called cut: the target was behind when the move was ordered", behind, len(cut)))
    return targets


def _of_all(what: str, ours: int, due: int) -> MoveTarget:
    return MoveTarget(what=what, ours=f"{ours} of {due}", limit="all", reached=ours == due)


def _all_valid(plan: MigrationPlan, rows: Sequence[MoveRow], moves: Found) -> MoveTarget:
    due = plan.runs * len(rows) * len(plan.kinds)
    valid = sum(cell.valid_runs for row in rows for cell in row.cells)
    moved = sum(1 for move in moves if move["arrived"] is not None and move["present"] and not move["problem"])
    asked = plan.runs * len(plan.experiments) * len(plan.kinds)
    return MoveTarget(
        what="valid in every run, every session found at the target",
        ours=f"{valid} of {due} subscriptions, {moved} of {asked} moves",
        limit="all",
        reached=valid == due and moved == asked,
    )


def _kept(rows: Sequence[MoveRow]) -> MoveTarget:
    """The paper's own bound at QoS 1 is that nothing is lost; it had 1,322 duplicates."""
    cells = [cell for row in rows if min(row.qos, row.published) for cell in row.cells]
    lost, duplicated = (sum(getattr(cell, name) for cell in cells) for name in ("lost", "duplicated"))
    return MoveTarget(
        what="lost or duplicated at QoS 1 and 2",
        ours=f"{lost} lost, {duplicated} duplicated of {sum(cell.expected for cell in cells):,}",
        limit="none",
        reached=not lost and not duplicated,
    )


def _quiet(rows: Sequence[MoveRow], by_name: dict[str, MoveExperiment]) -> list[MoveTarget]:
    """At 2, 3 and 5 nodes."""
    found: dict[int, list[float]] = {}
    for row in rows:
        experiment = by_name[row.experiment]
        for cell in row.cells:
            if cell.kind == "gateway" and experiment.is_synced and cell.silence_ms and cell.gap_ms:
                found.setdefault(experiment.nodes, []).append(cell.silence_ms / cell.gap_ms)
    return [
        MoveTarget(
            what=f"longest silence behind a gateway, brokers synced, {nodes} nodes",
            ours=f"{max(ratios):.2f} x the mean gap",
            limit=f"at most {OF_GAP:g} x",
            reached=max(ratios) <= OF_GAP,
        )
        for nodes, ratios in sorted(found.items())
    ]


def _fewer(plan: MigrationPlan, what: str, rows: Sequence[MoveRow]) -> MoveTarget:
    """Per run of these sets and client; of subscriptions at QoS 0, the only ones of which the paper lost messages."""
    ours = sum(cell.lost for row in rows if not row.qos for cell in row.cells) / plan.runs / max(1, len(plan.kinds))
    paper = sum(row.paper_lost for row in rows) / PAPER_RUNS
    limit = paper / FEWER
    return MoveTarget(
        what=f"{what}, per run of all sets",
        ours=f"{ours:.2f} (paper: {paper:.1f})",
        limit=f"at most {limit:.2f}",
        reached=ours <= limit,
    )
