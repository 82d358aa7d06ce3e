"""A coordinator, workers and gateways that talk by bytes, with one clock; everything said is written down."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from sterna.adaptation.coordinating import Coordinating, CoordinatingTuning, Said
from sterna.adaptation.measuring import Effect, Measuring, MeasuringTuning, Ping
from sterna.adaptation.orders import OrderDesk
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import FROM_GATEWAYS, REPORTS, TO_GATEWAYS, TO_WORKERS, control_topic
from sterna.adaptation.words import (
    Found,
    Mailroom,
    Measure,
    MoveGateway,
    Order,
    OrderState,
    Served,
    StartNode,
    Word,
    WorkerReport,
    measuring_key,
)
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAnswerer, EchoAsker
from sterna.overlay.vivaldi import Vivaldi

KEY = b"a key of sixteen bytes"
ECHO_KEY = measuring_key("net", KEY, 1)
DEFAULT = CoordinatingTuning(lead_after_s=1.0, settle_s=3.0)


class TalkingWorker:
    def __init__(self, talk: Talk, name: str, place: Coordinate, state: str, *, fixed: bool) -> None:
        self.talk, self.name, self.place, self.state, self.fixed = talk, name, place, state, fixed
        self.mail = Mailroom("net", "eu", name, 1, KEY)
        self.desk = OrderDesk(1)
        self.answerer = EchoAnswerer()
        self.serves: dict[str, int] = {}
        self.since = talk.now
        self.alive = True
        self.is_deaf = False
        self.carried_out: list[object] = []

    def report(self) -> None:
        if not self.alive:
            return
        serves = tuple(Served(gateway, 1, count) for gateway, count in self.serves.items())
        word = WorkerReport(
            site="",
            state=self.state,  # type: ignore[arg-type]
            in_state_s=self.talk.now - self.since,
            echo=self.name,
            clients=f"{self.name}:1883",
            fixed=self.fixed,
            serves=serves,
            term=self.desk.highest.term,
        )
        self.say(word)
        self.desk.reported(self.mail.counter, self.talk.now)
        self.talk.later(1.0, self.report)

    def say(self, word: Word) -> None:
        self.talk.to_coordinators(self.name, REPORTS, self.mail.write(word, self.place), word)

    def came(self, data: bytes) -> None:
        letter = self.mail.read(control_topic("net", TO_WORKERS, self.name), data)
        if not self.alive or self.is_deaf or letter is None or not isinstance(letter.word, Order):
            return
        order = letter.word
        answer = self.desk.came(order, letter.sender, self.talk.now)
        if answer is not None:
            self.say(answer)
            return
        self.carried_out.append(order.what)
        if isinstance(order.what, StartNode):
            self.state, self.since = "starting", self.talk.now
            self.talk.later(0.5, self.ready)
            self.say(self.desk.answer(order, OrderState.UNDER_WAY))
        elif isinstance(order.what, MoveGateway):
            self.talk.workers[order.what.to].serves[order.what.gateway] = self.serves.pop(order.what.gateway)
            self.say(self.desk.answer(order, OrderState.DONE))

    def ready(self) -> None:
        self.state, self.since = "serving", self.talk.now


class TalkingGateway:
    def __init__(self, talk: Talk, name: str, measuring: MeasuringTuning) -> None:
        self.talk, self.name = talk, name
        self.mail = Mailroom("net", "eu", name, 1)
        self.vivaldi = Vivaldi(Random(name))
        self.measuring = Measuring(name, measuring, self.vivaldi, EchoAsker(Random(name)), talk.now)
        self.blocks_udp = False

    def tick(self) -> None:
        self.do(self.measuring.tick(self.talk.now))
        self.talk.later(0.01, self.tick)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ping):
                self._ping(effect)
            else:
                data = self.mail.write(effect.word, self.measuring.coordinate)
                self.talk.to_coordinators(self.name, FROM_GATEWAYS, data, effect.word)

    def _ping(self, ping: Ping) -> None:
        talk, worker = self.talk, self.talk.workers[ping.address]
        talk.note(self.name, worker.name, "ping-tcp" if ping.by_tcp else "ping")
        if (self.blocks_udp and not ping.by_tcp) or not worker.alive:
            return
        trip = talk.trips[self.name, worker.name]
        answer = worker.answerer.came(ping.data, self.name, [ECHO_KEY], worker.place, talk.now)
        if answer is not None:
            talk.later(trip, lambda: self.measuring.echoed(answer, talk.now))

    def came(self, data: bytes) -> None:
        letter = self.mail.read(control_topic("net", TO_GATEWAYS, self.name), data)
        word = letter.word if letter is not None else None
        if isinstance(word, Found):
            self.do(self.measuring.found(word, self.talk.now))
        elif isinstance(word, Measure):
            self.do(self.measuring.asked(word, self.talk.now))


class Talk:
    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[tuple[str, str, str]] = []
        self.workers: dict[str, TalkingWorker] = {}
        self.gateways: dict[str, TalkingGateway] = {}
        self.coordinators: dict[str, tuple[Coordinating, Mailroom]] = {}
        self.trips: dict[tuple[str, str], float] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, act))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = end

    def note(self, sender: str, receiver: str, what: str) -> None:
        self.said.append((sender, receiver, what))

    def heard(self, *kinds: str) -> list[tuple[str, str, str]]:
        """The messages of these kinds, in order."""
        return [one for one in self.said if one[2] in kinds]

    # -- who is there --

    def add_worker(
        self, name: str, place: Coordinate, state: str = "off", *, fixed: bool = False, silent: bool = False
    ) -> TalkingWorker:
        worker = self.workers[name] = TalkingWorker(self, name, place, state, fixed=fixed)
        if not silent:
            worker.report()
        return worker

    def add_gateway(
        self, name: str, node: str, trips_ms: dict[str, float], measuring: MeasuringTuning | None = None
    ) -> TalkingGateway:
        gateway = self.gateways[name] = TalkingGateway(self, name, measuring or MeasuringTuning())
        self.workers[node].serves[name] = 1
        self.trips.update({(name, worker): trip / 1000 for worker, trip in trips_ms.items()})
        gateway.tick()
        return gateway

    def add_coordinator(
        self, name: str, tuning: AdaptationTuning | None = None, settings: CoordinatingTuning = DEFAULT
    ) -> Coordinating:
        made = Coordinating(
            name, "eu", settings, tuning or AdaptationTuning(), 4, Random(name), self.now, lambda: ECHO_KEY
        )
        self.coordinators[name] = (made, Mailroom("net", "eu", name, 1, KEY))
        self._tick(name)
        return made

    def _tick(self, name: str) -> None:
        if name in self.coordinators:
            self._deliver(name, self.coordinators[name][0].tick(self.now))
            self.later(0.1, lambda: self._tick(name))

    # -- carrying --

    def to_coordinators(self, sender: str, kind: str, data: bytes, word: Word) -> None:
        for name, (coordinator, mail) in list(self.coordinators.items()):
            self.note(sender, name, type(word).__name__)
            letter = mail.read(control_topic("net", kind, sender), data)
            if letter is not None:
                self._deliver(name, coordinator.came(letter, self.now))

    def _deliver(self, name: str, said: list[Said]) -> None:
        mail = self.coordinators[name][1]
        for kind, to, word in said:
            data = mail.write(word)
            if kind in (TO_WORKERS, TO_GATEWAYS):
                what = type(word.what).__name__ if isinstance(word, Order) else type(word).__name__
                self.note(name, to, what)
                receiver = (self.workers if kind == TO_WORKERS else self.gateways)[to]
                self.later(0.001, lambda receiver=receiver, data=data: receiver.came(data))  # type: ignore[misc]
                continue
            for other, (coordinator, others_mail) in list(self.coordinators.items()):
                letter = others_mail.read(control_topic("net", kind, to), data)
                if other != name and letter is not None:
                    coordinator.came(letter, self.now)
