"""Computes an expression with a period from parts: where its messages are, and where the parts meet.

The operators inside the period can be computed at any place and in any order: a `PartialWindows` holds, per window and
key, an aggregate of the messages it was given.  A `MergedWindows` merges these parts.  When a window has ended, it
gives the result of an engine that took all messages in the order of their times; a part that comes after its window's
end counts in the window that is open then.  `division` says how the messages of an expression may be divided among
places.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from sterna.operators.aggregates import Aggregate, aggregate_of, from_wire
from sterna.operators.engine import Engine, stage_of
from sterna.operators.errors import StateError
from sterna.operators.expression import Expression, Family, Operator
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings
from sterna.operators.sources import Source, source_of
from sterna.operators.stages import Counts, Stage
from sterna.operators.windows import window_end

_Held = dict[bytes, Aggregate]
_Wire = list[tuple[bytes, object]]
#: Engine, instant up to which windows are closed, open windows.
_State = tuple[bytes, int, list[tuple[int, bytes]]]


class Division(Enum):
    """How messages may be dealt out to several places, which Spark calls tasks; the value is how a plan says it."""

    BY_MESSAGE = "every task makes parts of what it reads, then of whole windows; only windows meet in one task"
    BY_TOPIC = "topics are dealt out to the tasks, in order, then windows; only windows meet in one task"
    NONE = "all messages go through one task, in order"


def division(expression: Expression) -> Division:
    families = [operator.family for operator in expression.operators]
    if Family.PERIODIC not in families:
        return Division.NONE
    inside = set(families[families.index(Family.PERIODIC) + 1 :])
    if inside & {Family.SPATIAL, Family.SLIDING, Family.FUNCTION}:  # numbers of functions come when they come
        return Division.NONE
    return Division.BY_TOPIC if Family.CHANGE in inside else Division.BY_MESSAGE


class WindowAggregates(Stage):
    """The innermost aggregate of every window, per key; what comes last in a part."""

    __slots__ = ("anchor_us", "length_us", "operator", "settings", "windows")

    def __init__(self, counts: Counts, operator: Operator, settings: OperatorSettings, since_us: int) -> None:
        super().__init__(None, counts)
        self.operator = operator
        self.length_us = settings.period_us(operator.period)
        self.anchor_us = since_us if settings.anchor == "subscription" else 0
        self.settings = settings
        self.windows: dict[int, _Window] = {}

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is not None:
            end_us = window_end(time_us, self.anchor_us, self.length_us)
            window = self.windows.get(end_us)
            if window is None:
                window = self.windows[end_us] = _Window()
            aggregate = window.aggregate(key, self.operator, self.settings)
            if aggregate is not None:
                before = aggregate.buckets()
                aggregate.add(value)
                window.buckets += aggregate.buckets() - before

    def merge(self, end_us: int, parts: _Wire) -> None:
        window = self.windows.get(end_us)
        if window is None:
            window = self.windows[end_us] = _Window()
        for key, wire in parts:
            part = from_wire(self.operator, wire)
            aggregate = window.aggregate(key, self.operator, self.settings)
            if aggregate is not None:
                before = aggregate.buckets()
                aggregate.merge(part)
                window.buckets += aggregate.buckets() - before


class _Window:
    """Of one window, by key; of more than may be there just enough to be seen to be too much."""

    __slots__ = ("buckets", "held")

    def __init__(self) -> None:
        self.held: _Held = {}
        self.buckets = 0

    def aggregate(self, key: bytes, operator: Operator, settings: OperatorSettings) -> Aggregate | None:
        found = self.held.get(key)
        if self.buckets > settings.buckets or (found is None and len(self.held) > settings.topics):
            return None
        if found is None:
            found = self.held[key] = aggregate_of(operator)
        return found

    def to_wire(self) -> bytes:
        return msgspec.msgpack.encode([(key, aggregate.to_wire()) for key, aggregate in self.held.items()])


def _periodic(expression: Expression) -> Operator:
    periodic = expression.periodic
    assert periodic is not None, "only what stands inside a period is computed in parts"
    return periodic


class Collected(Stage):
    """Values that came as far as the innermost aggregate."""

    __slots__ = ("times", "values")

    def __init__(self, counts: Counts) -> None:
        super().__init__(None, counts)
        self.times: list[int] = []
        self.values: list[float] = []

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is not None:
            self.times.append(time_us)
            self.values.append(value)


def _inside(expression: Expression, after: Stage, settings: OperatorSettings, functions: Functions) -> Source:
    """The stages between the messages and the innermost aggregate."""
    periodic = _periodic(expression)
    for operator in expression.operators[expression.operators.index(periodic) + 1 :]:
        stage = stage_of(operator, after, after.counts, settings, 0)
        if stage is None:
            break
        after = stage
    return source_of(expression, after, settings, functions)


class InnerValues:
    """The aggregated values of a topic's messages, where each can be looked at by itself."""

    def __init__(self, expression: Expression, settings: OperatorSettings) -> None:
        self._end = Collected(Counts())
        self._source = _inside(expression, self._end, settings, NO_FUNCTIONS)

    def values(self, topic: bytes, payloads: list[bytes], times: list[int]) -> tuple[list[int], list[float]]:
        """Times and values, of the messages that have one."""
        end, source = self._end, self._source
        end.times, end.values = [], []
        for place in range(len(times)):
            source.take(times[place], topic, payloads[place])
        return end.times, end.values


