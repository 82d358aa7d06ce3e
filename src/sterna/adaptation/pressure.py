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

from sterna.adaptation.picture import Distances, Gateway, NodeState, Picture, Worker
from sterna.adaptation.placement import WEIGHT_OF

COUNTED: Final = frozenset({NodeState.STARTING, NodeState.SERVING})
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


class Model(NamedTuple):
    """How gains become pressure, and thresholds that make sense on its scale."""

    of: Callable[[Sequence[Gain], Worker], float]
    up: float
    down: float


def orders_of_magnitude(gains: Sequence[Gain], worker: Worker) -> float:
    """The paper's: log10 of milliseconds, summed over gateways.  A gain below one millisecond is none."""
    return sum(log10(gain.milliseconds) for gain in gains if gain.milliseconds > 1.0)


def logarithm_of_all(gains: Sequence[Gain], worker: Worker) -> float:
    """That of the paper's public program: the natural logarithm of the sum of all gains."""
    total = sum(gain.milliseconds for gain in gains)
    return log(total) if total > 1.0 else 0.0


def inverse_distances(gains: Sequence[Gain], worker: Worker) -> float:
    """The paper's first attempt: no threshold of it is right in two regions."""
    return sum(1.0 / max(gain.distance_ms, 0.001) for gain in gains)


def benefit(gains: Sequence[Gain], worker: Worker) -> float:
    """Milliseconds saved, by weight, per unit of price."""
    return sum(gain.milliseconds * gain.weight for gain in gains) / max(worker.price, 1e-9)


MODELS: Final = {
    "benefit": Model(benefit, up=100.0, down=50.0),
    "seed": Model(orders_of_magnitude, up=2.0, down=1.0),
    "ln-sum": Model(logarithm_of_all, up=4.0, down=3.0),
    "distance": Model(inverse_distances, up=0.5, down=0.2),
}


class Nearest(NamedTuple):
    """The two nearest nodes of a gateway, by their positions; -1 and infinity where there is none."""

    node: int
    distance_s: float
    next_s: float


class Pressures:
    """Gains of all workers and worths of all nodes, for a set of nodes that run."""

    def __init__(self, distances: Distances, model: str, value: str, usable_error: float) -> None:
        self.picture = distances.picture
        self.distances = distances
        self._model = MODELS[model]
        self._value = WEIGHT_OF[value]
        self._workers = list(self.picture.workers.values())
        self._running = [number for number, one in enumerate(self._workers) if one.state in COUNTED]
        self._gateways = [one for one in self.picture.gateways.values() if one.coordinate.error <= usable_error]
        self._nearest: list[Nearest] | None = None
        self._gains: dict[str, Pressure] | None = None

    def started(self, worker: str) -> None:
        """From now on, count on this worker's node too."""
        number = self.distances.position[worker]
        if number not in self._running:
            self._running.append(number)
            self._nearest = self._gains = None

    def of_workers(self) -> dict[str, Pressure]:
        """The gain of each worker whose node does not run."""
        if self._gains is None:
            self._gains = self._reckon()
        return self._gains

    def _reckon(self) -> dict[str, Pressure]:
        idle = sorted(set(range(len(self._workers))) - set(self._running))
        gains: dict[int, list[Gain]] = {number: [] for number in idle}
        witnesses = dict.fromkeys(idle, 0)
        for gateway, nearest in zip(self._gateways, self._nearest_nodes(), strict=True):
            if not gateway.node:
                continue
            row, here_s = self.distances.row(gateway), nearest.distance_s
            closer = [number for number in idle if row[number] < here_s]
            if closer:
                weight = self._value(gateway.weight)
                for number in closer:
                    gains[number].append(Gain(1000 * (here_s - row[number]), 1000 * row[number], weight))
                    witnesses[number] += self._has_measured(gateway, number)
        return {self._workers[number].name: self._pressure(gains[number], number, witnesses[number]) for number in idle}

    def of_nodes(self) -> dict[str, Pressure]:
        """The worth of each node that runs: infinite for the last one."""
        gains: dict[int, list[Gain]] = {number: [] for number in self._running}
        for gateway, nearest in zip(self._gateways, self._nearest_nodes(), strict=True):
            if gateway.node and nearest.node >= 0:
                more_ms = 1000 * (nearest.next_s - nearest.distance_s)
                gains[nearest.node].append(Gain(more_ms, 1000 * nearest.distance_s, self._value(gateway.weight)))
        last = len(self._running) == 1
        return {
            self._workers[number].name: Pressure(inf, len(of_node), 0) if last else self._pressure(of_node, number, 0)
            for number, of_node in gains.items()
        }

    def _pressure(self, gains: list[Gain], number: int, witnesses: int) -> Pressure:
        return Pressure(self._model.of(gains, self._workers[number]), len(gains), witnesses)

    def _has_measured(self, gateway: Gateway, number: int) -> bool:
        return self.picture.measured_s(gateway, self.distances.names[number]) is not None

    def _nearest_nodes(self) -> list[Nearest]:
        if self._nearest is None:
            self._nearest = [_two_nearest(self.distances.row(gateway), self._running) for gateway in self._gateways]
        return self._nearest


def _two_nearest(row: Sequence[float], running: Iterable[int]) -> Nearest:
    node, least, second = -1, inf, inf
    for number in running:
        distance = row[number]
        if distance < least:
            node, least, second = number, distance, least
        elif distance < second:
            second = distance
    return Nearest(node, least, second)


def shortens_a_flow(distances: Distances, worker: Worker, gain_ms: float) -> bool:
    """Whether messages of some known flow would arrive sooner by so much with a node on this worker.

    A message goes from its publisher's gateway to that one's node, on to the subscriber's, and to that one.  Halves of
    round trips are added up.  A node beside publishers whose subscribers are far away shortens nothing.
    """
    picture = distances.picture
    nodes = [one for one in picture.workers.values() if one.state in COUNTED]
    for flow in picture.flows:
        for publisher in flow.publishers:
            for subscriber in flow.subscribers:
                before = _way_s(distances, nodes, publisher, subscriber)
                after = _way_s(distances, [*nodes, worker], publisher, subscriber)
                if 1000 * (before - after) >= gain_ms:
                    return True
    return False


def _way_s(distances: Distances, nodes: list[Worker], publisher: str, subscriber: str) -> float:
    picture = distances.picture
    ends = [_home(distances, nodes, picture, name) for name in (publisher, subscriber)]
    if ends[0] is None or ends[1] is None:
        return 0.0
    (first, up_s), (last, down_s) = ends[0], ends[1]
    between_s = 0.0 if first is last else first.coordinate.distance_s(last.coordinate)
    return (up_s + between_s + down_s) / 2


def _home(distances: Distances, nodes: list[Worker], picture: Picture, name: str) -> tuple[Worker, float] | None:
    gateway = picture.gateways.get(name)
    if gateway is None or not nodes:
        return None
    nearest = min(nodes, key=lambda one: distances.between_s(gateway, one.name))
    return nearest, distances.between_s(gateway, nearest.name)
