"""A subscription that computes, in a scenario of random faults: somebody counts topics, others give them values.

Every publication has a topic of its own, so that the last count tells whether each of them is in it, once.  Publishing
begins when the subscription is confirmed.
"""

from __future__ import annotations

from sterna.mqtt.topics import levels_of, matches
from sterna.simulation.clients import Client
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK
from sterna.simulation.population import habits
from sterna.simulation.records import Records, Span, Violation
from sterna.simulation.world import SimulatedWorld

PUBLISHERS = 2
PUBLISH_PAUSE_S = 1.0
LOOK_S = 0.2


class CheckedComputation:
    def __init__(self, scene: SimulatedWorld, number: int, machines: list[SimulatedMachine]) -> None:
        """`machines`: where its clients may be."""
        self._scene = scene
        self._records = scene.records
        self._name = name = f"counter{number}"
        self._dice = dice = scene.kernel.dice(name)
        self._topics = b"%b/#" % name.encode()
        self._result = b"$COUNT/%b/$ALL" % name.encode()
        watcher = scene.add_client(name, dice.choice(machines), habits(dice, persistent=True), NETWORK)
        watcher.subscribe(b"$COUNT/" + self._topics, dice.choice((1, 2)))
        self._published = 0
        self._publishers = [
            scene.add_client(f"{name}p{place}", dice.choice(machines), habits(dice, persistent=True), NETWORK)
            for place in range(PUBLISHERS)
        ]

    def start(self, until: float) -> None:
        if self._span() is not None:
            for publisher in self._publishers:
                self._publish(publisher, until)
        elif self._scene.kernel.now < until:
            self._scene.kernel.after(LOOK_S, self.start, until)

    def _publish(self, publisher: Client, until: float) -> None:
        kernel, dice = self._scene.kernel, self._dice
        if kernel.now >= until:
            return
        self._published += 1
        publisher.publish(b"%b/%d" % (self._name.encode(), self._published), dice.choice((1, 2)))
        kernel.after(dice.expovariate(1 / PUBLISH_PAUSE_S), self._publish, publisher, until)

    def _span(self) -> Span | None:
        return next((span for span in self._records.expressions if span.client == self._name), None)

    def check(self) -> list[Violation]:
        """Once it is quiet, the last count has every topic that was owed, and none that was never sent."""
        span = self._span()
        if span is None:
            return []
        return _wrong_count(self._records, span, self._topics, self._result)


def _wrong_count(records: Records, span: Span, topics: bytes, result: bytes) -> list[Violation]:
    since = max((span.since, *span.renewals))
    named = [p for p in records.publications.values() if matches(levels_of(topics), levels_of(p.topic))]
    sent = {p.topic for p in named if p.sent_at is not None}
    owed = {
        p.topic
        for p in named
        if p.acknowledged_at is not None and not p.refused and p.sent_at is not None and p.sent_at > since
    }
    counts = [arrival.identity for arrival in records.arrivals.get(span.client, ()) if arrival.topic == result]
    last = float(counts[-1]) if counts else 0.0
    if len(owed) <= last <= len(sent):
        return []
    detail = f"{span.client} was told {last} at last; {len(owed)} topics are owed, {len(sent)} were sent"
    return [Violation("computed", detail, (span.client,))]
