"""A playbook, second by second: coordinator and measuring are the product's, MQTT traffic and the hosts are a model.

Gateways and workers measure, a coordinator decides and gives orders (`control_plane.py`).  A message takes a sample of
its way from gateway to node to node to gateway, and 0.1 ms for each copy a node makes.  A node serves `START_S` after
it was ordered; a move is done at once.  The coordinator leads before the playbook begins.  Nothing is lost
here, and nobody fails but a leader that a playbook kills and the ways between regions that it cuts: the rest is for the
simulator with real nodes.

Management messages and bytes are counted by the thesis' sizes: a ping or a pong 5 bytes, a question 5, an answer 1 + 5
for each worker, an order to move and its answer 47 each, a request to measure 13, a report 9; a round trip that goes
with a question 5.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Final

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.words import (
    FLOW_GATEWAYS_MAX,
    FLOWS_MAX,
    MoveGateway,
    OrderState,
    ResumeNode,
    Served,
    ServedFlow,
    StartNode,
    StopNode,
    Task,
    WorkerReport,
)
from sterna.measure.papers.emma.control_plane import (
    PING_BYTES,
    REQUEST_BYTES,
    UDP_BYTES,
    ControlPlane,
    MeasuringHost,
    Traffic,
)
from sterna.measure.papers.emma.playbooks import Crowd, Playbook, PlaybookEvent
from sterna.measure.papers.emma.records import RunRecords, Second, TopicSecond, TrafficSecond, Way
from sterna.simulation.kernel import Kernel

BEFORE_S: Final = 30.0
"""The coordinator is there for so long before the playbook begins."""
START_S: Final = 3.0
STOP_S: Final = 2.0
COPY_S: Final = 0.0001
REPORT_S: Final = 2.0
EMMA_EVERY_S, EMMA_PINGS, EMMA_KEPT = 15.0, 10, 4
ECHO_BYTES: Final = UDP_BYTES + 44
"""True bytes of a ping or pong of ours."""


@dataclass(slots=True)
class Hosted:
    """A worker, and its node."""

    host: MeasuringHost
    site: str
    fixed: bool
    state: WorkerNodeState = WorkerNodeState.OFF
    since: float = 0.0


@dataclass(slots=True)
class TownGateway:
    """A gateway, its clients, and its node."""

    host: MeasuringHost
    crowd: Crowd
    node: str
    trips: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of one that measures everything: the last means, by worker."""


