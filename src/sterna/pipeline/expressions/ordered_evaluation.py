"""Evaluates expressions that need their values in order, from journals that are read independently.

Messages that all nodes took in before an instant have a defined order: by time, then by journal and offset.  Values
wait in a `ReorderBuffer` until every node has passed that instant, and then go through the same engine that nodes use.
The order, and so every answer, follows from the journals alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter

import msgspec

from sterna.mqtt.topics import FilterTree
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.pipeline.expressions.matching import TOPICS_KNOWN_MAX
from sterna.pipeline.expressions.registry import Entry
from sterna.pipeline.expressions.rule_forwarding import ForwardedMessage, ForwardingEntry
from sterna.pipeline.expressions.value_extraction import ExtractedValues, PayloadReading

Waiting = tuple[int, str, int, bytes, int, int, bytes, float | ForwardedMessage | None]
"""Time, journal, offset, reading, first number of an entry it is for and the one behind the last, topic, value (or the
message itself)."""

_PLACE = itemgetter(0, 1, 2)
_TIME = _NUMBER = itemgetter(0)


class OrderedExpression:
    """One expression."""

    def __init__(self, entry: Entry) -> None:
        self.engine = Engine(entry.expression, entry.settings, entry.since_us)
        self.reading = PayloadReading(entry).name
        self.topic_filter = entry.expression.topic_filter
        self._since_us = entry.since_us
        if entry.expression.periodic is None:  # else the windows are left out that are not there wholly
            self._since_us = max(entry.since_us, entry.beginning.complete_us)
        #: The last result's: its time in microseconds, or one more than the one before it.
        self._number = 0
        self._made: list[tuple[int, bytes]] = []

    def take(self, time_us: int, topic: bytes, value: float | None) -> None:
        if time_us >= self._since_us:
            self._add(self.engine.told(topic, value, time_us))

    def _add(self, payload: bytes | None) -> None:
        if payload is not None:
            self._number = max(self._number + 1, self.engine.result_us)
            self._made.append((self._number, payload))

    def advance(self, time_us: int) -> Iterator[tuple[int, bytes]]:
        """All there is up to then has been taken: (number, payload to publish) of what has come of it."""
        if time_us > self.engine.newest_us:
            self._add(self.engine.advance(time_us))
        made, self._made = self._made, []
        return iter(made)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.engine.snapshot(), self._number))

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        try:
            engine, self._number = msgspec.msgpack.decode(snapshot, type=tuple[bytes, int])
        except msgspec.DecodeError as error:
            raise StateError(f"a damaged state: {error}") from None
        self.engine.restore(engine)


Taker = OrderedExpression | ForwardingEntry


class ReorderBuffer:
    """Where values wait for their turn."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self._trees: dict[bytes, FilterTree[int, tuple[int, Taker]]] = {}
        self._takers = lru_cache(maxsize=TOPICS_KNOWN_MAX)(self._match)
        #: Why messages were left out by tasks, and how many.
        self.left_out: dict[str, int] = {}

    def go_by(self, takers: Iterable[tuple[int, Taker]]) -> None:
        """These there are now, by their numbers."""
        self._trees = {}
        self._takers.cache_clear()
        for number, one in takers:
            tree = self._trees.setdefault(one.reading, FilterTree())
            tree.add(one.topic_filter, number, (number, one))

    def join(self, part: bytes, low: int, high: int) -> None:
        """Adds values that a task has picked, for entries from `low` to before `high`.  May raise DecodeError."""
        said = msgspec.msgpack.decode(part, type=ExtractedValues)
        journal, reading, topics = said.journal, said.reading, said.topics
        for reason, count in said.left_out.items():
            self.left_out[reason] = self.left_out.get(reason, 0) + count
        self.waiting += [
            (time_us, journal, offset, reading, low, high, topics[place], value)
            for place, time_us, offset, value in zip(
                said.places, said.times_us, said.offsets, said.values, strict=True
            )
        ]  # fmt: skip

    def release(self, before_us: int) -> None:
        """Everything from before this instant is here: to those who take it, in order."""
        self.waiting.sort(key=_PLACE)
        stop = bisect_left(self.waiting, before_us, key=_TIME)
        due, self.waiting = self.waiting[:stop], self.waiting[stop:]
        for time_us, _, _, reading, low, high, topic, value in due:
            if isinstance(value, ForwardedMessage):
                for rules in value.rules:
                    self._pass_on(rules, time_us, low, high, topic, value)
                continue
            for number, one in self._takers(reading, topic):
                if low <= number < high:
                    assert isinstance(one, OrderedExpression)
                    one.take(time_us, topic, value)

    def _pass_on(
        self, rules: bytes, time_us: int, low: int, high: int, topic: bytes, message: ForwardedMessage
    ) -> None:
        """To each node once: in the name of the first of its expressions that is concerned."""
        served: list[object] = []
        for number, one in self._takers(rules, topic):
            assert isinstance(one, ForwardingEntry)
            if time_us >= one.since_us and one.forwarding not in served:
                served.append(one.forwarding)
                if low <= number < high:  # else it has had it
                    one.forwarding.add(one.text, time_us, topic, message)

    def _match(self, reading: bytes, topic: bytes) -> list[tuple[int, Taker]]:
        tree = self._trees.get(reading)
        return [] if tree is None else sorted(tree.match(topic), key=_NUMBER)
