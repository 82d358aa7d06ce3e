"""How a participant finds its coordinate: whom it measures, when, and what it makes of the answers.

A cycle is that of the paper's Figure 5.1: ask the coordinator for some random workers, measure them, learn; ask for
the nearest ones, unless those were all that there are, measure them, learn; report.  The pause until the next one grows
as the error falls, and doubles with every cycle that surprised nobody: an error may stay large, because it is relative,
and next to a worker a millisecond is much.  A participant whose coordinator does not answer measures the workers that
it knows.  A leader that lacks one answer asks for it: the gateway measures the workers that it names, and reports,
between two cycles.

Of several samples to one worker the least counts for all: the others waited in queues.  Samples that were taken while
this process itself was late are left out.  A worker that answers no datagram is asked over TCP the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeAlias

from sterna.adaptation.words import (
    FOUND_MAX,
    FindClosest,
    FindRandom,
    Found,
    GatewayReport,
    Measure,
    Trip,
    WorkerPlace,
)
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAsker, EchoSample
from sterna.overlay.vivaldi import Vivaldi
from sterna.vocabulary.settings import Allowed

BY_TCP_MAX = 256
DOUBLINGS_MAX = 16
LAST_MAX = 256
ERROR_LEAST = 0.05
"""An error below this is not believed when a sample is held against it."""
SURPRISE = 3.0
"""A first sample that is off the estimate by so many times the error shows that something has moved, ..."""
CHANGED, CHANGED_S = 0.3, 0.001
"""... and a later one if it is off the one before by this part of it, and by this.  An estimate that stays wrong is no
news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringTuning:
    """How coordinates are measured."""

    random: Annotated[int, Allowed(1, FOUND_MAX)] = 4
    """Random workers measured in a cycle, ..."""
    closest: Annotated[int, Allowed(1, FOUND_MAX)] = 6
    """... and the nearest ones, ..."""
    samples: Annotated[int, Allowed(1, 20)] = 5
    """... with so many pings each, ..."""
    again: Annotated[int, Allowed(1, 20)] = 2
    """... or so many to one that was measured before, ..."""
    spacing_s: Annotated[float, Allowed(0.001, 10)] = 0.05
    """... so far apart."""
    answer_s: Annotated[float, Allowed(0.05, 4)] = 1.0
    """How long answers to pings, and of the coordinator, are waited for."""
    base_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """Pause between two cycles while the error is large."""
    max_s: Annotated[float, Allowed(0.1, 86400)] = 600.0
    """The longest pause."""
    target_error: Annotated[float, Allowed(0.001, 10)] = 1.0
    """The pause is `base_s` x `target_error` / error, within these two, ..."""
    unsure_error: Annotated[float, Allowed(0.01, 10)] = 0.6
    """... and while the error is above this, where coordinators do not use a coordinate yet, ..."""
    unsure_s: Annotated[float, Allowed(0.1, 3600)] = 2.0
    """... it begins with this, and doubles."""
    lag_ms: Annotated[float, Allowed(0.1, 10000)] = 5.0
    """Samples taken while this process was later than this are left out."""


class Phase(StrEnum):
    RESTING = "resting"
    ASKING_RANDOM = "asking-random"
    MEASURING_RANDOM = "measuring-random"
    ASKING_CLOSEST = "asking-closest"
    MEASURING_CLOSEST = "measuring-closest"
    MEASURING_NAMED = "measuring-named"
    """Those that a leader asked about."""


_MEASURING = {
    Phase.ASKING_RANDOM: Phase.MEASURING_RANDOM,
    Phase.ASKING_CLOSEST: Phase.MEASURING_CLOSEST,
}
"""The phase that follows when it is known whom to measure."""


class Say(NamedTuple):
    """A word to the coordinators."""

    word: FindRandom | FindClosest | GatewayReport


class Ping(NamedTuple):
    address: str
    data: bytes
    by_tcp: bool


Effect: TypeAlias = Say | Ping


