"""Which nodes start and stop: two rules over the same pressures.

`steady` starts a node where the pressure has been high for `high_s`, and stops one where it has been low for `calm_s`
and that has served for `young_s`; never below a site's floor or above its ceiling, never a fixed node, never the last.
An overloaded node gets a second one near it.  Starts and stops are never ordered in one pass: what a start changes is
looked at first.

`seed` is the paper's listing: at once, without patience.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.picture import RUNNING, KnownWorker, Load, Picture, PictureRoundTrips, Standing, WorkerNodeState
from sterna.adaptation.pressure import COUNTED, MODELS, Pressure, Pressures, shortens_a_flow
from sterna.adaptation.reasons import DecisionReason, Judgement, Left, Resume, Rule, Start, Stop, reason
from sterna.adaptation.settings import ScalingTuning

JUDGED_MAX = 32
"""Workers under high pressure that one pass looks at."""
ROOM = 0.8
"""A node is stopped only if no other would come nearer to overload than this by taking over."""


class Thresholds(NamedTuple):
    up: float
    down: float


class Scaling(NamedTuple):
    judgements: list[Judgement]
    standing: Standing
    """Without wishes: those are the placement's."""


def thresholds(settings: ScalingTuning) -> Thresholds:
    """The operator's, or the model's own."""
    model = MODELS[settings.pressure]
    return Thresholds(settings.up or model.up, settings.down or model.down)


def pressures_of(distances: PictureRoundTrips, settings: ScalingTuning) -> Pressures:
    return Pressures(distances, settings.pressure, settings.value, settings.usable_error)


def scale(distances: PictureRoundTrips, settings: ScalingTuning) -> Scaling:
    """A judgement on every worker that could start or stop its node."""
    if settings.scaling == "off" or not distances.picture.workers:
        return Scaling([], Standing())
    if settings.scaling == "seed":
        return Scaling(_by_the_paper(distances, settings), Standing())
    return _Steady(distances, settings).run()


def _by_the_paper(distances: PictureRoundTrips, settings: ScalingTuning) -> list[Judgement]:
    """Its Listing 6.1.  Only fixed nodes are spared, and workers that cannot be asked."""
    limits, found = thresholds(settings), list[Judgement]()
    pressures, workers = pressures_of(distances, settings), distances.picture.workers
    idle = {name: one for name, one in pressures.of_workers().items() if workers[name].state is WorkerNodeState.OFF}
    if idle:
        worker = max(idle, key=lambda name: (idle[name].value, name))
        if idle[worker].value > limits.up:
            found.append(Start(worker, _numbers(Rule.PRESSURE, idle[worker], limits.up)))
    nodes = {name: one for name, one in pressures.of_nodes().items() if workers[name].is_serving}
    movable = {name: one for name, one in nodes.items() if not workers[name].fixed}
    if len(nodes) > 1 and movable:
        node = min(movable, key=lambda name: (movable[name].value, name))
        if movable[node].value < limits.down:
            found.append(Stop(node, _numbers(Rule.LOW_PRESSURE, movable[node], limits.down)))
    return found


