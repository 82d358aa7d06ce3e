"""A coordinator's knowledge of its region at one moment: workers, their nodes, gateways, and who serves whom.

A picture never changes.  Every decision is a function of a picture, so that a dry run, an explanation, a replay and a
test are the same call.  `Observations` gathers reports and makes pictures of them: of two reports the later one counts,
in whatever order they come, and what was not heard for `lost_s` is no longer a candidate for anything.

Distances are round trips in seconds, everywhere.  One that was measured lately counts before an estimated one.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import dist, inf, isfinite
from typing import Generic, NamedTuple, TypeVar

from sterna.overlay.coordinates import FAR_S, Coordinate

WORKERS_MAX = 1000
GATEWAYS_MAX = 50_000
"""Participants a coordinator keeps; reports of further ones are refused and counted."""
FLOWS_MAX = 64
"""Topic prefixes kept of all nodes, those with most messages."""
MEASURED_MAX = 64
"""Measured round trips kept of one gateway, the newest."""


class WorkerNodeState(StrEnum):
    """States of a worker's node.  `adaptation/draining.py` has the table of the last four."""

    OFF = "off"
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """Closed to newcomers; its clients are being moved."""
    DRAINING = "draining"
    """Empty; it waits until everybody has what it owes."""
    STOPPING = "stopping"
    STUCK = "stuck"
    """It would not start or stop: an operator's."""


READING = frozenset({WorkerNodeState.STARTING, WorkerNodeState.SERVING, WorkerNodeState.STUCK})
"""It reads what it is owed, or waits for it: without that it may not get ready."""
RUNNING = frozenset({WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.DRAINING})


@dataclass(frozen=True, slots=True)
class Weight:
    """How much a gateway uses its node, as the node counts it."""

    clients: int = 0
    subscriptions: int = 0
    deliveries_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a node is, as its worker measures it."""

    cpu: float = 0.0
    """Share of the processors it may use, 0 to 1."""
    lag_s: float = 0.0
    """How late its loop runs what is due."""
    bytes_per_s: float = 0.0
    connections: int = 0


IDLE = Load()


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages that nodes see pass: who publishes to a topic prefix, who receives, each by its gateway."""

    topic: str
    publishers: Mapping[str, float]
    """Messages per second."""
    subscribers: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A host, and the one node that it can run.  A node bears the name of its worker's slot, each time it starts."""

    name: str
    coordinate: Coordinate
    site: str = ""
    """Where it is, in the operator's words.  Floors and ceilings are per site."""
    state: WorkerNodeState = WorkerNodeState.OFF
    fixed: bool = False
    """Its node is never stopped."""
    since: float = 0.0
    """When its node came into this state."""
    load: Load = IDLE
    serves: Mapping[str, Weight] = field(default_factory=dict)
    """The gateways of its node's clients."""
    others: int = 0
    """Clients of its node that came without a gateway."""
    barred_until: float = 0.0
    """It failed to start or stop; before this it is not asked again."""
    price: float = 1.0
    """Of an hour of its node, in the operator's money."""
    flows: tuple[Flow, ...] = ()
    """The busiest topics of its gateways, as its node sees them."""

    @property
    def is_serving(self) -> bool:
        return self.state is WorkerNodeState.SERVING


class Measured(NamedTuple):
    """A round trip that a gateway measured."""

    round_trip_s: float
    at: float


