"""How a participant finds its coordinate: whom it measures, when, and what it makes of the answers.

A cycle is that of the paper's Figure 5.1: ask the coordinator for some random workers, measure them, learn; ask for
those nearest to the new coordinate, measure them, learn; report.  The pause until the next one grows as the error
falls.  A participant whose coordinator does not answer measures the workers that it knows.

Of several samples to one worker the least counts for all: the others waited in queues.  Samples that were taken while
this process itself was late are left out.  A worker that answers no datagram is asked over TCP the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeAlias

from sterna.adaptation.words import FOUND_MAX, FindClosest, FindRandom, Found, GatewayReport, Trip, WorkerPlace
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAsker, EchoSample
from sterna.overlay.vivaldi import Vivaldi
from sterna.vocabulary.settings import Allowed

BY_TCP_MAX = 256
ERROR_LEAST = 0.05
"""An error below this is not believed when a sample is held against it."""
SURPRISE = 3.0
"""A sample that is off by so many times the error shows that something has moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringTuning:
    """How coordinates are measured."""

    random: Annotated[int, Allowed(1, FOUND_MAX)] = 4
    """Random workers measured in a cycle, ..."""
    closest: Annotated[int, Allowed(1, FOUND_MAX)] = 6
    """... and the nearest ones, ..."""
    samples: Annotated[int, Allowed(1, 20)] = 5
    """... with so many pings each, ..."""
    spacing_s: Annotated[float, Allowed(0.001, 10)] = 0.05
    """... so far apart."""
    answer_s: Annotated[float, Allowed(0.05, 4)] = 1.0
    """How long answers to pings, and of the coordinator, are waited for."""
    base_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """Pause between two cycles while the error is large."""
    max_s: Annotated[float, Allowed(0.1, 86400)] = 600.0
    """The longest pause."""
    target_error: Annotated[float, Allowed(0.001, 10)] = 1.0
    """The pause is `base_s` x `target_error` / error, within these two."""
    lag_ms: Annotated[float, Allowed(0.1, 10000)] = 5.0
    """Samples taken while this process was later than this are left out."""


class Phase(StrEnum):
    RESTING = "resting"
    ASKING_RANDOM = "asking-random"
    MEASURING_RANDOM = "measuring-random"
    ASKING_CLOSEST = "asking-closest"
    MEASURING_CLOSEST = "measuring-closest"


class Say(NamedTuple):
    """A word to the coordinators."""

    word: FindRandom | FindClosest | GatewayReport


class Ping(NamedTuple):
    address: str
    data: bytes
    by_tcp: bool


Effect: TypeAlias = Say | Ping


class _Peer:
    __slots__ = ("asked", "place", "samples")

    def __init__(self, place: WorkerPlace) -> None:
        self.place = place
        self.asked = 0
        self.samples: list[EchoSample] = []