class _Steady:
    """One pass of the rule with patience."""

    def __init__(self, distances: PictureRoundTrips, settings: ScalingTuning) -> None:
        self._distances = distances
        self._picture = distances.picture
        self._settings = settings
        self._limits = thresholds(settings)
        self._groups = LatencyGroups(settings.groups_ms)
        self._pressures = pressures_of(distances, settings)
        self._running = _count_by_site(self._picture)
        self._high: dict[str, float] = {}
        self._busy: dict[str, float] = {}

    def run(self) -> Scaling:
        starts = self._starts()
        started = any(isinstance(one, Start) for one in starts)
        stops, low = self._stops(started)
        return Scaling([*starts, *stops], Standing(high=self._high, low=low, busy=self._busy))

    # Starts.

    def _starts(self) -> list[Judgement]:
        found: list[Judgement] = []
        asked: set[str] = set()
        for _ in range(JUDGED_MAX):
            judgement = self._overloaded(asked) or self._pressed(asked)
            if judgement is None:
                break
            found.append(judgement)
            if isinstance(judgement, Left):
                asked.add(judgement.subject)
                continue
            asked.add(judgement.worker)
            self._running[self._picture.workers[judgement.worker].site] += isinstance(judgement, Start)
            self._pressures.started(judgement.worker)
            if sum(isinstance(one, Start) for one in found) >= self._settings.starts_at_once:
                break
        return found

    def _pressed(self, asked: set[str]) -> Start | Resume | Left | None:
        """The worker under the highest pressure, if that is high enough."""
        pressures = {name: one for name, one in self._pressures.of_workers().items() if name not in asked}
        high = {name: one for name, one in pressures.items() if one.value > self._limits.up}
        before = self._picture.standing.high
        for name in high:
            self._high[name] = before.get(name, self._picture.now)
        if not high:
            return None
        worker = self._picture.workers[max(high, key=lambda name: (high[name].value, name))]
        return self._judged(worker, high[worker.name])

    def _judged(self, worker: KnownWorker, pressure: Pressure) -> Start | Resume | Left:
        settings, now = self._settings, self._picture.now
        why = _numbers(Rule.PRESSURE, pressure, self._limits.up)
        if worker.state in (WorkerNodeState.LEAVING, WorkerNodeState.DRAINING):
            return Resume(worker.name, why)
        needed = min(settings.witnesses, pressure.gateways)
        if (obstacle := self._obstacle(worker)) is not None:
            return Left(worker.name, obstacle)
        if pressure.witnesses < needed:
            return Left(worker.name, reason(Rule.UNPROVED, measured_by=pressure.witnesses, needed=needed))
        if (for_s := now - self._high[worker.name]) < settings.high_s:
            return Left(worker.name, reason(Rule.UNSTEADY, pressure=pressure.value, for_s=for_s))
        if self._is_useless(worker):
            return Left(worker.name, reason(Rule.NO_GAIN_FOR_TOPICS, pressure=pressure.value))
        return Start(worker.name, why)

    def _is_useless(self, worker: KnownWorker) -> bool:
        """It would shorten the way of no message: nodes tell of the busiest topics, and the rest is not known."""
        settings = self._settings
        if not self._picture.flows or shortens_a_flow(self._distances, worker, settings.gain_ms, settings.gain_ratio):
            return False
        return self._pressures.of_unknown(worker.name) <= self._limits.up

    def _overloaded(self, asked: set[str]) -> Start | None:
        """A second node for one that has too much to do, near those it serves."""
        settings, now = self._settings, self._picture.now
        for node in self._picture.serving():
            load = node.load
            if load.cpu <= settings.busy_cpu and 1000 * load.lag_s <= settings.busy_lag_ms and self._has_line(load):
                continue
            self._busy[node.name] = self._picture.standing.busy.get(node.name, now)
            helper = self._helper_of(node, asked)
            if helper is None or now - self._busy[node.name] < settings.high_s:
                continue
            numbers = {"cpu": load.cpu, "lag_ms": 1000 * load.lag_s, "bytes_per_s": load.bytes_per_s}
            return Start(helper.name, reason(Rule.OVERLOAD, node=node.name, **numbers))
        return None

    def _has_line(self, load: Load) -> bool:
        """No more bytes pass than may."""
        most = self._settings.busy_bytes_per_s
        return not most or load.bytes_per_s <= most

    def _helper_of(self, node: KnownWorker, asked: set[str]) -> KnownWorker | None:
        """The idle worker nearest to the node, if its gateways would find it as near, and none helps already."""
        others = [one for one in self._picture.workers.values() if one is not node and self._is_as_near(one, node)]
        if any(self._may_still_help(one) or one.name in asked for one in others):
            return None
        idle = [one for one in others if self._obstacle(one) is None]
        return min(idle, key=lambda one: (node.coordinate.distance_s(one.coordinate), one.name), default=None)

    def _is_as_near(self, other: KnownWorker, node: KnownWorker) -> bool:
        """Most of the node's gateways have the other in the same latency group, or a lower one."""
        between_s, group = self._distances.between_s, self._groups.of
        gateways = [one for one in self._picture.gateways.values() if one.node == node.name]
        near = sum(group(between_s(one, other.name)) <= group(between_s(one, node.name)) for one in gateways)
        return 2 * near > len(gateways)

    def _may_still_help(self, other: KnownWorker) -> bool:
        """A node that starts, or has just begun to serve and has room: gateways are still to be moved to it."""
        if other.state is WorkerNodeState.STARTING:
            return True
        young = self._picture.now - other.since < self._settings.young_s
        has_room = other.load.cpu <= self._settings.busy_cpu and self._has_line(other.load)
        return other.is_serving and young and has_room

    def _obstacle(self, worker: KnownWorker) -> DecisionReason | None:
        if worker.state is not WorkerNodeState.OFF:
            return reason(Rule.ONE_AT_A_TIME, state=str(worker.state))
        if self._picture.now < worker.barred_until:
            return reason(Rule.BARRED, for_s=worker.barred_until - self._picture.now)
        ceiling = self._settings.ceilings.get(worker.site, inf)
        if self._running[worker.site] >= ceiling:
            return reason(Rule.CEILING, site=worker.site, running=self._running[worker.site], ceiling=ceiling)
        return None

    # Stops.

    def _stops(self, started: bool) -> tuple[list[Judgement], dict[str, float]]:
        worths = self._pressures.of_nodes()
        serving = {one.name: one for one in self._picture.serving()}
        before, now = self._picture.standing.low, self._picture.now
        low = {
            name: before.get(name, now)
            for name, worth in worths.items()
            if name in serving and worth.value < self._limits.down and name not in self._busy
        }
        found: list[Judgement] = []
        stopped = started or any(one.state is WorkerNodeState.LEAVING for one in self._picture.workers.values())
        for name in sorted(low, key=lambda name: (worths[name].value, name)):
            obstacle = self._must_run(serving[name], now - low[name], stopped, len(serving))
            if obstacle is not None:
                found.append(Left(name, obstacle))
                continue
            stopped = True
            found.append(Stop(name, _numbers(Rule.LOW_PRESSURE, worths[name], self._limits.down)))
        return found, low

    def _must_run(self, node: KnownWorker, low_s: float, stopped: bool, serving: int) -> DecisionReason | None:
        settings = self._settings
        age_s = self._picture.now - node.since
        floor = settings.floors.get(node.site, 0)
        if node.fixed:
            return reason(Rule.FIXED)
        if serving <= 1:
            return reason(Rule.LAST)
        if self._running[node.site] <= floor:
            return reason(Rule.FLOOR, site=node.site, running=self._running[node.site], floor=floor)
        if age_s < settings.young_s:
            return reason(Rule.YOUNG, age_s=age_s, young_s=settings.young_s)
        if low_s < settings.calm_s:
            return reason(Rule.UNSTEADY, for_s=low_s, calm_s=settings.calm_s)
        helped = [name for name in self._busy if self._is_as_near(node, self._picture.workers[name])]
        if helped:
            return reason(Rule.OVERLOAD, helps=helped[0])
        if (crowded := self._crowded_without(node)) is not None:
            return crowded
        return reason(Rule.ONE_AT_A_TIME) if stopped else None

    def _crowded_without(self, node: KnownWorker) -> DecisionReason | None:
        """The next best nodes of its gateways would have too much to do."""
        gateways = [one for one in self._picture.gateways.values() if one.node == node.name]
        others = [one for one in self._picture.serving() if one is not node]
        heirs = Counter(
            min(others, key=lambda other: self._distances.between_s(one, other.name)).name for one in gateways
        )
        most_cpu, most_bytes = ROOM * self._settings.busy_cpu, ROOM * self._settings.busy_bytes_per_s or inf
        for heir, count in sorted(heirs.items()):
            if heir in self._busy:
                return reason(Rule.NO_ROOM, heir=heir, busy_s=self._picture.now - self._busy[heir])
            part, present = count / len(gateways), self._picture.workers[heir].load
            cpu = present.cpu + part * node.load.cpu
            if cpu > most_cpu:
                return reason(Rule.NO_ROOM, heir=heir, cpu=cpu, most=most_cpu)
            bytes_per_s = present.bytes_per_s + part * node.load.bytes_per_s
            if bytes_per_s > most_bytes:
                return reason(Rule.NO_ROOM, heir=heir, bytes_per_s=bytes_per_s, most=most_bytes)
        return None


def _count_by_site(picture: Picture) -> Counter[str]:
    return Counter(one.site for one in picture.workers.values() if one.state in RUNNING | COUNTED)


def _numbers(rule: Rule, pressure: Pressure, threshold: float) -> DecisionReason:
    return reason(rule, pressure=pressure.value, threshold=threshold, gateways=pressure.gateways)
