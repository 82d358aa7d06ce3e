"""Expressions that take values one after the other, from journals that are each read for themselves.

What every node has taken in up to an instant can be put in order: by time, and what is of the same time by journal and
offset.  So values wait (`Line`) until that instant is over everywhere, and then go through the engine that nodes have.
The order, and with it every answer, follows from the journals alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter

import msgspec

from sterna.mqtt.topics import FilterTree
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.pipeline.matching import TOPICS_KNOWN_MAX
from sterna.pipeline.picking import Reading, Said
from sterna.pipeline.registry import Entry

Waiting = tuple[int, str, int, bytes, int, int, bytes, float | None]
"""Time, journal, offset, reading, first number of an entry it is for and the one behind the last, topic, value."""

_PLACE = itemgetter(0, 1, 2)
_TIME = itemgetter(0)


class InOrder:
    """One expression."""

    def __init__(self, entry: Entry) -> None:
        self.engine = Engine(entry.expression, entry.settings, entry.since_us)
        self.reading = Reading(entry).name
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


class Line:
    """Where values wait for their turn."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self._trees: dict[bytes, FilterTree[int, tuple[int, InOrder]]] = {}
        self._known: dict[tuple[bytes, bytes], list[tuple[int, InOrder]]] = {}

    def go_by(self, takers: Iterable[tuple[int, InOrder]]) -> None:
        """These there are now, by their numbers."""
        self._trees, self._known = {}, {}
        for number, one in takers:
            tree = self._trees.setdefault(one.reading, FilterTree())
            tree.add(one.topic_filter, number, (number, one))

    def join(self, part: bytes, low: int, high: int) -> None:
        """What a task has picked, for entries from one number up to and without another.  May raise DecodeError."""
        said = msgspec.msgpack.decode(part, type=Said)
        journal, reading, topics = said.journal, said.reading, said.topics
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
            for number, one in self._takers(reading, topic):
                if low <= number < high:
                    one.take(time_us, topic, value)

    def _takers(self, reading: bytes, topic: bytes) -> list[tuple[int, InOrder]]:
        known = self._known.get((reading, topic))
        if known is None:
            if len(self._known) >= TOPICS_KNOWN_MAX:
                self._known.clear()
            tree = self._trees.get(reading)
            known = self._known[reading, topic] = [] if tree is None else tree.match(topic)
        return known