@dataclass(frozen=True, slots=True)
class KnownGateway:
    """A gateway, and where it stands.  It is believed about itself only."""

    name: str
    coordinate: Coordinate
    measured: Mapping[str, Measured] = field(default_factory=dict)
    """Round trips to workers, by their names; the time is the coordinator's, of the report."""
    node: str = ""
    """The worker whose node serves it; empty while no node says that it does."""
    weight: Weight = Weight()
    moved_at: float = -inf
    """When it was last ordered to move."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Since when something has been so without a break.  A pass hands it to the next one, with the picture."""

    wishes: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Gateway: the node that would be better, and since when."""
    high: Mapping[str, float] = field(default_factory=dict)
    """Worker: since when its pressure has been above the upper threshold."""
    low: Mapping[str, float] = field(default_factory=dict)
    """Worker: since when its node's pressure has been below the lower threshold."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Worker: since when its node has been overloaded."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Workers and gateways heard lately, in the order of their names."""

    now: float
    workers: Mapping[str, KnownWorker]
    gateways: Mapping[str, KnownGateway]
    lost: frozenset[str] = frozenset()
    """Workers not heard for `lost_s`.  Nobody is moved to them or, on hearsay, away from them."""
    fresh_s: float = 600.0
    """A measured round trip older than this is not counted before an estimate."""
    standing: Standing = Standing()
    flows: tuple[Flow, ...] = ()
    """The largest flows, as nodes tell them; empty while nothing is published."""

    def serving(self) -> list[KnownWorker]:
        """Those whose node takes clients."""
        return [worker for worker in self.workers.values() if worker.is_serving]

    def measured_s(self, gateway: KnownGateway, worker: str) -> float | None:
        """The round trip, if the gateway measured it lately."""
        found = gateway.measured.get(worker)
        return found.round_trip_s if found is not None and self.now - found.at <= self.fresh_s else None

    def distance_s(self, gateway: KnownGateway, worker: KnownWorker) -> float:
        measured = self.measured_s(gateway, worker.name)
        return gateway.coordinate.distance_s(worker.coordinate) if measured is None else measured


