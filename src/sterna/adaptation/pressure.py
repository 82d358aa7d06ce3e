"""Pressure: what gateways would gain from a node on a worker, and what they would lose with a node that runs.

Every gateway counts as served by the nearest node that runs or starts, as it will be once it has been moved.  So a
gateway that only waits for its move presses on nobody, and a node that was started a moment ago already has the
pressure that its gateways will give it.  The gain of a worker is the sum, over gateways nearer to it than to any of
these nodes, of what they would save; the worth of a node is the same sum for the next best.  A worker's gain becomes
its node's worth when the node starts.  So with `up` above `down`, no node is stopped for the reason it was started.

Under `benefit` the sums add up, and starts and stops under constant input come to an end for every input: the cost
"round trips by weight, plus a price between `down` and `up` for each node" falls with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, log, log10
from typing import Final, NamedTuple

from sterna.adaptation.picture import KnownGateway, KnownWorker, PictureRoundTrips, WorkerNodeState
from sterna.adaptation.placement import WEIGHT_OF

COUNTED: Final = frozenset({WorkerNodeState.STARTING, WorkerNodeState.SERVING})
"""States of nodes that gateways may count on."""


class Gain(NamedTuple):
    """The saving of one gateway."""

    milliseconds: float
    distance_ms: float
    """To the worker in question."""
    weight: float


class Pressure(NamedTuple):
    value: float
    gateways: int
    """Gateways that exert it."""
    witnesses: int
    """Those of them that have measured the worker lately."""


class PressureModel(NamedTuple):
    """How gains become pressure, and thresholds that make sense on its scale."""

    of: Callable[[Sequence[Gain], KnownWorker], float]
    up: float
    down: float


def orders_of_magnitude(gains: Sequence[Gain], worker: KnownWorker) -> float:
    """The paper's: log10 of milliseconds, summed over gateways.  A gain below one millisecond is none."""
    return sum(log10(gain.milliseconds) for gain in gains if gain.milliseconds > 1.0)


def logarithm_of_all(gains: Sequence[Gain], worker: KnownWorker) -> float:
    """That of the paper's public program: the natural logarithm of the sum of all gains."""
    total = sum(gain.milliseconds for gain in gains)
    return log(total) if total > 1.0 else 0.0


def inverse_distances(gains: Sequence[Gain], worker: KnownWorker) -> float:
    """The paper's first attempt: no threshold of it is right in two regions."""
    return sum(1.0 / max(gain.distance_ms, 0.001) for gain in gains)


def benefit(gains: Sequence[Gain], worker: KnownWorker) -> float:
    """Milliseconds saved, by weight, per unit of price."""
    return sum(gain.milliseconds * gain.weight for gain in gains) / max(worker.price, 1e-9)


MODELS: Final = {
    "benefit": PressureModel(benefit, up=100.0, down=50.0),
    "seed": PressureModel(orders_of_magnitude, up=2.0, down=1.0),
    "ln-sum": PressureModel(logarithm_of_all, up=4.0, down=3.0),
    "distance": PressureModel(inverse_distances, up=0.5, down=0.2),
}


class Nearest(NamedTuple):
    """The two nearest nodes of a gateway, by their positions; -1 and infinity where there is none."""

    node: int
    distance_s: float
    next_s: float


class _Placed(NamedTuple):
    """A gateway that counts."""

    gateway: KnownGateway
    nearest: Nearest
    is_sure: bool
    """Its coordinate is usable.  Else only round trips that it measured count: it has measured every node that runs, so
    none can be nearer than it knows."""