class _Peer:
    __slots__ = ("asked", "place", "samples", "wanted")

    def __init__(self, place: WorkerPlace, wanted: int) -> None:
        self.place = place
        self.wanted = wanted
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
        self._last: dict[str, float] = {}
        self._changed: set[str] = set()
        """Of these, workers whose round trip was another one than the time before."""
        self._known: dict[str, WorkerPlace] = {}
        self._named: dict[str, WorkerPlace] = {}
        self._cycle_at = now
        self._peers: dict[str, _Peer] = {}
        self._deadline = now
        self._by_tcp: dict[str, None] = {}
        self._is_surprised = False
        self._quiet_cycles = 0
        self._are_all = False
        """The coordinator knows no more workers than it has named in this cycle: none of them is nearer."""
        self._news: set[str] = set()
        """Workers that were measured for the first time in this cycle, or had changed."""

    @property
    def coordinate(self) -> Coordinate:
        return self._vivaldi.coordinate

    @property
    def _is_settled(self) -> bool:
        """It has measured all workers that there are and its coordinate is usable: no estimate matters."""
        return self._are_all and self.coordinate.error <= self._settings.unsure_error

    @property
    def interval_s(self) -> float:
        settings, error = self._settings, self.coordinate.error
        least = settings.unsure_s if error > settings.unsure_error else settings.base_s
        if self._is_surprised:
            return least
        by_error = settings.base_s * settings.target_error / max(error, 1e-6) if least == settings.base_s else least
        doubled = least * 2.0 ** min(self._quiet_cycles, DOUBLINGS_MAX)
        return min(max(least, by_error, doubled), max(settings.max_s, settings.base_s))

    def hurry(self, now: float) -> None:
        """Its node was lost, or its address has changed: the next cycle begins now."""
        self._cycle_at = now
        if self.phase is Phase.RESTING:
            self.due_at = now
        self._is_surprised = True

    def tick(self, now: float) -> list[Effect]:
        if self.phase is Phase.RESTING:
            return self._next(now)
        if self.phase in (Phase.ASKING_RANDOM, Phase.ASKING_CLOSEST):
            return self._measure_known(now) if now >= self._deadline else []
        return self._go_on(now)

    def found(self, found: Found, now: float) -> list[Effect]:
        """The coordinator's answer; one that nobody waits for brings its addresses and key and nothing else."""
        self._take_key(found.key)
        if found.nodes:
            self.nodes = found.nodes
        places = [place for place in found.workers if place.name != self._name]
        for place in places:
            self._known.pop(place.name, None)
            self._known[place.name] = place
            if len(self._known) > 4 * FOUND_MAX:
                del self._known[next(iter(self._known))]
        if self.phase is Phase.ASKING_RANDOM and found.asked == "random":
            self._are_all = len(places) < self._settings.random
        wanted = {Phase.ASKING_RANDOM: "random", Phase.ASKING_CLOSEST: "closest"}.get(self.phase)
        return self._measure(places, now) if found.asked == wanted else []

    def asked(self, word: Measure, now: float) -> list[Effect]:
        """A leader names workers.  They are measured at once, or after the cycle that is under way."""
        self._take_key(word.key)
        self._named |= {place.name: place for place in word.workers if place.name != self._name}
        self._named = dict(list(self._named.items())[-FOUND_MAX:])
        return self._next(now) if self.phase is Phase.RESTING else []

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

    def _next(self, now: float) -> list[Effect]:
        if self._named:
            places, self._named = list(self._named.values()), {}
            self.phase, self.measured = Phase.MEASURING_NAMED, {}
            return self._measure(places, now)
        return self._begin(now) if now >= self._cycle_at else []

    def _take_key(self, key: bytes) -> None:
        if key and key not in self.keys:
            self.keys = [key, *self.keys[:1]]

    def _begin(self, now: float) -> list[Effect]:
        self.measured, self._news = {}, set()
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
        self.phase = _MEASURING.get(self.phase, self.phase)
        self._peers = {place.name: _Peer(place, self._wanted(place.name)) for place in places if place.echo}
        self._deadline = now
        return self._go_on(now)

    def _wanted(self, worker: str) -> int:
        """Pings: one that changed is asked more often the next time."""
        settings = self._settings
        is_known = worker in self._last and worker not in self._changed
        return min(settings.again, settings.samples) if is_known else settings.samples

    def _go_on(self, now: float) -> list[Effect]:
        """One round of pings at a time, and the end when all answers are in or late."""
        settings, peers = self._settings, self._peers.values()
        if all(len(peer.samples) >= peer.wanted for peer in peers) or not self.keys:
            return self._end(now)
        if now < self._deadline:
            return []
        unasked = [peer for peer in peers if peer.asked < peer.wanted]
        if not unasked:
            return self._end(now)
        pings = []
        for peer in unasked:
            peer.asked += 1
            data = self._asker.ping(peer.place.name, self.keys[0], now)
            pings.append(Ping(peer.place.echo, data, peer.place.name in self._by_tcp))
        is_last = all(peer.asked >= peer.wanted for peer in peers)
        self._deadline = self.due_at = now + (settings.answer_s if is_last else settings.spacing_s)
        return list(pings)

    def _end(self, now: float) -> list[Effect]:
        for peer in self._peers.values():
            self._learn(peer)
        self._peers = {}
        if self.phase is Phase.MEASURING_RANDOM and not self._is_settled:
            nearest = min(self._last, key=self._last.__getitem__, default="")
            # A leader knows the others from the last report.
            trips = tuple(Trip(*one) for one in self.measured.items() if one[0] in self._news)
            return self._ask(Phase.ASKING_CLOSEST, FindClosest(self._settings.closest, nearest, trips), now)
        is_cycle = self.phase in (Phase.MEASURING_RANDOM, Phase.MEASURING_CLOSEST)
        self.cycles += is_cycle
        self._quiet_cycles = 0 if self._is_surprised else self._quiet_cycles + is_cycle
        # Answers that a leader asked for may show that the coordinate is wrong: then the next cycle comes sooner.
        self._cycle_at = now + self.interval_s if is_cycle else min(self._cycle_at, now + self.interval_s)
        self.phase = Phase.RESTING
        self.due_at = now if self._named else self._cycle_at
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
        self._is_surprised |= self._is_news(best)
        self.measured[name] = self._last[name] = best.round_trip_s
        if len(self._last) > LAST_MAX:
            del self._last[next(iter(self._last))]
        for _ in range(self._settings.samples):  # steps of its coordinate, however few answers were enough
            self._vivaldi.measured(best.coordinate, best.round_trip_s, name)

    def _is_news(self, sample: EchoSample) -> bool:
        trip_s, last_s = sample.round_trip_s, self._last.pop(sample.peer, None)
        self._changed.discard(sample.peer)
        if last_s is None:
            self._news.add(sample.peer)
        elif abs(trip_s - last_s) > max(CHANGED * min(trip_s, last_s), CHANGED_S):
            self._news.add(sample.peer)
            self._changed.add(sample.peer)
            return True
        else:
            return False
        if self._is_settled:
            return False
        off_s = abs(self.coordinate.distance_s(sample.coordinate) - trip_s)
        return off_s > SURPRISE * max(self.coordinate.error, ERROR_LEAST) * trip_s
