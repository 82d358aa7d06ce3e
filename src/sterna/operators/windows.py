"""Aggregates over time: sliding spans, which answer at every value, and periods, which answer at their end."""

from __future__ import annotations

from collections import deque

import msgspec

from sterna.operators.aggregates import Aggregate, Removable, aggregate_of
from sterna.operators.expression import Operator
from sterna.operators.settings import Settings
from sterna.operators.stages import Answering, Counts, Outgrown, Stage


def window_end(time_us: int, anchor_us: int, length_us: int) -> int:
    """When the window ends that this instant lies in; an end belongs to the next window."""
    return time_us + length_us - (time_us - anchor_us) % length_us


#: Anchor, end of the open window, aggregates by key.
_PeriodState = tuple[int, int, list[tuple[bytes, object]]]


class Sliding(Answering):
    """The values of the last span, oldest first: those at most, that can still make a difference."""

    __slots__ = ("held", "span_us", "values_max")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: Settings) -> None:
        super().__init__(after, counts)
        self.span_us = operator.span_us
        self.values_max = settings.window_values
        self.held: deque[tuple[int, float]] = deque()

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is not None:
            self._forget(time_us)
            self._hold(time_us, value)
            self.tell(time_us)

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        if values:
            self._forget(time_us)
            for value in values.values():
                self._hold(time_us, value)
            self.tell(time_us)

    def _forget(self, time_us: int) -> None:
        held, oldest_us = self.held, time_us - self.span_us
        while held and held[0][0] <= oldest_us:
            self.left(held.popleft()[1])

    def _hold(self, time_us: int, value: float) -> None:
        self.came(value)
        if len(self.held) >= self.values_max:
            raise Outgrown(f"more than {self.values_max} values in a sliding span")
        self.held.append((time_us, value))

    def clear(self) -> None:
        """No values are held any more."""
        raise NotImplementedError

    def came(self, value: float) -> None:
        """A value is about to be held."""
        raise NotImplementedError

    def left(self, value: float) -> None:
        """A value is no longer held."""
        raise NotImplementedError

    def state(self) -> bytes:
        return msgspec.msgpack.encode(list(self.held))

    def resume(self, state: bytes) -> None:
        self.held = deque()
        self.clear()
        for time_us, value in msgspec.msgpack.decode(state, type=list[tuple[int, float]]):
            self.came(value)
            self.held.append((time_us, value))


class SlidingSum(Sliding):
    """TMPCOUNT, TMPSUM, TMPAVG, TMPSTDDEV, TMPMEDIAN."""

    __slots__ = ("operator", "sums")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: Settings) -> None:
        super().__init__(after, counts, operator, settings)
        self.operator = operator
        self.clear()

    def clear(self) -> None:
        sums = aggregate_of(self.operator)
        assert isinstance(sums, Removable)
        #: Of all values that are held.
        self.sums: Removable = sums

    def came(self, value: float) -> None:
        self.sums.add(value)

    def left(self, value: float) -> None:
        self.sums.remove(value)

    def answer(self) -> float | None:
        return self.sums.result()


class SlidingGreatest(Sliding):
    """TMPMAX; with a sign of -1, TMPMIN.  Values only fall along `held`: the first is the greatest."""

    __slots__ = ("sign",)

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: Settings) -> None:
        super().__init__(after, counts, operator, settings)
        self.sign = 1.0 if operator.aggregate == "MAX" else -1.0

    def clear(self) -> None:
        pass

    def came(self, value: float) -> None:
        # Whatever came before and is not greater will never be the greatest again.
        held, sign = self.held, self.sign
        while held and held[-1][1] * sign <= value * sign:
            held.pop()

    def left(self, value: float) -> None:
        pass

    def answer(self) -> float | None:
        return self.held[0][1] if self.held else None


def sliding_of(after: Stage, counts: Counts, operator: Operator, settings: Settings) -> Sliding:
    if operator.aggregate in ("MIN", "MAX"):
        return SlidingGreatest(after, counts, operator, settings)
    return SlidingSum(after, counts, operator, settings)


class Periodic(Stage):
    """An aggregate per key, of the window that is open.  The engine closes it before time passes its end."""

    __slots__ = ("anchor_us", "buckets", "buckets_max", "end_us", "held", "length_us", "operator", "topics_max")

    def __init__(
        self, after: Stage, counts: Counts, operator: Operator, settings: Settings, since_us: int
    ) -> None:  # fmt: skip
        super().__init__(after, counts)
        self.operator = operator
        self.length_us = settings.period_us(operator.period)
        self.anchor_us = since_us if settings.anchor == "subscription" else 0
        self.topics_max = settings.topics
        self.buckets_max = settings.buckets
        #: Buckets of all sketches together.
        self.buckets = 0
        self.held: dict[bytes, Aggregate] = {}
        #: Of the window that the values in `held` are of.
        self.end_us = 0

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is None:
            return
        if not self.held:
            self.end_us = window_end(time_us, self.anchor_us, self.length_us)
        aggregate = self.held.get(key)
        if aggregate is None:
            if len(self.held) >= self.topics_max:
                raise Outgrown(f"more than {self.topics_max} topics")
            aggregate = self.held[key] = aggregate_of(self.operator)
        before = aggregate.buckets()
        aggregate.add(value)
        self.buckets += aggregate.buckets() - before
        if self.buckets > self.buckets_max:
            raise Outgrown(f"more than {self.buckets_max} buckets of quantiles")

    def put(self, end_us: int, held: dict[bytes, Aggregate]) -> None:
        """This is the window that is open: it was computed in parts, see `parts`."""
        if len(held) > self.topics_max:
            raise Outgrown(f"more than {self.topics_max} topics")
        self.buckets = sum([aggregate.buckets() for aggregate in held.values()])
        if self.buckets > self.buckets_max:
            raise Outgrown(f"more than {self.buckets_max} buckets of quantiles")
        self.held, self.end_us = held, end_us

    def close(self) -> None:
        """The window has ended: say what was in it."""
        assert self.after is not None
        values: dict[bytes, float] = {}
        for key, aggregate in self.held.items():
            try:
                answer = aggregate.result()
            except OverflowError:
                self.counts.not_finite += 1
                continue
            if answer is not None:
                values[key] = answer
        self.held = {}
        self.buckets = 0
        self.after.replace(self.end_us, values)

    def state(self) -> bytes:
        held = [(key, aggregate.to_wire()) for key, aggregate in self.held.items()]
        return msgspec.msgpack.encode((self.anchor_us, self.end_us, held))

    def resume(self, state: bytes) -> None:
        self.anchor_us, self.end_us, held = msgspec.msgpack.decode(state, type=_PeriodState)
        self.held = {}
        self.buckets = 0
        for key, wire in held:
            aggregate = self.held[key] = aggregate_of(self.operator)
            aggregate.load(wire)
            self.buckets += aggregate.buckets()
