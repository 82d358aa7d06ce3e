"""The migration experiment as a document, judged: its fields are those of the JSON.

Losses, repetitions and order come from the audit, on Spark, of what the clients wrote down; how long moves
took, from the nodes.  Beside it stands what the paper counted and what its model predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sterna.measure.papers.migration.plan import (
    JITTER_MS,
    PAPER_RUNS,
    ClientKind,
    MigrationPlan,
    MovedTopic,
    MoveExperiment,
)
from sterna.measure.report import Spread, spread

Found = Sequence[dict[str, Any]]

FEWER = 10.0
"""By what factor losses at QoS 0 and repetitions at QoS 1 are to be fewer than the paper's."""
OF_MODEL = 1.2
"""How much longer than the model's time a move may take, processing apart."""


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
    """The longest around the move, of the worst run."""


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    topic: str
    qos: int
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
    """From the order until the source is done: the paper's from INITIALIZED to FINISHED."""
    served: Spread | None
    """From the order until the client is connected to the target."""
    model_ms: float
    """For this state of synchronisation,"""
    shortest_ms: float
    """and at the least."""
    limit_ms: float
    reached: bool


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
    processing_ms: float
    """What a move takes where links take no time, measured in the same run."""
    rows: list[MoveRow]
    durations: list[MoveDuration]
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
    processing_ms: float,
) -> MigrationDocument:
    """`accounted` is a row per client and subscription, see `sterna.pipeline.audit.move_audit.account`."""
    rows = [_row(plan, experiment, topic, accounted) for experiment in plan.experiments for topic in experiment.topics]
    durations = [
        _duration(plan, experiment, kind, moves, processing_ms)
        for experiment in plan.experiments
        for kind in plan.kinds
    ]
    return MigrationDocument(
        version=version,
        site=described(plan),
        runs=plan.runs,
        kinds=list(plan.kinds),
        processing_ms=processing_ms,
        rows=rows,
        durations=durations,
        targets=_targets(plan, rows, durations, moves),
        problems=[f"{move['client']}: {move['problem']}" for move in moves if move["problem"]],
        moves=list(moves),
    )


def described(plan: MigrationPlan) -> str:
    if not plan.at_a_distance:
        return "processes on loopback, no distance between anybody: nobody is ahead or behind (distances need root)"
    return (
        f"processes in network namespaces; one way: source-target 40 ms, {plan.lag_ms:g} ms in the direction that "
        f"lags, client-source 40 ms, client-target 10 ms, publishers 0, each plus or minus {JITTER_MS:g} ms"
    )


def _row(plan: MigrationPlan, experiment: MoveExperiment, topic: MovedTopic, accounted: Found) -> MoveRow:
    return MoveRow(
        experiment=experiment.name,
        topic=topic.name,
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
    return MoveCell(
        kind=kind,
        expected=sum(row["expected"] for row in found),
        lost=sum(row["lost"] for row in found),
        duplicated=sum(row["duplicated"] for row in found),
        reordered=sum(row["reordered"] for row in found),
        valid_runs=sum(_is_valid(topic.qos, row) for row in found),
        latency_before_ms=_middle([row["before_ms"] for row in found]),
        latency_after_ms=_middle([row["after_ms"] for row in found]),
        silence_ms=max((row["silence_ms"] for row in found if row["silence_ms"] is not None), default=None),
    )


def _is_valid(qos: int, row: dict[str, Any]) -> bool:
    """The paper's table 6.1, and the order, which it does not check."""
    lost = qos > 0 and row["lost"] > 0
    twice = qos != 1 and row["duplicated"] > 0
    return row["delivered"] > 0 and not (lost or twice or row["reordered"])


def _middle(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _duration(
    plan: MigrationPlan,
    experiment: MoveExperiment,
    kind: ClientKind,
    moves: Found,
    processing_ms: float,
) -> MoveDuration:
    found = [move for move in moves if move["experiment"] == experiment.name and move["kind"] == kind]
    took = _spread_ms(found, "finished")
    latencies = plan.latencies(experiment)
    limit_ms = OF_MODEL * latencies.shortest + processing_ms
    return MoveDuration(
        experiment=experiment.name,
        kind=kind,
        took=took,
        served=_spread_ms(found, "arrived"),
        model_ms=experiment.predicted_ms(latencies),
        shortest_ms=latencies.shortest,
        limit_ms=limit_ms,
        reached=took is not None and took.mean <= limit_ms,
    )


def _spread_ms(moves: Found, end: str) -> Spread | None:
    known = [1000 * (move[end] - move["ordered"]) for move in moves if move[end] is not None]
    return spread(known) if known else None


def _targets(
    plan: MigrationPlan, rows: Sequence[MoveRow], durations: Sequence[MoveDuration], moves: Found
) -> list[MoveTarget]:
    due = plan.runs * len(rows) * len(plan.kinds)
    valid = sum(cell.valid_runs for row in rows for cell in row.cells)
    moved = sum(1 for move in moves if move["finished"] is not None and move["present"] and not move["problem"])
    asked = plan.runs * len(plan.experiments) * len(plan.kinds)
    within = sum(1 for one in durations if one.reached)
    return [
        MoveTarget(
            what="valid in every run, every session found at the target",
            ours=f"{valid} of {due} subscriptions, {moved} of {asked} moves",
            limit="all",
            reached=valid == due and moved == asked,
        ),
        _fewer(
            plan, "lost at QoS 0", [(row.paper_lost, cell.lost) for row in rows if not row.qos for cell in row.cells]
        ),
        _fewer(
            plan,
            "duplicated at QoS 1",
            [(row.paper_duplicated, cell.duplicated) for row in rows if row.qos == 1 for cell in row.cells],
        ),
        MoveTarget(
            what=f"duration at most {OF_MODEL:g} x the model's shortest and processing",
            ours=f"{within} of {len(durations)}",
            limit="all",
            reached=within == len(durations),
        ),
    ]


def _fewer(plan: MigrationPlan, what: str, pairs: Sequence[tuple[int, int]]) -> MoveTarget:
    """Both per run and client."""
    clients = max(1, len(plan.kinds))
    paper = sum(theirs for theirs, _ in pairs) / PAPER_RUNS / clients
    ours = sum(ours for _, ours in pairs) / plan.runs / clients
    limit = paper / FEWER
    return MoveTarget(
        what=f"{what}, per run of all experiments",
        ours=f"{ours:.2f} (paper: {paper:.1f})",
        limit=f"at most {limit:.2f}",
        reached=ours <= limit,
    )