class PartialWindows:
    """Where messages are.  Those before the subscription do not count."""

    def __init__(
        self, expression: Expression, settings: OperatorSettings, since_us: int, functions: Functions = NO_FUNCTIONS
    ) -> None:
        self.counts = Counts()
        self.since_us = since_us
        self._ends = WindowAggregates(self.counts, _periodic(expression), settings, since_us)
        self._source = _inside(expression, self._ends, settings, functions)

    def message(self, topic: bytes, payload: bytes, time_us: int) -> None:
        if time_us >= self.since_us and not self._source.take(time_us, topic, payload):
            self.counts.ignored += 1

    @property
    def size(self) -> int:
        """Aggregates held."""
        return sum(len(window.held) for window in self._ends.windows.values())

    def take(self) -> list[tuple[int, bytes]]:
        """Windows with news since the last time: (end of the window, what `MergedWindows.merge` takes)."""
        windows, self._ends.windows = self._ends.windows, {}
        return [(end_us, window.to_wire()) for end_us, window in sorted(windows.items())]


class JoinedParts:
    """On the way: parts of the same window become one.  The rest of the expression is for `MergedWindows`."""

    def __init__(self, expression: Expression, settings: OperatorSettings, since_us: int) -> None:
        self._ends = WindowAggregates(Counts(), _periodic(expression), settings, since_us)

    def merge(self, end_us: int, part: bytes) -> None:
        """May raise StateError."""
        self._ends.merge(end_us, _from_wire(part))

    def take(self) -> list[tuple[int, bytes]]:
        windows, self._ends.windows = self._ends.windows, {}
        return [(end_us, window.to_wire()) for end_us, window in sorted(windows.items())]


def _from_wire(part: bytes) -> _Wire:
    try:
        return msgspec.msgpack.decode(part, type=_Wire)
    except msgspec.DecodeError as error:
        raise StateError(f"a damaged part: {error}") from None


class MergedWindows:
    """Where parts meet."""

    def __init__(self, expression: Expression, settings: OperatorSettings, since_us: int) -> None:
        self.engine = Engine(expression, settings, since_us)
        self._ends = WindowAggregates(self.engine.counts, _periodic(expression), settings, since_us)
        #: Windows that ended by then are closed.
        self.now_us = since_us

    def merge(self, end_us: int, part: bytes) -> None:
        """May raise StateError."""
        ends = self._ends
        if end_us <= self.now_us:
            self.engine.counts.clamped += 1
            end_us = window_end(self.now_us, ends.anchor_us, ends.length_us)
        ends.merge(end_us, _from_wire(part))

    def advance(self, time_us: int) -> Iterator[tuple[int, bytes]]:
        """It is that late everywhere: (end of the window, payload to publish) of the windows that have ended."""
        self.now_us = max(self.now_us, time_us)
        windows = self._ends.windows
        for end_us in sorted(end_us for end_us in windows if end_us <= self.now_us):
            payload = self.engine.window(end_us, windows.pop(end_us).held)
            if payload is not None:
                yield end_us, payload

    def snapshot(self) -> bytes:
        windows = [(end_us, window.to_wire()) for end_us, window in self._ends.windows.items()]
        return msgspec.msgpack.encode((self.engine.snapshot(), self.now_us, windows))

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        try:
            engine, now_us, windows = msgspec.msgpack.decode(snapshot, type=_State)
        except msgspec.DecodeError as error:
            raise StateError(f"a damaged state: {error}") from None
        self.engine.restore(engine)
        for end_us, part in windows:
            self.merge(end_us, part)
        self.now_us = now_us
