"""Random expressions, placements and faults: when the network has come to rest, a reader's answer is that of one broker
over all that was acknowledged.  The same topics are published at several nodes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from broker.lone_node import Client
from node.faulty_nodes import FaultyTown
from operators.expression_making import ORDINARY, RULES
from sterna.migration.restart_grace import MEET_S
from sterna.operators.grammar import parse
from sterna.operators.reference import Reference
from sterna.operators.settings import OperatorSettings
from sterna.operators.split import halves

NAMES = "abcd"
SPATIAL = ["$AVG", "$SUM", "$MIN", "$MAX", "$COUNT", "$STDDEV", "$MEDIAN", "$QUANTILE;0.25", "$LAST"]
FILTERS = ["t/+", "#", "t/1"]


def settle_for(town: FaultyTown, name: str) -> None:
    """Short windows, and nobody is given up before the end."""
    computations = town[name].broker.routes.computations
    settings = replace(computations._settings, quarter_hourly_s=2.0, grace_s=3600.0)
    computations._settings = computations.parts._settings = settings


def expression(dice: Random) -> str:
    inside = dice.choice(["", "", dice.choice(RULES)])
    outside = dice.choice(["", "", dice.choice(RULES), dice.choice(SPATIAL)])
    return f"{outside}{dice.choice(SPATIAL)}{inside}/{dice.choice(FILTERS)}"


class Weather:
    """What may befall a town in which somebody watches an expression at node a."""

    def __init__(self, seed: int, strategy: str, text: str = "") -> None:
        self.dice = Random(seed)
        self.town = FaultyTown(NAMES, strategy)
        for name in NAMES:
            settle_for(self.town, name)
        self.links = {f"{self.dice.choice(NAMES[:place])}{NAMES[place]}" for place in range(1, len(NAMES))}
        self.up = set(self.links)
        self.town.connect(*sorted(self.links))
        self.text = text or expression(self.dice)
        if seed % 4 == 3:
            self.cut()  # not everybody hears of the subscription
        self.watcher = self.town["a"].resume("watcher", session_expiry=100_000)
        self.results: list[bytes] = []
        self.watcher.subscribe(self.text, 1)
        self.published: list[tuple[int, bytes, bytes]] = []
        assert halves(parse(self.text.encode())) is not None

    def publish(self) -> None:
        name = self.dice.choice([name for name in NAMES if name in self.town.nodes])
        topic = f"t/{self.dice.randrange(5)}"
        payload = self.dice.choice([*ORDINARY, b"no number"])
        client = self.town[name].join(f"at-{name}")
        assert client.publish(topic, payload, self.dice.choice([1, 2])) < 0x80
        client.vanish()
        self.published.append((int(self.town[name].wall * 1e6 + 0.5), topic.encode(), payload))
        self.town.pass_time(self.dice.choice([0.001, 0.01, 0.05, 0.3]))

    def cut(self) -> None:
        if self.up:
            link = self.dice.choice(sorted(self.up))
            self.up.remove(link)
            self.town.cut(*link)

    def heal(self) -> None:
        link = self.dice.choice(sorted(self.links))
        if link not in self.up and all(name in self.town.nodes for name in link):
            self.up.add(link)
            self.town.connect(link)

    def kill(self) -> None:
        name = self.dice.choice(NAMES)
        if name in self.town.nodes and len(self.town.nodes) > 1:
            if name == "a":
                self.read()
                self.watcher.vanish()
            self.town.kill(name)
            self.up = {link for link in self.up if name not in link}

    def start(self) -> None:
        name = self.dice.choice(NAMES)
        if name not in self.town.nodes:
            self.town.start(name)
            settle_for(self.town, name)
            if name == "a":
                self._watch_again()

    def _watch_again(self) -> None:
        self.town.pass_time(MEET_S)  # it might have begun anew elsewhere, and nobody is there who could tell
        self.watcher = self.town["a"].resume("watcher", session_expiry=100_000)

    def checkpoint(self) -> None:
        name = self.dice.choice([name for name in NAMES if name in self.town.nodes])
        self.town[name].checkpoint()

    def read(self) -> None:
        """Everything that has come, acknowledged as it came."""
        while True:
            self.town.settle()
            came = self.watcher.messages()
            if not came:
                return
            self.results += [message.payload for message in came]
            acknowledge(self.watcher, [message.packet_id for message in came if message.qos])

    def calm(self) -> None:
        for name in NAMES:
            if name not in self.town.nodes:
                self.town.start(name)
                settle_for(self.town, name)
                if name == "a":
                    self._watch_again()
        self.town.connect(*sorted(self.links - self.up))
        self.town.pass_time(6)
        self.read()


def acknowledge(client: Client, packet_ids: list[int | None]) -> None:
    client.send(b"".join(b"\x40\x02" + (packet_id or 0).to_bytes(2, "big") for packet_id in packet_ids))


@pytest.mark.parametrize("seed", range(60))
def test_the_answer_at_rest_is_that_of_one_broker(seed: int) -> None:
    weather = Weather(seed, ("subscription-flooding", "advertisement")[seed % 2])
    faults = [weather.cut, weather.heal, weather.kill, weather.start, weather.checkpoint]
    for _ in range(25):
        weather.dice.choice([*[weather.publish] * 6, *faults])()
    weather.calm()
    part = next(part for part in weather.town["a"].broker.routes.computations.parts if part.computations)
    assert part.is_settled
    (computation,) = part.computations
    if not counting(weather):
        assert not weather.results
        return
    # Of what counts now, asked directly: the last one may have been silent.
    said = computation.merged(int(weather.town["a"].wall * 1e6))
    expected = last_answer(weather)
    assert said == expected, (weather.text, weather.published)
    if expected is not None:
        assert weather.results[-1] == expected, (weather.text, weather.published)


def last_answer(weather: Weather) -> bytes | None:
    """Of one broker, at the last message that said something."""
    reference = Reference(parse(weather.text.encode()), OperatorSettings(), 0)
    found: list[bytes] = []
    for time_us, topic, payload in counting(weather):
        found = reference.message(topic, payload, time_us)
    return found[-1] if found else None


def counting(weather: Weather) -> list[tuple[int, bytes, bytes]]:
    reference = Reference(parse(weather.text.encode()), OperatorSettings(), 0)
    return [
        (time_us, topic, payload)
        for time_us, topic, payload in weather.published
        if reference.value_of(payload)[1] and (topic == b"t/1" or not weather.text.endswith("/t/1"))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_every_message_counts_in_one_window_and_once(seed: int) -> None:
    text = "$SUM$QUARTERHOURLYSUM/#"
    weather = Weather(seed, ("subscription-flooding", "advertisement")[seed % 2], text)
    faults = [weather.cut, weather.heal, weather.kill, weather.start, weather.checkpoint, weather.read]
    for _ in range(25):
        weather.dice.choice([*[weather.publish] * 6, *faults])()
    weather.calm()
    total = sum(Fraction(payload.decode()) for _, _, payload in weather.published if payload != b"no number")
    # Each result is rounded once; the numbers have one decimal.
    assert round(sum(map(float, weather.results)), 6) == round(float(total), 6), weather.published