class Town:
    def __init__(
        self,
        playbook: Playbook,
        settings: AdaptationTuning,
        way: Way,
        seed: int,
        *,
        loaded: bool = False,
        coordinators: int = 1,
        keep: bool = False,
    ) -> None:
        """`loaded`: a node has one processor, and what it cannot do in time waits.  `keep`: records that can be written
        to files."""
        self._playbook = playbook
        self._way = way
        self._keep = keep
        self._topics: list[TopicSecond] = []
        self.records = RunRecords(playbook, way)
        self._kernel = Kernel(seed)
        self.traffic = Traffic()
        self._plane = ControlPlane(self._kernel, settings, self.traffic, self._carry_out, coordinators)
        self._geography, self._rng = self._plane.geography, self._kernel.dice("town")
        self._workers: dict[str, Hosted] = {}
        self._gateways: dict[str, TownGateway] = {}
        self._loaded = loaded
        self._work: defaultdict[str, float] = defaultdict(float)
        """Worker: the processor time that this second's messages take."""
        self._behind_s: dict[str, float] = defaultdict(float)
        self.moves = 0

    @property
    def seconds(self) -> list[Second]:
        return self.records.seconds

    @property
    def starts(self) -> list[tuple[float, str]]:
        return self.records.starts

    @property
    def stops(self) -> list[tuple[float, str]]:
        return self.records.stops

    @property
    def _now(self) -> float:
        """Since the playbook began."""
        return self._kernel.now - BEFORE_S

    def run(self) -> Town:
        for event in self._playbook.events:
            self._kernel.at(BEFORE_S + event.at_s, self._happens, event)
        for second in range(int(self._playbook.end_s)):
            before = self._sums()
            self._kernel.run_until(BEFORE_S + second)
            latency, slowest = self._messages()
            traffic = TrafficSecond(*(now - then for now, then in zip(self._sums(), before, strict=True)))
            off = WorkerNodeState.OFF
            states = {name: one.state for name, one in self._workers.items() if one.state is not off}
            on = {name: one.node for name, one in self._gateways.items()}
            at = {name: one.host.at for name, one in self._gateways.items()}
            acting, topics = self._plane.acting, self._topics
            self.seconds.append(Second(states, latency, traffic, on, at, slowest, acting, self.moves, topics))
            self._topics = []
        return self

    def _sums(self) -> TrafficSecond:
        messages, size = self.traffic.messages, self.traffic.bytes
        wire = self.traffic.wire
        return TrafficSecond(messages["management"], size["management"], messages["data"], size["data"], wire)

    # -- the playbook --

    def _happens(self, event: PlaybookEvent) -> None:
        happenings: dict[str, Callable[[PlaybookEvent], None]] = {
            "worker": self._worker_appears,
            "gateway": self._gateway_appears,
            "leave": self._gateway_leaves,
            "relocate": self._gateway_relocates,
            "crowd": self._crowd_changes,
            "kill": lambda _event: self._plane.kill_leader(),
            "cut": self._cut,
            "merge": self._cut,
            "start": lambda event: self._start(event.name, at_once=not self._now),
            "stop": lambda event: self._empty(event.name),
        }
        happenings[event.kind](event)

    def _worker_appears(self, event: PlaybookEvent) -> None:
        assert event.at is not None
        host = self._plane.add(event.name, event.at, is_worker=True, measures=self._way == "coordinates")
        self._workers[event.name] = Hosted(host, event.site, event.fixed)
        self._report(event.name)

    def _gateway_appears(self, event: PlaybookEvent) -> None:
        assert event.at is not None
        assert event.crowd is not None
        self.records.came_s[event.name, event.at_s] = self._now
        host = self._plane.add(event.name, event.at, is_worker=False, measures=self._way == "coordinates")
        first = next(name for name, one in self._workers.items() if one.fixed)
        gateway = self._gateways[event.name] = TownGateway(host, event.crowd, first)
        if self._way == "measure-all":
            self._measure_all(gateway)

    def _gateway_leaves(self, event: PlaybookEvent) -> None:
        self.records.left_s[event.name, event.at_s] = self._now
        del self._gateways[event.name]
        self._plane.remove(event.name)

    def _gateway_relocates(self, event: PlaybookEvent) -> None:
        assert event.at is not None
        host = self._gateways[event.name].host
        host.at = event.at
        host.measuring.hurry(self._kernel.now)  # as a gateway does that has lost its node

    def _cut(self, event: PlaybookEvent) -> None:
        self._plane.apart = event.name if event.kind == "cut" else ""

    def _crowd_changes(self, event: PlaybookEvent) -> None:
        assert event.crowd is not None
        self._gateways[event.name].crowd = event.crowd

    # -- nodes --

    def _carry_out(self, worker: str, task: Task) -> OrderState:
        match task:
            case StartNode():
                self.starts.append((self._now, worker))
                self._start(worker)
            case StopNode():
                self.stops.append((self._now, worker))
                self._empty(worker)
            case ResumeNode():
                self._enter(worker, WorkerNodeState.SERVING)
            case MoveGateway(gateway=name, to=target):
                if (gateway := self._gateways.get(name)) is not None:
                    gateway.node = target
                    self.moves += 1
                self._look_after(worker)
                return OrderState.DONE
        return OrderState.UNDER_WAY

    def _start(self, worker: str, *, at_once: bool = False) -> None:
        self._enter(worker, WorkerNodeState.STARTING)
        self._kernel.after(
            0.0 if at_once else START_S, self._enter_from, worker, WorkerNodeState.STARTING, WorkerNodeState.SERVING
        )

    def _empty(self, worker: str) -> None:
        self._enter(worker, WorkerNodeState.LEAVING)
        self._look_after(worker)

    def _look_after(self, worker: str) -> None:
        """A node that is leaving and that nobody uses any more stops."""
        if self._workers[worker].state is WorkerNodeState.LEAVING and not self._serves(worker):
            self._enter(worker, WorkerNodeState.STOPPING)
            self._kernel.after(STOP_S, self._enter_from, worker, WorkerNodeState.STOPPING, WorkerNodeState.OFF)

    def _enter_from(self, worker: str, before: WorkerNodeState, state: WorkerNodeState) -> None:
        if self._workers[worker].state is before:
            self._enter(worker, state)

    def _enter(self, worker: str, state: WorkerNodeState) -> None:
        one = self._workers[worker]
        one.state, one.since = state, self._kernel.now
        self._tell(worker)  # a worker tells a new state at once

    def _serves(self, worker: str) -> dict[str, TownGateway]:
        return {name: one for name, one in self._gateways.items() if one.node == worker}

    def _report(self, worker: str) -> None:
        self._look_after(worker)
        self._tell(worker)
        self._kernel.after(REPORT_S, self._report, worker)

    def _tell(self, worker: str) -> None:
        one, serves = self._workers[worker], self._serves(worker)
        published = self._rates()
        one.host.report(
            WorkerReport(
                site=one.site,
                state=one.state.value,
                in_state_s=self._kernel.now - one.since,
                echo=worker,
                clients=worker,
                fixed=one.fixed,
                cpu=min(self._work[worker], 1.0) if self._loaded else 0.0,
                lag_s=self._behind_s[worker],
                serves=tuple(
                    Served(
                        name,
                        served.crowd.publishers + served.crowd.subscribers,
                        served.crowd.subscribers,
                        served.crowd.subscribers * published[served.crowd.topic],
                    )
                    for name, served in serves.items()
                ),
                flows=_flows([served.crowd for served in serves.values()]),
            )
        )

    def _rates(self) -> Counter[str]:
        """Messages a second, by topic."""
        found = Counter[str]()
        for one in self._gateways.values():
            found[one.crowd.topic] += round(one.crowd.publishers * one.crowd.per_s)
        return found

    # -- the rival: EMMA measures every node that serves --

    def _measure_all(self, gateway: TownGateway) -> None:
        host = gateway.host
        if host.is_gone:
            return
        means: dict[str, float] = {}
        for name, other in self._workers.items():
            if other.state is WorkerNodeState.SERVING:
                way = partial(self._geography.round_trip_s, host.at, other.host.at, self._rng)
                gateway.trips[name] = [*gateway.trips[name], fmean(way() for _ in range(EMMA_PINGS))][-EMMA_KEPT:]
                self.traffic.managed(2 * EMMA_PINGS, PING_BYTES)
                self.traffic.managed(1, REQUEST_BYTES)
                self.traffic.wire += 2 * EMMA_PINGS * ECHO_BYTES
                means[name] = fmean(gateway.trips[name])
        host.report_trips(means)
        self._kernel.after(EMMA_EVERY_S, self._measure_all, gateway)

    # -- messages --

    def _messages(self) -> tuple[dict[str, float], dict[str, float]]:
        """Of this second's messages: mean end-to-end latency by topic, and that of the slowest but one in a hundred."""
        found, slowest = {}, {}
        self._work.clear()
        for topic in sorted({one.crowd.topic for one in self._gateways.values()}):
            publishers = [one for one in self._gateways.values() if one.crowd.topic == topic and one.crowd.publishers]
            subscribers = [one for one in self._gateways.values() if one.crowd.topic == topic and one.crowd.subscribers]
            if publishers and subscribers:
                took = self._published(topic, publishers, subscribers)
                found[topic] = 1000 * fmean([way_s for way_s, _ in took], [rate for _, rate in took])
                ways = sorted(way_s for way_s, _ in took)
                slowest[topic] = 1000 * ways[int(0.99 * (len(ways) - 1))]
        if self._loaded:
            for worker in self._workers:
                self._behind_s[worker] = max(0.0, self._behind_s[worker] + self._work[worker] - 1.0)
        return found, slowest

    def _published(
        self, topic: str, publishers: list[TownGateway], subscribers: list[TownGateway]
    ) -> list[tuple[float, float]]:
        """How long a message of each publisher takes to each subscriber, and how many a second there are."""
        size, took = 10 + len(topic), []
        receivers = Counter[str]()
        for one in subscribers:
            receivers[one.node] += one.crowd.subscribers
        for publisher in publishers:
            rate = publisher.crowd.publishers * publisher.crowd.per_s
            elsewhere = sum(node != publisher.node for node in receivers)
            copies = 1 + elsewhere + receivers.total()
            self.traffic.messages["data"] += round(rate * copies)
            self.traffic.bytes["data"] += round(rate * copies * size)
            self._work[publisher.node] += rate * (1 + elsewhere + receivers[publisher.node]) * COPY_S
            for node in receivers.keys() - {publisher.node}:
                self._work[node] += rate * (1 + receivers[node]) * COPY_S
            for subscriber in subscribers:
                way_s = self._way_s(publisher, subscriber, receivers[subscriber.node] + elsewhere)
                took.append((way_s, rate))
                if self._keep:
                    names = publisher.host.name, subscriber.host.name
                    self._topics.append(TopicSecond(topic, *names, 1000 * way_s, rate))
        return took

    def _way_s(self, publisher: TownGateway, subscriber: TownGateway, copies: int) -> float:
        first, last = self._workers[publisher.node], self._workers[subscriber.node]
        took = self._geography.one_way_s(publisher.host.at, first.host.at, self._rng)
        took += self._geography.one_way_s(last.host.at, subscriber.host.at, self._rng)
        if first is not last:
            took += self._geography.one_way_s(first.host.at, last.host.at, self._rng)
        took += sum(self._behind_s[node] for node in {publisher.node, subscriber.node})
        return took + COPY_S * (copies + 1) / 2

    @property
    def serving(self) -> list[str]:
        return [name for name, one in self._workers.items() if one.state is WorkerNodeState.SERVING]


def _flows(crowds: list[Crowd]) -> tuple[ServedFlow, ...]:
    """The topics of a node's gateways, who are in this order in its report."""
    return tuple(
        ServedFlow(
            topic,
            tuple(
                (place, round(60 * one.publishers * one.per_s))
                for place, one in enumerate(crowds)
                if one.topic == topic and one.publishers
            )[:FLOW_GATEWAYS_MAX],
            tuple(place for place, one in enumerate(crowds) if one.topic == topic and one.subscribers)[
                :FLOW_GATEWAYS_MAX
            ],
        )
        for topic in sorted({one.topic for one in crowds})[:FLOWS_MAX]
    )
