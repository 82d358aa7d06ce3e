"""A coordinator: letters in, words out.  It gathers a picture, decides in passes, and gives orders while it leads.

A coordinator that stands by gathers and decides as well and says nothing, so that it goes on where the leader stopped.
Nothing here is kept over a restart: reports bring it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from math import isfinite
from random import Random
from typing import Annotated, NamedTuple

from sterna.adaptation.deciding import PassOutcome, decide
from sterna.adaptation.leading import CoordinatorLeadership, LeadingTuning
from sterna.adaptation.orders import OrderBook
from sterna.adaptation.picture import (
    Flow,
    KnownGateway,
    KnownWorker,
    Load,
    Measured,
    Observations,
    Picture,
    ReportStamp,
    Weight,
    WorkerNodeState,
)
from sterna.adaptation.proving import Proofs
from sterna.adaptation.reasons import Decision, Move, Resume, Start, Stop
from sterna.adaptation.resembling import to_measure
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import LEADING, TO_GATEWAYS, TO_WORKERS
from sterna.adaptation.words import (
    FOUND_MAX,
    FindClosest,
    FindRandom,
    Found,
    GatewayReport,
    Leading,
    Leaving,
    Measure,
    MoveGateway,
    OrderAnswer,
    ResumeNode,
    SentCoordinate,
    SignedWord,
    StartNode,
    StopNode,
    Task,
    Word,
    WorkerPlace,
    WorkerReport,
)
from sterna.overlay.coordinates import Coordinate
from sterna.vocabulary.settings import Allowed

DECISIONS_KEPT = 200
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatingTuning(LeadingTuning):
    lost_s: Annotated[float, Allowed(0.2, 3600)] = 6.0
    """A worker that has not reported for so long is lost: no candidate for anything.  Three reports or more."""
    fresh_s: Annotated[float, Allowed(1, 86400)] = 1200.0
    """A measured round trip counts before an estimate for so long; twice the longest pause of gateways."""
    order_valid_s: Annotated[float, Allowed(0.2, 600)] = 10.0
    """An order counts for so long after the worker's report that it was made on, ..."""
    order_retry_s: Annotated[float, Allowed(0.05, 60)] = 1.0
    """... and is said again after this until it is answered."""
    order_work_s: Annotated[float, Allowed(1, 3600)] = 120.0
    """A worker that has answered may take so long."""
    order_pause_s: Annotated[float, Allowed(0.1, 3600)] = 5.0
    """An order that failed is not given again before this; doubled each time."""
    act: bool = True
    """False: a dry run.  It judges and tells, and gives no orders."""


class Said(NamedTuple):
    """A word, and the control topic it goes to: kind and name."""

    kind: str
    name: str
    word: Word


class Made(NamedTuple):
    """A decision, when it was made, and what became of it."""

    at: float
    decision: Decision
    ordered: str
    """Empty if it was ordered, else why not."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A worker's last report, beside its part in the picture."""

    stamp: ReportStamp
    echo: str
    clients: str
    trouble: str