class Pressures:
    """Gains of all workers and worths of all nodes, for a set of nodes that run."""

    def __init__(self, distances: PictureRoundTrips, model: str, value: str, usable_error: float) -> None:
        self.picture = distances.picture
        self.distances = distances
        self._model = MODELS[model]
        self._value = WEIGHT_OF[value]
        self._workers = list(self.picture.workers.values())
        self._running = [number for number, one in enumerate(self._workers) if one.state in COUNTED]
        self._usable_error = usable_error
        self._found: list[_Placed] | None = None
        self._gains: dict[str, Pressure] | None = None

    def started(self, worker: str) -> None:
        """From now on, count on this worker's node too."""
        number = self.distances.position[worker]
        if number not in self._running:
            self._running.append(number)
            self._found = self._gains = None

    def of_workers(self) -> dict[str, Pressure]:
        """The gain of each worker whose node does not run."""
        if self._gains is None:
            self._gains = self._reckon()
        return self._gains

    def _reckon(self) -> dict[str, Pressure]:
        idle = sorted(set(range(len(self._workers))) - set(self._running))
        gains: dict[int, list[Gain]] = {number: [] for number in idle}
        witnesses = dict.fromkeys(idle, 0)
        for gateway, nearest, is_sure in self._placed():
            row, here_s = self.distances.row(gateway), nearest.distance_s
            closer = [number for number in idle if row[number] < here_s]
            if closer:
                weight = self._value(gateway.weight)
                for number in closer:
                    has_measured = self._has_measured(gateway, number)
                    if is_sure or has_measured:
                        gains[number].append(Gain(1000 * (here_s - row[number]), 1000 * row[number], weight))
                        witnesses[number] += has_measured
        return {self._workers[number].name: self._pressure(gains[number], number, witnesses[number]) for number in idle}

    def of_unknown(self, worker: str) -> float:
        """The gain of those whose messages no flow names."""
        known = {name for flow in self.picture.flows for name in (*flow.publishers, *flow.subscribers)}
        number = self.distances.position[worker]
        gains = []
        for gateway, nearest, is_sure in self._placed():
            there_s = self.distances.row(gateway)[number]
            counts = gateway.name not in known and (is_sure or self._has_measured(gateway, number))
            if counts and there_s < nearest.distance_s:
                gains.append(Gain(1000 * (nearest.distance_s - there_s), 1000 * there_s, self._value(gateway.weight)))
        return self._model.of(gains, self._workers[number])

    def of_nodes(self) -> dict[str, Pressure]:
        """The worth of each node that runs: infinite for the last one."""
        gains: dict[int, list[Gain]] = {number: [] for number in self._running}
        for gateway, nearest, _ in self._placed():
            if nearest.node >= 0:
                more_ms = 1000 * (nearest.next_s - nearest.distance_s)
                gains[nearest.node].append(Gain(more_ms, 1000 * nearest.distance_s, self._value(gateway.weight)))
        last = len(self._running) == 1
        return {
            self._workers[number].name: Pressure(inf, len(of_node), 0) if last else self._pressure(of_node, number, 0)
            for number, of_node in gains.items()
        }

    def _pressure(self, gains: list[Gain], number: int, witnesses: int) -> Pressure:
        return Pressure(self._model.of(gains, self._workers[number]), len(gains), witnesses)

    def _has_measured(self, gateway: KnownGateway, number: int) -> bool:
        return self.picture.measured_s(gateway, self.distances.names[number]) is not None

    def _placed(self) -> list[_Placed]:
        if self._found is None:
            found = []
            for gateway in self.picture.gateways.values():
                is_sure = gateway.coordinate.error <= self._usable_error
                if gateway.node and (is_sure or all(self._has_measured(gateway, number) for number in self._running)):
                    found.append(_Placed(gateway, _two_nearest(self.distances.row(gateway), self._running), is_sure))
            self._found = found
        return self._found


def _two_nearest(row: Sequence[float], running: Iterable[int]) -> Nearest:
    node, least, second = -1, inf, inf
    for number in running:
        distance = row[number]
        if distance < least:
            node, least, second = number, distance, least
        elif distance < second:
            second = distance
    return Nearest(node, least, second)


def shortens_a_flow(distances: PictureRoundTrips, worker: KnownWorker, gain_ms: float, gain_ratio: float = 0.0) -> bool:
    """Whether messages of some known flow would arrive sooner by so much with a node on this worker.

    A message goes from its publisher's gateway to that one's node, on to the subscriber's, and to that one.  Halves of
    round trips are added up.  A node beside publishers whose subscribers are far away shortens nothing.
    Ways between nodes are estimates: a gain must be larger than they may be wrong.  And if the other end stays at the
    node that this one leaves, there is none, whatever estimates say: the detour is no shorter than the way it replaces.
    """
    moves = _Homes(distances, worker)
    for flow in distances.picture.flows:
        first, last = moves.savings(flow.publishers), moves.savings(flow.subscribers)
        for up, up_s in first.items():
            for down, down_s in last.items():
                if up.before is down.before and up.after is not down.after:
                    continue
                before_s, after_s = between_s(up.before, down.before), between_s(up.after, down.after)
                saved_ms = 500 * (up_s + down_s + before_s - after_s)
                wrong = max(gain_ratio, worker.coordinate.error)
                if saved_ms >= max(gain_ms, 500 * wrong * abs(after_s - before_s)):
                    return True
    return False


def between_s(one: KnownWorker, other: KnownWorker) -> float:
    return 0.0 if one is other else one.coordinate.distance_s(other.coordinate)


class _Home(NamedTuple):
    """The node of a gateway, now and with one more."""

    before: KnownWorker
    after: KnownWorker

    def __hash__(self) -> int:
        return hash((self.before.name, self.after.name))


class _Homes:
    def __init__(self, distances: PictureRoundTrips, worker: KnownWorker) -> None:
        self._distances = distances
        self._worker = worker
        self._nodes = [one for one in distances.picture.workers.values() if one.state in COUNTED]
        self._known: dict[str, tuple[_Home, float] | None] = {}

    def savings(self, gateways: Iterable[str]) -> dict[_Home, float]:
        """Home: the most that one of these gateways saves on its own round trip.  All with one home save the rest
        alike, so there are few to compare, however many publish and read."""
        most: dict[_Home, float] = {}
        for name in gateways:
            found = self._known[name] if name in self._known else self._known.setdefault(name, self._find(name))
            if found is not None:
                home, saved_s = found
                most[home] = max(most.get(home, saved_s), saved_s)
        return most

    def _find(self, name: str) -> tuple[_Home, float] | None:
        gateway = self._distances.picture.gateways.get(name)
        if gateway is None or not self._nodes:
            return None
        to = self._distances.between_s
        nearest = min(self._nodes, key=lambda one: to(gateway, one.name))
        saved_s = to(gateway, nearest.name) - to(gateway, self._worker.name)
        return (_Home(nearest, self._worker), saved_s) if saved_s > 0 else (_Home(nearest, nearest), 0.0)