class Measuring:
    """Events in, effects out; the owner calls `tick` at `due_at`, or sooner."""

    def __init__(
        self,
        name: str,
        settings: MeasuringTuning,
        vivaldi: Vivaldi,
        asker: EchoAsker,
        now: float,
        keys: Sequence[bytes] = (),
    ) -> None:
        """`keys`: with which echoes are sealed, the first of them those of this participant.  A gateway is given its
        key by the coordinator."""
        self._name = name
        self._settings = settings
        self._vivaldi = vivaldi
        self._asker = asker
        self.keys: list[bytes] = list(keys)
        self.phase = Phase.RESTING
        self.due_at = now
        self.cycles = 0
        self.nodes: tuple[str, ...] = ()
        """Where nodes take clients, the nearest first, as the coordinator last said."""
        self.measured: dict[str, float] = {}
        """Round trips of this cycle, by worker."""
        self.left_out: Counter[str] = Counter()
        self._known: dict[str, WorkerPlace] = {}
        self._peers: dict[str, _Peer] = {}
        self._deadline = now
        self._by_tcp: dict[str, None] = {}
        self._is_surprised = False

    @property
    def coordinate(self) -> Coordinate:
        return self._vivaldi.coordinate

    @property
    def interval_s(self) -> float:
        settings = self._settings
        if self._is_surprised:
            return settings.base_s
        ratio = settings.target_error / max(self.coordinate.error, 1e-6)
        return min(max(settings.base_s * ratio, settings.base_s), max(settings.max_s, settings.base_s))

    def hurry(self, now: float) -> None:
        """Its node was lost, or its address has changed: the next cycle begins now."""
        if self.phase is Phase.RESTING:
            self.due_at = min(self.due_at, now)
        self._is_surprised = True

    def tick(self, now: float) -> list[Effect]:
        if self.phase is Phase.RESTING:
            return self._begin(now) if now >= self.due_at else []
        if self.phase in (Phase.ASKING_RANDOM, Phase.ASKING_CLOSEST):
            return self._measure_known(now) if now >= self._deadline else []
        return self._go_on(now)

    def found(self, found: Found, now: float) -> list[Effect]:
        """The coordinator's answer; one that nobody waits for brings its addresses and key and nothing else."""
        if found.key and found.key not in self.keys:
            self.keys = [found.key, *self.keys[:1]]
        if found.nodes:
            self.nodes = found.nodes
        places = [place for place in found.workers if place.name != self._name]
        for place in places:
            self._known.pop(place.name, None)
            self._known[place.name] = place
            if len(self._known) > 4 * FOUND_MAX:
                del self._known[next(iter(self._known))]
        wanted = {Phase.ASKING_RANDOM: "random", Phase.ASKING_CLOSEST: "closest"}.get(self.phase)
        return self._measure(places, now) if found.asked == wanted else []

    def echoed(self, data: bytes, now: float, lag_s: float = 0.0) -> None:
        sample = self._asker.came(data, self.keys, now)
        if sample is None:
            return
        if lag_s * 1000 > self._settings.lag_ms:
            self.left_out["lag"] += 1
            return
        peer = self._peers.get(sample.peer)
        if peer is not None:
            peer.samples.append(sample)

    # -- a cycle --

    def _begin(self, now: float) -> list[Effect]:
        self.measured = {}
        self._is_surprised = False
        return self._ask(Phase.ASKING_RANDOM, FindRandom(self._settings.random), now)

    def _ask(self, phase: Phase, word: FindRandom | FindClosest, now: float) -> list[Effect]:
        self.phase = phase
        self._deadline = self.due_at = now + self._settings.answer_s
        return [Say(word)]

    def _measure_known(self, now: float) -> list[Effect]:
        """No answer came."""
        self.left_out["coordinator"] += 1
        places = list(self._known.values())
        if self.phase is Phase.ASKING_CLOSEST:
            places.sort(key=lambda place: self.coordinate.distance_s(place.place.coordinate))
            return self._measure(places[: self._settings.closest], now)
        return self._measure(places[: self._settings.random], now)

    def _measure(self, places: Sequence[WorkerPlace], now: float) -> list[Effect]:
        is_random = self.phase is Phase.ASKING_RANDOM
        self.phase = Phase.MEASURING_RANDOM if is_random else Phase.MEASURING_CLOSEST
        self._peers = {place.name: _Peer(place) for place in places if place.echo}
        self._deadline = now
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Effect]:
        """One round of pings at a time, and the end when all answers are in or late."""
        settings, peers = self._settings, self._peers.values()
        if all(len(peer.samples) >= settings.samples for peer in peers) or not self.keys:
            return self._end(now)
        if now < self._deadline:
            return []
        unasked = [peer for peer in peers if peer.asked < settings.samples]
        if not unasked:
            return self._end(now)
        pings = []
        for peer in unasked:
            peer.asked += 1
            data = self._asker.ping(peer.place.name, self.keys[0], now)
            pings.append(Ping(peer.place.echo, data, peer.place.name in self._by_tcp))
        is_last = all(peer.asked >= settings.samples for peer in peers)
        self._deadline = self.due_at = now + (settings.answer_s if is_last else settings.spacing_s)
        return list(pings)

    def _end(self, now: float) -> list[Effect]:
        for peer in self._peers.values():
            self._learn(peer)
        self._peers = {}
        if self.phase is Phase.MEASURING_RANDOM:
            return self._ask(Phase.ASKING_CLOSEST, FindClosest(self._settings.closest), now)
        self.phase = Phase.RESTING
        self.cycles += 1
        self.due_at = now + self.interval_s
        return [Say(GatewayReport(tuple(Trip(*one) for one in self.measured.items())))]

    def _learn(self, peer: _Peer) -> None:
        name = peer.place.name
        if not peer.samples:
            if peer.asked:
                self.left_out["silent"] += 1
                self._by_tcp[name] = None
                if len(self._by_tcp) > BY_TCP_MAX:
                    del self._by_tcp[next(iter(self._by_tcp))]
            return
        best = min(peer.samples, key=lambda sample: sample.round_trip_s)
        expected, error = self.coordinate.distance_s(best.coordinate), max(self.coordinate.error, ERROR_LEAST)
        if abs(expected - best.round_trip_s) > SURPRISE * error * best.round_trip_s:
            self._is_surprised = True
        self.measured[name] = best.round_trip_s
        for _ in peer.samples:  # each answer is a step
            self._vivaldi.measured(best.coordinate, best.round_trip_s, name)
