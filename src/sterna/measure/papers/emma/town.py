"""A playbook, second by second: the decisions are those of a coordinator, MQTT traffic and the hosts are a model.

Gateways measure workers (samples of the geography) and learn their coordinates; pictures, placement, pressure and
scaling are the code that coordinators run.  A message takes a sample of its way from gateway to node to node to
gateway, and 0.1 ms for each copy a node makes.  A node serves `START_S` after it was ordered; a move is done by the
next second.  Nothing is lost here and nobody fails: that is for the simulator with real nodes.

Management messages and bytes are counted by the thesis' sizes: a ping or a pong 5 bytes, a question 5, an answer 1 + 5
for each worker, an order to move and its answer 47 each, a request to measure 13, a report 9.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Literal

from sterna.adaptation.deciding import Outcome, decide
from sterna.adaptation.picture import IDLE, Gateway, Load, Measured, NodeState, Observations, Stamp, Weight, Worker
from sterna.adaptation.reasons import Left, Move, Resume, Rule, Start, Stop
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.papers.emma.playbooks import Crowd, Event, Playbook
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import DEFAULT
from sterna.simulation.geography import Geography, Location

START_S = 3.0
STOP_S = 2.0
COPY_S = 0.0001
SAMPLES = 5
BASE_S, MAX_S = 10.0, 300.0
UNSURE, HURRY_S = 0.6, 2.0
"""A host whose error is larger than this measures more often."""
EMMA_EVERY_S, EMMA_PINGS, EMMA_KEPT = 15.0, 10, 4
Way = Literal["coordinates", "measure-all"]
FEW = 10
NOBODY = Crowd("", 0, 0, 0.0)


@dataclass(slots=True)
class Host:
    name: str
    at: Location
    vivaldi: Vivaldi
    due_s: float
    counter: int = 0
    measured: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class Hosted(Host):
    """A worker, and its node."""

    site: str = ""
    fixed: bool = False
    state: NodeState = NodeState.OFF
    since: float = 0.0
    load: Load = IDLE


@dataclass(slots=True)
class Served(Host):
    """A gateway, its clients, and its node."""

    crowd: Crowd = NOBODY
    node: str = ""


@dataclass(slots=True)
class Second:
    """One second of a run."""

    nodes: int
    latency_ms: dict[str, float]
    """By topic."""
    management: int
    on: dict[str, str]
    """Gateway: its node."""


@dataclass(slots=True)
class Traffic:
    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def managed(self, count: int, size: int) -> None:
        self.messages["management"] += count
        self.bytes["management"] += count * size

    def share(self, kind: Literal["messages", "bytes"]) -> float:
        counts = self.messages if kind == "messages" else self.bytes
        return counts["management"] / max(sum(counts.values()), 1)


class Town:
    def __init__(self, playbook: Playbook, settings: AdaptationTuning, way: Way, seed: int) -> None:
        self._playbook = playbook
        self._settings = settings
        self._way = way
        self._geography = Geography()
        self._seed = seed
        self._rng = Random(f"{seed}/town")
        self._observations = Observations(dimensions=DEFAULT.dimensions, lost_s=1e9, fresh_s=1e9)
        self._workers: dict[str, Hosted] = {}
        self._gateways: dict[str, Served] = {}
        self._pass_due = 0.0
        self.traffic = Traffic()
        self.seconds: list[Second] = []
        self.moves = 0
        self.starts: list[tuple[float, str]] = []
        self.stops: list[tuple[float, str]] = []

    def run(self) -> Town:
        events = list(self._playbook.events)
        for now in range(int(self._playbook.end_s)):
            before = self.traffic.messages["management"]
            while events and events[0].at_s <= now:
                self._happens(events.pop(0), float(now))
            self._hosts(float(now))
            self._measure(float(now))
            if now >= self._pass_due:
                self._pass_due = now + self._settings.pass_s
                self._decide(float(now))
            latency = self._messages()
            managed = self.traffic.messages["management"] - before
            nodes = sum(one.state in (NodeState.SERVING, NodeState.LEAVING) for one in self._workers.values())
            on = {name: one.node for name, one in self._gateways.items()}
            self.seconds.append(Second(nodes, latency, managed, on))
        return self

    # -- the playbook --

    def _happens(self, event: Event, now: float) -> None:
        if event.kind == "leave":
            self._gateways.pop(event.name, None)
            self._observations.left(event.name)
        elif event.kind == "start":
            self._began(self._workers[event.name], now, NodeState.SERVING if now == 0 else NodeState.STARTING)
        elif event.kind == "stop":
            self._began(self._workers[event.name], now, NodeState.LEAVING)
        elif event.kind == "worker":
            assert event.at is not None
            vivaldi = self._vivaldi(event.name)
            self._workers[event.name] = Hosted(event.name, event.at, vivaldi, now, site=event.site, fixed=event.fixed)
            if len(self._workers) <= FEW:
                # Few places fix no coordinate: a newcomer is measured by all, which costs no more than a cycle.
                for gateway in self._gateways.values():
                    gateway.due_s = now
        else:
            assert event.at is not None
            assert event.crowd is not None
            first = next(name for name, one in self._workers.items() if one.fixed)
            served = Served(event.name, event.at, self._vivaldi(event.name), now, crowd=event.crowd, node=first)
            self._gateways[event.name] = served

    def _vivaldi(self, name: str) -> Vivaldi:
        return Vivaldi(Random(f"{self._seed}/{name}"), DEFAULT)

    def _began(self, worker: Hosted, now: float, state: NodeState) -> None:
        worker.state, worker.since = state, now

    def _hosts(self, now: float) -> None:
        for worker in self._workers.values():
            empty = all(one.node != worker.name for one in self._gateways.values())
            if worker.state is NodeState.STARTING and now - worker.since >= START_S:
                self._began(worker, now, NodeState.SERVING)
            elif worker.state is NodeState.LEAVING and empty:
                self._began(worker, now, NodeState.STOPPING)
            elif worker.state is NodeState.STOPPING and now - worker.since >= STOP_S:
                self._began(worker, now, NodeState.OFF)

    # -- measuring --

    def _measure(self, now: float) -> None:
        hosts: list[Host] = [*self._gateways.values()]
        if self._way == "coordinates":
            hosts += self._workers.values()
        for host in hosts:
            if now >= host.due_s:
                self._measured(host, now) if self._way == "coordinates" else self._measured_all(host, now)
        for worker in self._workers.values():
            self._worker_reports(worker, now)

    def _measured(self, host: Host, now: float) -> None:
        """4 random, then 6 near ones; the pause grows as the error falls."""
        others = [one for one in self._workers.values() if one is not host]
        asked = self._rng.sample(others, min(4, len(others)))
        self._ping(host, asked)
        here = host.vivaldi.coordinate
        near = sorted(others, key=lambda one: here.distance_s(one.vivaldi.coordinate))
        running = [one for one in near if one.state is NodeState.SERVING][:3]
        closest = list(dict.fromkeys(one.name for one in running + near))[:6]
        self._ping(host, [self._workers[name] for name in closest])
        self.traffic.managed(2, 5)
        self.traffic.managed(1, 1 + 5 * len(asked))
        self.traffic.managed(1, 1 + 5 * len(closest))
        error = max(host.vivaldi.coordinate.error, 0.01)
        host.due_s = now + (HURRY_S if error > UNSURE else min(BASE_S / error, MAX_S))
        if isinstance(host, Served):
            self.traffic.managed(1, 9)
            self._gateway_reports(host, now)

    def _ping(self, host: Host, others: list[Hosted]) -> None:
        for other in others:
            trips = [self._geography.round_trip_s(host.at, other.at, self._rng) for _ in range(SAMPLES)]
            self.traffic.managed(2 * SAMPLES, 5)
            host.vivaldi.measured(other.vivaldi.coordinate, min(trips), other.name)
            host.measured[other.name] = [min(trips)]

    def _measured_all(self, host: Host, now: float) -> None:
        for other in self._workers.values():
            if other.state is not NodeState.SERVING:
                continue
            trips = [self._geography.round_trip_s(host.at, other.at, self._rng) for _ in range(EMMA_PINGS)]
            self.traffic.managed(2 * EMMA_PINGS, 5)
            self.traffic.managed(1, 13)
            self.traffic.managed(1, 9)
            host.measured[other.name] = [*host.measured[other.name], fmean(trips)][-EMMA_KEPT:]
        host.due_s = now + EMMA_EVERY_S
        assert isinstance(host, Served)
        self._gateway_reports(host, now)

    def _gateway_reports(self, gateway: Served, now: float) -> None:
        gateway.counter += 1
        measured = {name: Measured(fmean(trips), now) for name, trips in gateway.measured.items()}
        told = Gateway(gateway.name, gateway.vivaldi.coordinate, measured)
        self._observations.gateway_reported(told, Stamp(1, gateway.counter), now)

    def _worker_reports(self, worker: Hosted, now: float) -> None:
        worker.counter += 1
        serves = {
            one.name: Weight(one.crowd.publishers + one.crowd.subscribers, one.crowd.subscribers)
            for one in self._gateways.values()
            if one.node == worker.name
        }
        told = Worker(
            worker.name,
            worker.vivaldi.coordinate,
            site=worker.site,
            state=worker.state,
            fixed=worker.fixed,
            since=worker.since,
            load=worker.load,
            serves=serves,
        )
        self._observations.worker_reported(told, Stamp(1, worker.counter), now)

    # -- deciding --

    def _decide(self, now: float) -> None:
        outcome = decide(self._observations.picture(now), self._settings)
        self._observations.standing = outcome.standing
        self._verify(outcome, now)
        for decision in outcome.decisions:
            if isinstance(decision, Move):
                self._gateways[decision.gateway].node = decision.target
                self._observations.moved(decision.gateway, now)
                self.traffic.managed(2, 47)
                self.moves += 1
            elif isinstance(decision, Start):
                self.starts.append((now, decision.worker))
                self._began(self._workers[decision.worker], now, NodeState.STARTING)
            elif isinstance(decision, Stop):
                self.stops.append((now, decision.worker))
                self._began(self._workers[decision.worker], now, NodeState.LEAVING)
            elif isinstance(decision, Resume):
                self._began(self._workers[decision.worker], now, NodeState.SERVING)

    def _verify(self, outcome: Outcome, now: float) -> None:
        """Where only a fresh answer is missing, the coordinator asks for it."""
        for one in outcome.judgements:
            if self._way != "coordinates" or not isinstance(one, Left) or one.reason.rule is not Rule.UNPROVED:
                continue
            target = str(dict(one.reason.numbers).get("target", one.subject))
            if target not in self._workers:
                continue
            asked = [self._gateways[one.subject]] if one.subject in self._gateways else self._nearest_to(target)
            for gateway in asked:
                self.traffic.managed(1, 13)
                self.traffic.managed(1, 9)
                self._ping(gateway, [self._workers[target]])
                self._gateway_reports(gateway, now)

    def _nearest_to(self, worker: str) -> list[Served]:
        there = self._workers[worker].vivaldi.coordinate
        unmeasured = [one for one in self._gateways.values() if worker not in one.measured]
        nearest = sorted(unmeasured, key=lambda one: there.distance_s(one.vivaldi.coordinate))
        return nearest[: self._settings.witnesses]

    # -- messages --

    def _messages(self) -> dict[str, float]:
        """Mean end-to-end latency of this second's messages, by topic."""
        found = {}
        for topic in sorted({one.crowd.topic for one in self._gateways.values()}):
            publishers = [one for one in self._gateways.values() if one.crowd.topic == topic and one.crowd.publishers]
            subscribers = [one for one in self._gateways.values() if one.crowd.topic == topic and one.crowd.subscribers]
            if publishers and subscribers:
                found[topic] = 1000 * self._published(topic, publishers, subscribers)
        return found

    def _published(self, topic: str, publishers: list[Served], subscribers: list[Served]) -> float:
        size, total, weight = 10 + len(topic), 0.0, 0.0
        receivers = Counter[str]()
        for one in subscribers:
            receivers[one.node] += one.crowd.subscribers
        for publisher in publishers:
            rate = publisher.crowd.publishers * publisher.crowd.per_s
            elsewhere = sum(node != publisher.node for node in receivers)
            copies = 1 + elsewhere + receivers.total()
            self.traffic.messages["data"] += round(rate * copies)
            self.traffic.bytes["data"] += round(rate * copies * size)
            for subscriber in subscribers:
                total += rate * self._way_s(publisher, subscriber, receivers[subscriber.node] + elsewhere)
                weight += rate
        return total / weight

    def _way_s(self, publisher: Served, subscriber: Served, copies: int) -> float:
        first, last = self._workers[publisher.node], self._workers[subscriber.node]
        took = self._geography.one_way_s(publisher.at, first.at, self._rng)
        took += self._geography.one_way_s(last.at, subscriber.at, self._rng)
        if first is not last:
            took += self._geography.one_way_s(first.at, last.at, self._rng)
        return took + COPY_S * (copies + 1) / 2

    def usual_s(self, gateway: str, node: str) -> float:
        """The true round trip between a gateway and a worker, whether they are still there or not."""
        places = {event.name: event.at for event in self._playbook.events if event.at is not None}
        return self._geography.usual_round_trip_s(places[gateway], places[node])