class PictureRoundTrips:
    """Round trips between every gateway and every worker of a picture, reckoned when they are first asked for."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.names = list(picture.workers)
        self.position = {name: number for number, name in enumerate(self.names)}
        self._places = [
            (worker.coordinate.vector, worker.coordinate.height, worker.coordinate.adjustment)
            for worker in picture.workers.values()
        ]
        self._rows: dict[str, array[float]] = {}

    def row(self, gateway: KnownGateway) -> array[float]:
        """To each worker, in their order."""
        row = self._rows.get(gateway.name)
        if row is None:
            row = self._rows[gateway.name] = self._reckon(gateway)
        return row

    def between_s(self, gateway: KnownGateway, worker: str) -> float:
        return self.row(gateway)[self.position[worker]]

    def _reckon(self, gateway: KnownGateway) -> array[float]:
        at, position, picture = gateway.coordinate, self.position, self.picture
        vector, height, adjustment = at.vector, at.height, at.adjustment
        row = array("d", [dist(vector, there) + height + up for there, up, _ in self._places])
        for number, (_, _, more) in enumerate(self._places):
            if (shift := adjustment + more) and row[number] + shift > 0.0:
                row[number] += shift
        for name, (round_trip_s, when) in gateway.measured.items():
            if (number := position.get(name, -1)) >= 0 and picture.now - when <= picture.fresh_s:
                row[number] = round_trip_s
        return row


class ReportStamp(NamedTuple):
    """Orders the reports of one participant: the number of its start, and a counter within that."""

    boot: int
    counter: int


class RefusedReport(StrEnum):
    """Reasons for which a report changes nothing."""

    OLD = "old"
    """A later one was here before."""
    COORDINATE = "coordinate"
    DIMENSIONS = "dimensions"
    ROUND_TRIP = "round-trip"
    NUMBERS = "numbers"
    """A load, weight or price that cannot be."""
    MANY = "many"
    """More participants than a coordinator keeps."""


Participant = TypeVar("Participant", KnownWorker, KnownGateway)


@dataclass(frozen=True, slots=True)
class _Heard(Generic[Participant]):
    stamp: ReportStamp
    at: float
    told: Participant


class Observations:
    """Reports so far.  It holds nothing that the next reports would not bring back, so a restart may lose it."""

    def __init__(self, *, dimensions: int, lost_s: float, fresh_s: float) -> None:
        self._dimensions = dimensions
        self._lost_s = lost_s
        self._fresh_s = fresh_s
        self._workers: dict[str, _Heard[KnownWorker]] = {}
        self._gateways: dict[str, _Heard[KnownGateway]] = {}
        self._moved_at: dict[str, float] = {}
        self.standing = Standing()
        """As the last pass left it."""
        self.refusals: Counter[RefusedReport] = Counter()

    def worker_reported(self, worker: KnownWorker, stamp: ReportStamp, now: float) -> RefusedReport | None:
        """The refusal, if it was one.  Its time of state and its pause are the coordinator's, of `now`."""
        refusal = self._unsound_coordinate(worker.coordinate)
        if refusal is None and not _can_be(worker):
            refusal = RefusedReport.NUMBERS
        return self._keep(self._workers, WORKERS_MAX, worker, stamp, now, refusal)

    def gateway_reported(self, gateway: KnownGateway, stamp: ReportStamp, now: float) -> RefusedReport | None:
        """Weight and node in it are ignored: nodes say whom they serve."""
        refusal = self._unsound_coordinate(gateway.coordinate)
        trips = [one.round_trip_s for one in gateway.measured.values()]
        if refusal is None and not all(isfinite(one) and 0 < one <= FAR_S for one in trips):
            refusal = RefusedReport.ROUND_TRIP
        if refusal is None:
            gateway = replace(gateway, measured=self._newest(gateway, now), node="", weight=Weight())
        return self._keep(self._gateways, GATEWAYS_MAX, gateway, stamp, now, refusal)

    def _newest(self, gateway: KnownGateway, now: float) -> dict[str, Measured]:
        before = self._gateways.get(gateway.name)
        newest = dict(before.told.measured) if before is not None else {}
        newest.update((name, Measured(one.round_trip_s, now)) for name, one in gateway.measured.items())
        return dict(sorted(newest.items(), key=lambda item: item[1].at)[-MEASURED_MAX:])

    def moved(self, gateway: str, now: float) -> None:
        """It was ordered to move: it stays for a while."""
        self._moved_at[gateway] = now

    def left(self, name: str) -> None:
        """A participant said that it goes."""
        self._workers.pop(name, None)
        self._gateways.pop(name, None)
        self._moved_at.pop(name, None)

    def picture(self, now: float) -> Picture:
        """All that was heard lately.  Silent gateways are forgotten; silent workers are remembered as lost."""
        self._forget(now)
        lost = frozenset(name for name, heard in self._workers.items() if now - heard.at > self._lost_s)
        workers = {name: self._workers[name].told for name in sorted(self._workers) if name not in lost}
        served = {gateway: (name, weight) for name, one in workers.items() for gateway, weight in one.serves.items()}
        gateways = {}
        for name in sorted(self._gateways):
            node, weight = served.get(name, ("", Weight()))
            moved_at = self._moved_at.get(name, -inf)
            gateways[name] = replace(self._gateways[name].told, node=node, weight=weight, moved_at=moved_at)
        return Picture(now, workers, gateways, lost, self._fresh_s, self.standing, _flows(workers.values()))

    def _forget(self, now: float) -> None:
        silent = [name for name, heard in self._gateways.items() if now - heard.at > max(self._fresh_s, self._lost_s)]
        for name in silent:
            del self._gateways[name]
            self._moved_at.pop(name, None)

    def _unsound_coordinate(self, coordinate: Coordinate) -> RefusedReport | None:
        if not coordinate.is_sound:
            return RefusedReport.COORDINATE
        return None if coordinate.fits(self._dimensions) else RefusedReport.DIMENSIONS

    def _keep(
        self,
        known: dict[str, _Heard[Participant]],
        most: int,
        told: Participant,
        stamp: ReportStamp,
        now: float,
        refusal: RefusedReport | None,
    ) -> RefusedReport | None:
        before = known.get(told.name)
        if refusal is None and before is not None and stamp <= before.stamp:
            refusal = RefusedReport.OLD
        if refusal is None and before is None and len(known) >= most:
            refusal = RefusedReport.MANY
        if refusal is not None:
            self.refusals[refusal] += 1
            return refusal
        known[told.name] = _Heard(stamp, now, told)
        return None


def _flows(workers: Iterable[KnownWorker]) -> tuple[Flow, ...]:
    """Each node tells of its own gateways; together they are those of the topic.  The largest, by what is published."""
    found: dict[str, Flow] = {}
    for one in (flow for worker in workers for flow in worker.flows):
        known = found.get(one.topic, one)
        found[one.topic] = Flow(one.topic, {**known.publishers, **one.publishers}, known.subscribers | one.subscribers)
    largest = sorted(found.values(), key=lambda flow: (-sum(flow.publishers.values()), flow.topic))
    return tuple(largest[:FLOWS_MAX])


def _can_be(worker: KnownWorker) -> bool:
    load = worker.load
    numbers: Iterable[float] = (
        load.cpu,
        load.lag_s,
        load.bytes_per_s,
        load.connections,
        worker.others,
        worker.price,
        *(
            number
            for one in worker.serves.values()
            for number in (one.clients, one.subscriptions, one.deliveries_per_s)
        ),
    )
    return all(isfinite(number) and number >= 0 for number in numbers)
