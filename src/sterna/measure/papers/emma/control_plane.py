"""The control plane of a town: a coordinator, and hosts that measure, as they are deployed.

Measuring, deciding and orders are the product's code.  Its words pass as objects instead of bytes,
each after `WORD_S`; a ping takes a sample of the geography.  Words and pings are counted by the thesis' sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Literal

from sterna.adaptation.coordinating import Coordinating, CoordinatingTuning, Said
from sterna.adaptation.measuring import Effect, Measuring, MeasuringTuning, Ping
from sterna.adaptation.orders import OrderDesk
from sterna.adaptation.picture import ReportStamp
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import LEADING, TO_GATEWAYS, TO_WORKERS
from sterna.adaptation.words import (
    FindClosest,
    Found,
    GatewayReport,
    Mailroom,
    Measure,
    Order,
    OrderState,
    SignedWord,
    Task,
    Trip,
    Word,
    WorkerReport,
)
from sterna.overlay.echoes import EchoAnswerer, EchoAsker
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import DEFAULT
from sterna.simulation.geography import Geography, Location
from sterna.simulation.kernel import Kernel

WORD_S: Final = 0.05
LOOK_S: Final = 0.5
TICK_S: Final = 0.25
REGION: Final = "town"
KEY: Final = bytes(32)
PING_BYTES, QUESTION_BYTES, ORDER_BYTES, REQUEST_BYTES, REPORT_BYTES, PLACE_BYTES = 5, 5, 47, 13, 9, 5


UDP_BYTES, MQTT_BYTES = 28, 60
"""Headers of a datagram with an echo, and of a word in a PUBLISH over TCP, with a topic of 40 bytes besides."""
TOPIC_BYTES: Final = 40


class Traffic:
    """Messages and bytes by kind, by the thesis' sizes; and the true bytes of measuring, moves and stops."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.wire = 0

    def echo(self, data: bytes) -> None:
        self.managed(1, PING_BYTES)
        self.wire += len(data) + UDP_BYTES

    def word(self, count: int, size: int, data: bytes) -> None:
        """`size` of each of so many messages by the thesis, which are one word of ours."""
        self.managed(count, size)
        self.wire += len(data) + MQTT_BYTES + TOPIC_BYTES

    def managed(self, count: int, size: int) -> None:
        self.messages["management"] += count
        self.bytes["management"] += count * size

    def share(self, kind: Literal["messages", "bytes"]) -> float:
        counts = self.messages if kind == "messages" else self.bytes
        return counts["management"] / max(sum(counts.values()), 1)


class ControlPlane:
    def __init__(
        self,
        kernel: Kernel,
        tuning: AdaptationTuning,
        traffic: Traffic,
        carry_out: Callable[[str, Task], OrderState],
        coordinators: int = 1,
    ) -> None:
        """`carry_out` does to a worker's node what an order says, and answers for it."""
        self.kernel = kernel
        self.traffic = traffic
        self.geography = Geography()
        self.rng = kernel.dice("ways")
        self.carry_out = carry_out
        self.hosts: dict[str, MeasuringHost] = {}
        settings = CoordinatingTuning()
        self.coordinators = {
            name: Coordinating(name, REGION, settings, tuning, DEFAULT.dimensions, kernel.dice(name), 0.0, lambda: KEY)
            for name in ("coordinator", "standby")[:coordinators]
        }
        self._words = 0
        self.apart = ""
        """A region whose hosts and the second coordinator hear nobody else; empty: all hear all."""
        for name in self.coordinators:
            self._tick(name)

    def add(self, name: str, at: Location, *, is_worker: bool, measures: bool) -> MeasuringHost:
        host = self.hosts[name] = MeasuringHost(self, name, at, is_worker=is_worker)
        if measures:
            host.look()
        return host

    def remove(self, name: str) -> None:
        self.hosts.pop(name).is_gone = True
        for one in self.coordinators.values():
            one.observations.left(name)

    def say(self, host: MeasuringHost, word: Word) -> None:
        """From a host to the coordinator."""
        host.counter += 1
        stamp = ReportStamp(host.boot, host.counter)
        letter = SignedWord(host.name, REGION, stamp, word, host.measuring.coordinate)
        for name in self.coordinators:
            if self.hears(name, host):
                self.kernel.after(WORD_S, self._came, name, letter)

    def hears(self, coordinator: str, host: MeasuringHost) -> bool:
        return not self.apart or (coordinator == "standby") == (host.at.region == self.apart)

    def reaches(self, one: MeasuringHost, other: MeasuringHost) -> bool:
        return not self.apart or (one.at.region == self.apart) == (other.at.region == self.apart)

    def kill_leader(self) -> None:
        for name in [name for name, one in self.coordinators.items() if one.leadership.is_leading]:
            del self.coordinators[name]

    @property
    def acting(self) -> int:
        """Coordinators that lead and may give orders."""
        return sum(one.leadership.may_act(self.kernel.now) for one in self.coordinators.values())

    def _came(self, coordinator: str, letter: SignedWord) -> None:
        if coordinator in self.coordinators:
            self._carry(coordinator, self.coordinators[coordinator].came(letter, self.kernel.now))

    def _tick(self, coordinator: str) -> None:
        if coordinator in self.coordinators:
            self._carry(coordinator, self.coordinators[coordinator].tick(self.kernel.now))
            self.kernel.after(TICK_S, self._tick, coordinator)

    def _carry(self, coordinator: str, said: Iterable[Said]) -> None:
        for kind, name, word in said:
            if kind == LEADING and not self.apart:
                self._words += 1
                letter = SignedWord(coordinator, REGION, ReportStamp(1, self._words), word, None)
                for other in self.coordinators.keys() - {coordinator}:
                    self.kernel.after(WORD_S, self._came, other, letter)
            elif kind in (TO_WORKERS, TO_GATEWAYS) and name in self.hosts and self.hears(coordinator, self.hosts[name]):
                self.kernel.after(WORD_S, self.hosts[name].came, word, coordinator)