class Coordinating:
    def __init__(
        self,
        name: str,
        region: str,
        settings: CoordinatingTuning,
        tuning: AdaptationTuning,
        dimensions: int,
        rng: Random,
        now: float,
        echo_key: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """`echo_key`: the key of echoes just now, for gateways."""
        self.region = region
        self.settings = settings
        self.tuning = tuning
        self._rng = rng
        self._echo_key = echo_key
        self.leadership = CoordinatorLeadership(name, settings, rng, now)
        self.observations = Observations(dimensions=dimensions, lost_s=settings.lost_s, fresh_s=settings.fresh_s)
        self.orders = OrderBook(
            retry_s=settings.order_retry_s,
            valid_s=settings.order_valid_s,
            pause_s=settings.order_pause_s,
            work_s=settings.order_work_s,
        )
        self.outcome: PassOutcome | None = None
        self.picture: Picture | None = None
        self.made: list[Made] = []
        """The last decisions, the newest last, ..."""
        self.made_in_all = 0
        """... of so many."""
        self.counts: Counter[str] = Counter()
        self._known: dict[str, _Known] = {}
        self._proofs = Proofs(tuning.witnesses)
        self._next_pass = now

    # -- letters --

    def came(self, letter: SignedWord, now: float) -> list[Said]:
        if letter.region != self.region:
            return []
        word = letter.word
        if isinstance(word, WorkerReport):
            self._worker_reported(letter, word, now)
        elif isinstance(word, GatewayReport):
            self._gateway_reported(letter, word, now)
        elif isinstance(word, FindRandom | FindClosest):
            return self._asked(letter, word, now)
        elif isinstance(word, OrderAnswer):
            self.orders.answered(letter.sender, word, letter.stamp, now)
        elif isinstance(word, Leading):
            self._led(letter.sender, word, now)
        elif isinstance(word, Leaving):
            self.observations.left(letter.sender)
            self._known.pop(letter.sender, None)
        return []

    def _led(self, sender: str, word: Leading, now: float) -> None:
        was_leading = self.leadership.is_leading
        self.leadership.heard(sender, word, now)
        if was_leading and not self.leadership.is_leading:
            self.orders.forget()

    def _worker_reported(self, letter: SignedWord, report: WorkerReport, now: float) -> None:
        if letter.coordinate is None:
            self.counts["reports-without-place"] += 1
            return
        worker = KnownWorker(
            letter.sender,
            letter.coordinate,
            report.site,
            WorkerNodeState(report.state),
            report.fixed,
            now - _bounded(report.in_state_s),
            Load(report.cpu, report.lag_s, report.bytes_per_s, report.connections),
            {one.gateway: Weight(one.clients, one.subscriptions, one.deliveries_per_s) for one in report.serves},
            report.others,
            now + _bounded(report.barred_s),
            report.price,
            _flows(report),
        )
        if self.observations.worker_reported(worker, letter.stamp, now) is None:
            self._known[letter.sender] = _Known(letter.stamp, report.echo, report.clients, report.trouble)
            self.leadership.learned(report.term)
            self.orders.reported(letter.sender, letter.stamp, now)

    def _gateway_reported(self, letter: SignedWord, report: GatewayReport, now: float) -> None:
        if letter.coordinate is None or letter.sender in self._known:
            self.counts["reports-without-place"] += letter.coordinate is None
            return
        measured = {one.worker: Measured(one.round_trip_s, now) for one in report.measured}
        self.observations.gateway_reported(KnownGateway(letter.sender, letter.coordinate, measured), letter.stamp, now)

    def _asked(self, letter: SignedWord, word: FindRandom | FindClosest, now: float) -> list[Said]:
        """A leader answers, frozen or not: who measures changes nothing."""
        if not self.leadership.is_leading:
            return []
        picture = self._lately(now)
        others = [worker for worker in picture.workers.values() if worker.name != letter.sender]
        is_worker = letter.sender in self._known
        asked = "closest" if isinstance(word, FindClosest) else "random"
        if isinstance(word, FindClosest):
            alike = [] if is_worker else self._alike(word, letter.sender, picture)
            closest = self._closest(letter.coordinate, others, word.count)
            found = list({one.name: one for one in alike + closest}.values())[: word.count]
        else:
            found = self._rng.sample(others, min(word.count, len(others)))
        places = self._places(found)
        key = b"" if is_worker else self._echo_key()
        nodes = () if is_worker else self._nodes(letter.coordinate, picture)
        answer = Found("closest" if asked == "closest" else "random", places, key, nodes)
        return [Said(TO_WORKERS if is_worker else TO_GATEWAYS, letter.sender, answer)]

    def _lately(self, now: float) -> Picture:
        """Questions come by the hundred; a picture for each would be dear."""
        if self.picture is None or now - self.picture.now >= self.tuning.pass_s:
            self.picture = self.observations.picture(now)
        return self.picture

    def _alike(self, word: FindClosest, sender: str, picture: Picture) -> list[KnownWorker]:
        workers, gateway = picture.workers, picture.gateways.get(sender)
        trips = {name: one.round_trip_s for name, one in gateway.measured.items()} if gateway is not None else {}
        trips |= {one.worker: one.round_trip_s for one in word.measured}
        places = {name: one.coordinate for name, one in workers.items()}
        return [workers[name] for name in to_measure(trips, places, word.nearest, word.count)]

    def _places(self, workers: list[KnownWorker]) -> tuple[WorkerPlace, ...]:
        return tuple(
            WorkerPlace(one.name, self._known[one.name].echo, SentCoordinate.of(one.coordinate))
            for one in workers
            if one.name in self._known
        )

    def _closest(self, place: Coordinate | None, workers: list[KnownWorker], count: int) -> list[KnownWorker]:
        if place is None or not all(place.fits(len(one.coordinate.vector)) for one in workers):
            self.counts["questions-without-place"] += 1
            return []
        return nsmallest(count, workers, key=lambda one: (place.distance_s(one.coordinate), one.name))

    def _nodes(self, place: Coordinate | None, picture: Picture) -> tuple[str, ...]:
        serving = [one for one in picture.serving() if one.name in self._known and self._known[one.name].clients]
        return tuple(self._known[one.name].clients for one in self._closest(place, serving, FOUND_MAX))

    # -- time --

    def tick(self, now: float) -> list[Said]:
        said: list[Said] = []
        word = self.leadership.tick(now)
        if word is not None:
            said.append(Said(LEADING, self.region, word))
        if self.leadership.is_leading:
            said += [Said(TO_WORKERS, worker, order) for worker, order in self.orders.due(now)]
        if now >= self._next_pass:
            self._next_pass = now + self.tuning.pass_s
            said += self._pass(now)
        return said

    def freeze(self, frozen: bool) -> list[Said]:
        word = self.leadership.freeze(frozen)
        return [Said(LEADING, self.region, word)] if word is not None else []

    def _pass(self, now: float) -> list[Said]:
        picture = self.picture = self.observations.picture(now)
        outcome = self.outcome = decide(picture, self.tuning)
        self.observations.standing = outcome.standing
        self.counts["passes"] += 1
        if not self.leadership.is_leading:
            return []
        orders = [said for decision in outcome.decisions for said in self._order(decision, now)]
        return orders + self._ask_for_proofs(picture, outcome)

    def _ask_for_proofs(self, picture: Picture, outcome: PassOutcome) -> list[Said]:
        asked = self._proofs.due(picture, outcome.judgements)
        self.counts["proofs-asked"] += sum(map(len, asked.values()))
        key = self._echo_key()
        return [Said(TO_GATEWAYS, gateway, Measure(self._places(workers), key)) for gateway, workers in asked.items()]

    def _order(self, decision: Decision, now: float) -> list[Said]:
        subject = decision.gateway if isinstance(decision, Move) else decision.worker
        worker = decision.source if isinstance(decision, Move) else decision.worker
        not_ordered = self._why_not(subject, worker, now)
        self.counts[f"{type(decision).__name__.lower()}{'-not-ordered' if not_ordered else 's'}"] += 1
        self._remember(Made(now, decision, not_ordered))
        if not_ordered:
            return []
        order = self.orders.give(subject, worker, _what(decision), self._known[worker].stamp, self.leadership.term, now)
        if isinstance(decision, Move):
            self.observations.moved(decision.gateway, now)
        return [Said(TO_WORKERS, worker, order)]

    def _why_not(self, subject: str, worker: str, now: float) -> str:
        if not self.settings.act:
            return "dry run"
        if self.leadership.frozen:
            return "frozen"
        if not self.leadership.may_act(now):
            return "settling"
        if worker not in self._known:
            return "no report"
        return self.orders.waits(subject, now)

    def _remember(self, made: Made) -> None:
        """A decision that comes again in the next pass, and is not ordered for the same reason, is told once."""
        same = next((one for one in reversed(self.made) if _is_about(one) == _is_about(made)), None)
        if same is None or not made.ordered or same.ordered != made.ordered:
            self.made = [*self.made[1 - DECISIONS_KEPT :], made]
            self.made_in_all += 1

    def trouble(self) -> dict[str, str]:
        """Complaints of workers."""
        return {name: known.trouble for name, known in self._known.items() if known.trouble}


def _is_about(made: Made) -> tuple[str, str]:
    decision = made.decision
    return type(decision).__name__, decision.gateway if isinstance(decision, Move) else decision.worker


def _what(decision: Decision) -> Task:
    match decision:
        case Move(gateway=gateway, target=target):
            return MoveGateway(gateway, target)
        case Start():
            return StartNode()
        case Stop():
            return StopNode()
        case Resume():
            return ResumeNode()


def _flows(report: WorkerReport) -> tuple[Flow, ...]:
    names = [one.gateway for one in report.serves]
    count = len(names)
    return tuple(
        Flow(
            one.topic,
            {names[place]: a_minute / 60 for place, a_minute in one.publishers if place < count},
            frozenset(names[place] for place in one.subscribers if place < count),
        )
        for one in report.flows
    )


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), _DAY_S) if isfinite(seconds) else 0.0
