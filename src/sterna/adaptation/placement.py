"""Which gateway goes to which node: three rules, and the reason of each answer.

All rules compare latency groups.  A gateway whose node is in a higher group than the nearest moves.  Within the nearest
group it moves only to a node that has less to do.

`steady` cannot flap.  With constant distances each move either lowers the group of a gateway, or leaves all groups as
they are and makes the sum of the squares of the nodes' weights smaller, since the mover's own weight is counted.
Neither can go on for ever, and no move undoes another.  It only looks at nodes that have answered this gateway lately:
an estimate says whom to measure, never where to go.

The paper's rule forgets the mover's own weight: two nodes with 2 and 1 subscribers exchange one of them in every pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.picture import KnownGateway, KnownWorker, PictureRoundTrips, Weight, WorkerNodeState
from sterna.adaptation.reasons import Judgement, Left, Move, Rule, reason
from sterna.adaptation.settings import SelectionTuning

WEIGHT_OF: Final[dict[str, Callable[[Weight], float]]] = {
    "gateways": lambda weight: 1,
    "clients": lambda weight: weight.clients,
    "subscriptions": lambda weight: weight.subscriptions,
    "deliveries": lambda weight: weight.deliveries_per_s,
}


class Candidate(NamedTuple):
    worker: KnownWorker
    distance_s: float
    group: int


class Placement(NamedTuple):
    judgements: list[Judgement]
    wishes: dict[str, tuple[str, float]]


class _Pass:
    """One pass over all gateways.  Weights follow the moves that the pass itself orders."""

    def __init__(self, distances: PictureRoundTrips, settings: SelectionTuning) -> None:
        self.picture = distances.picture
        self.distances = distances
        self.settings = settings
        self.groups = LatencyGroups(settings.groups_ms)
        self.weigh = WEIGHT_OF[settings.weight]
        self.serving = self.picture.serving()
        self.weights: dict[str, float] = {
            worker.name: sum(map(self.weigh, worker.serves.values())) + worker.others
            for worker in self.picture.workers.values()
        }
        self.arrivals: Counter[str] = Counter()
        self.wishes: dict[str, tuple[str, float]] = {}

    def run(self) -> Placement:
        judge = RULES[self.settings.selection]
        judgements: list[Judgement] = []
        for gateway in self.picture.gateways.values():
            judgement = self._unmovable(gateway) or self._evacuated(gateway) or self._unplaced(gateway)
            judgement = judgement or judge(self, gateway)
            if isinstance(judgement, Move):
                judgement = self._ordered(gateway, judgement)
            judgements.append(judgement)
        return Placement(judgements, self.wishes)

    def candidates(self, gateway: KnownGateway, measured_only: bool = False) -> list[Candidate]:
        """The serving nodes, nearest first; of equally near ones the present one."""
        row, position = self.distances.row(gateway), self.distances.position
        found = []
        for worker in self.serving:
            if measured_only and self.picture.measured_s(gateway, worker.name) is None:
                continue
            distance = row[position[worker.name]]
            found.append(Candidate(worker, distance, self.groups.of(distance)))
        return sorted(found, key=lambda one: (one.distance_s, one.worker.name != gateway.node, one.worker.name))

    def lightest(self, candidates: Iterable[Candidate]) -> Candidate:
        return min(candidates, key=lambda one: (self.weights[one.worker.name], one.distance_s, one.worker.name))

    def answered(self, gateway: KnownGateway, candidates: Iterable[Candidate]) -> list[Candidate]:
        return [one for one in candidates if self.picture.measured_s(gateway, one.worker.name) is not None]

    def _unmovable(self, gateway: KnownGateway) -> Left | None:
        if not gateway.node or gateway.node not in self.picture.workers:
            return Left(gateway.name, reason(Rule.UNSERVED, node=gateway.node))
        if not self.serving:
            return Left(gateway.name, reason(Rule.NO_NODE))
        return None

    def _unplaced(self, gateway: KnownGateway) -> Left | None:
        """Its coordinate is not usable, and is needed: a gateway that measured its node can do without."""
        is_needed = {
            "seed": True,
            "steady": self.picture.measured_s(gateway, gateway.node) is None,
            "measure-all": False,
        }[self.settings.selection]
        if is_needed and gateway.coordinate.error > self.settings.usable_error:
            return Left(
                gateway.name,
                reason(Rule.UNPLACED, error=gateway.coordinate.error, usable=self.settings.usable_error),
            )
        return None

    def _evacuated(self, gateway: KnownGateway) -> Judgement | None:
        """The node is being emptied: the gateway goes to its next best that has answered."""
        if self.picture.workers[gateway.node].state is not WorkerNodeState.LEAVING:
            return None
        candidates = self.candidates(gateway)
        nearest = self.answered(gateway, candidates)
        if not nearest:
            return Left(gateway.name, reason(Rule.UNPROVED, target=candidates[0].worker.name if candidates else ""))
        why = reason(Rule.EVACUATION, distance_ms=1000 * nearest[0].distance_s)
        return Move(gateway.name, gateway.node, nearest[0].worker.name, why)

    def _ordered(self, gateway: KnownGateway, move: Move) -> Judgement:
        if self.arrivals[move.target] >= self.settings.moves_at_once:
            return Left(gateway.name, reason(Rule.TARGET_BUSY, target=move.target, moves=self.arrivals[move.target]))
        self.arrivals[move.target] += 1
        weight = self.weigh(gateway.weight)
        self.weights[move.source] -= weight
        self.weights[move.target] += weight
        return move


def _by_the_paper(one: _Pass, gateway: KnownGateway, measured_only: bool = False) -> Judgement:
    """Its three cases.  The lowest group is the lowest in which this gateway has a node, so there is no fourth case."""
    candidates = one.candidates(gateway, measured_only)
    if not candidates:
        return Left(gateway.name, reason(Rule.NO_NODE))
    lowest = [candidate for candidate in candidates if candidate.group == candidates[0].group]
    present = next((candidate for candidate in candidates if candidate.worker.name == gateway.node), None)
    if present is None and measured_only:
        return Left(gateway.name, reason(Rule.UNPROVED, node=gateway.node))
    best = one.lightest(lowest)
    if best.worker.name == gateway.node:
        return Left(gateway.name, reason(Rule.AT_OPTIMUM, distance_ms=1000 * best.distance_s, group=best.group))
    if present is None or best.group < present.group:
        before = present.group if present is not None else -1
        why = reason(Rule.LOWER_GROUP, group=best.group, before=before, distance_ms=1000 * best.distance_s)
        return Move(gateway.name, gateway.node, best.worker.name, why)
    return _balanced(one, gateway, lowest, best, own_weight=0.0)


def _balanced(
    one: _Pass, gateway: KnownGateway, group: list[Candidate], best: Candidate, own_weight: float
) -> Judgement:
    """The threshold of the paper, with the weight of the mover added (or not, as the paper has it)."""
    total = sum(one.weights[candidate.worker.name] for candidate in group)
    there, here = one.weights[best.worker.name], one.weights[gateway.node]
    numbers = {"there": there, "own": own_weight, "theta": one.settings.theta, "total": total, "here": here}
    if there + own_weight + one.settings.theta * total < here:
        return Move(gateway.name, gateway.node, best.worker.name, reason(Rule.BALANCE, **numbers))
    return Left(gateway.name, reason(Rule.BALANCED, **numbers))


def _measure_all(one: _Pass, gateway: KnownGateway) -> Judgement:
    return _by_the_paper(one, gateway, measured_only=True)


def _steady(one: _Pass, gateway: KnownGateway) -> Judgement:
    candidates = one.candidates(gateway)
    here_s = one.distances.between_s(gateway, gateway.node)
    group = one.groups.of(here_s)
    others = [other for other in one.answered(gateway, candidates) if other.worker.name != gateway.node]
    lowest = min((other.group for other in others), default=group)
    if lowest < group:
        return _nearer(one, gateway, here_s, one.lightest(other for other in others if other.group == lowest))
    if candidates[0].group < group:
        return Left(gateway.name, reason(Rule.UNPROVED, target=candidates[0].worker.name))
    equal = [candidate for candidate in candidates if candidate.group == group]
    peers = [other for other in others if other.group == group]
    if not peers:
        return Left(gateway.name, reason(Rule.AT_OPTIMUM, distance_ms=1000 * here_s, group=group))
    judgement = _balanced(one, gateway, equal, one.lightest(peers), one.weigh(gateway.weight))
    return _held(one, gateway, judgement) if isinstance(judgement, Move) else judgement


def _nearer(one: _Pass, gateway: KnownGateway, here_s: float, best: Candidate) -> Judgement:
    settings = one.settings
    gain_s = here_s - best.distance_s
    # The target's round trip is measured; the present one may be an estimate, and wrong by so much.
    wrong = 0.0 if one.picture.measured_s(gateway, gateway.node) is not None else gateway.coordinate.error * here_s
    needed_s = max(settings.gain_ms / 1000, settings.gain_ratio * here_s, wrong)
    numbers = {"gain_ms": 1000 * gain_s, "needed_ms": 1000 * needed_s, "from_ms": 1000 * here_s, "group": best.group}
    if gain_s <= needed_s:
        return Left(gateway.name, reason(Rule.SMALL_GAIN, **numbers))
    return _held(one, gateway, Move(gateway.name, gateway.node, best.worker.name, reason(Rule.LOWER_GROUP, **numbers)))


def _held(one: _Pass, gateway: KnownGateway, move: Move) -> Judgement:
    """A wish must hold for a while, and a gateway that has just moved stays."""
    now, settings = one.picture.now, one.settings
    if now - gateway.moved_at < settings.cool_down_s:
        return Left(gateway.name, reason(Rule.COOLING_DOWN, moved_s_ago=now - gateway.moved_at))
    wished, since = one.picture.standing.wishes.get(gateway.name, ("", now))
    if not wished:
        since = now
    one.wishes[gateway.name] = (move.target, since)
    if now - since < settings.steady_s:
        return Left(gateway.name, reason(Rule.UNSTEADY, target=move.target, for_s=now - since))
    return move


RULES: Final[dict[str, Callable[[_Pass, KnownGateway], Judgement]]] = {
    "steady": _steady,
    "seed": _by_the_paper,
    "measure-all": _measure_all,
}


def place(distances: PictureRoundTrips, settings: SelectionTuning) -> Placement:
    """A judgement on every gateway of the picture: a move, or why it stays."""
    return _Pass(distances, settings).run()


def nodes_by_distance(distances: PictureRoundTrips, gateway: KnownGateway) -> list[str]:
    """The serving nodes, nearest first: where a gateway turns to without a coordinator."""
    row, position = distances.row(gateway), distances.position
    return sorted((worker.name for worker in distances.picture.serving()), key=lambda name: (row[position[name]], name))