class MeasuringHost:
    """A worker or a gateway."""

    def __init__(self, plane: ControlPlane, name: str, at: Location, *, is_worker: bool) -> None:
        self._plane = plane
        self.name = name
        self.at = at
        self._is_worker = is_worker
        self.is_gone = False
        #: True bytes of the words and echoes that it said and heard as one who measures.
        self.wire = 0
        self.counter = 0
        # One that comes back has started again: its reports are newer than those of its last visit.
        self.boot = 1 + int(plane.kernel.now)
        self._answerer = EchoAnswerer()
        self._mail = Mailroom(REGION, REGION, name, self.boot, KEY)
        self._desk = OrderDesk(self.boot)
        dice = Random(f"{plane.kernel.seed}/{name}")
        keys = (KEY,) if is_worker else ()
        self.measuring = Measuring(
            name, MeasuringTuning(), Vivaldi(dice, DEFAULT), EchoAsker(dice), plane.kernel.now, keys
        )

    def look(self) -> None:
        """A host's loop calls it again and again, to see whether something is due."""
        if self.is_gone:
            return
        kernel = self._plane.kernel
        self._do(self.measuring.tick(kernel.now))
        kernel.at(min(max(self.measuring.due_at, kernel.now + 0.005), kernel.now + LOOK_S), self.look)

    def came(self, word: Word, coordinator: str) -> None:
        now = self._plane.kernel.now
        if self.is_gone:
            return
        if isinstance(word, Found):
            self._count_word(1, 1 + PLACE_BYTES * len(word.workers), word)
            self._do(self.measuring.found(word, now))
        elif isinstance(word, Measure):
            self._count_word(1, REQUEST_BYTES, word)
            self._do(self.measuring.asked(word, now))
        elif isinstance(word, Order):
            self._count_word(1, ORDER_BYTES, word)
            self._ordered(word, coordinator)

    def report(self, word: WorkerReport) -> None:
        """A worker's.  The thesis has none that would be counted: its brokers tell these figures in their pings."""
        self._plane.say(self, word)
        self._desk.reported(self.counter, self._plane.kernel.now)

    def report_trips(self, trips: dict[str, float]) -> None:
        """Of a gateway that measures everything by itself."""
        word = GatewayReport(tuple(Trip(*one) for one in trips.items()))
        self._count_word(len(trips), REPORT_BYTES, word)
        self._plane.say(self, word)

    def _count_word(self, count: int, size: int, word: Word) -> None:
        """`size` of each of so many messages by the thesis."""
        data = self._mail.write(word, self.measuring.coordinate)
        self._plane.traffic.word(count, size, data)
        self.wire += len(data) + MQTT_BYTES + TOPIC_BYTES

    def _count_echo(self, data: bytes) -> None:
        self._plane.traffic.echo(data)
        self.wire += len(data) + UDP_BYTES

    def _ordered(self, order: Order, coordinator: str) -> None:
        answer = self._desk.came(order, coordinator, self._plane.kernel.now)
        if answer is None:
            answer = self._desk.answer(order, self._plane.carry_out(self.name, order.what))
        self._count_word(1, ORDER_BYTES, answer)
        self._plane.say(self, answer)

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ping):
                self._ping(effect)
            elif isinstance(effect.word, GatewayReport):
                if not self._is_worker:  # a worker's coordinate goes with its own reports
                    self._count_word(1, REPORT_BYTES, effect.word)
                    self._plane.say(self, effect.word)
            else:
                trips = len(effect.word.measured) if isinstance(effect.word, FindClosest) else 0
                self._count_word(1, QUESTION_BYTES + PLACE_BYTES * trips, effect.word)
                self._plane.say(self, effect.word)

    def _ping(self, ping: Ping) -> None:
        plane, worker = self._plane, self._plane.hosts.get(ping.address)
        self._count_echo(ping.data)
        if worker is None or not plane.reaches(self, worker):
            return
        now = plane.kernel.now
        answer = worker._answerer.came(ping.data, self.name, [KEY], worker.measuring.coordinate, now)
        if answer is not None:
            self._count_echo(answer)
            plane.kernel.after(plane.geography.round_trip_s(self.at, worker.at, plane.rng), self._pong, answer)

    def _pong(self, answer: bytes) -> None:
        self.measuring.echoed(answer, self._plane.kernel.now)
