"""Aggregates over time: sliding spans, which answer at every value, and periods, which answer at their end."""

from __future__ import annotations

import msgspec

from sterna.operators.aggregates import Aggregate, Removable, aggregate_of
from sterna.operators.expression import Operator
from sterna.operators.settings import OperatorSettings
from sterna.operators.sliding_span import Peaks, SlidingSpan
from sterna.operators.stages import Answering, Counts, Outgrown, Stage


def window_end(time_us: int, anchor_us: int, length_us: int) -> int:
    """When the window ends that this instant lies in; an end belongs to the next window."""
    return time_us + length_us - (time_us - anchor_us) % length_us


def results_of(held: dict[bytes, Aggregate], counts: Counts) -> dict[bytes, float]:
    """Results of a window by key."""
    values: dict[bytes, float] = {}
    for key, aggregate in held.items():
        try:
            answer = aggregate.result()
        except OverflowError:
            counts.not_finite += 1
            continue
        if answer is not None:
            values[key] = answer
    return values


#: Anchor, end of the open window, aggregates by key.
_PeriodState = tuple[int, int, list[tuple[bytes, object]]]


class Sliding(Answering):
    """The values of the last span: those at most, that can still make a difference."""

    __slots__ = ("span_us", "values_max")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> None:
        super().__init__(after, counts)
        self.span_us = operator.span_us
        self.values_max = settings.window_values

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is not None:
            self.forget(time_us - self.span_us)
            self._hold(time_us, value)
            self.tell(time_us)

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        if values:
            self.forget(time_us - self.span_us)
            for value in values.values():
                self._hold(time_us, value)
            self.tell(time_us)

    def _hold(self, time_us: int, value: float) -> None:
        self.hold(time_us, value)
        if self.size() > self.values_max:
            raise Outgrown(f"more than {self.values_max} values in a sliding span")

    def clear(self) -> None:
        """No values are held any more."""
        raise NotImplementedError

    def hold(self, time_us: int, value: float) -> None:
        raise NotImplementedError

    def forget(self, oldest_us: int) -> None:
        """Values that came at this instant or before are no longer held; in a few steps, however many they are."""
        raise NotImplementedError

    def size(self) -> int:
        """Values held."""
        raise NotImplementedError

    def items(self) -> list[tuple[int, float]]:
        """When they came, and what they are, oldest first."""
        raise NotImplementedError

    def state(self) -> bytes:
        return msgspec.msgpack.encode(self.items())

    def resume(self, state: bytes) -> None:
        self.clear()
        for time_us, value in msgspec.msgpack.decode(state, type=list[tuple[int, float]]):
            self.hold(time_us, value)


class SlidingSum(Sliding):
    """TMPCOUNT, TMPSUM, TMPAVG, TMPSTDDEV, TMPMEDIAN."""

    __slots__ = ("operator", "span")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> None:
        super().__init__(after, counts, operator, settings)
        self.operator = operator
        self.clear()

    def clear(self) -> None:
        self.span = SlidingSpan(self._new)

    def _new(self) -> Removable:
        sums = aggregate_of(self.operator)
        assert isinstance(sums, Removable)
        return sums

    def hold(self, time_us: int, value: float) -> None:
        self.span.add(time_us, value)

    def forget(self, oldest_us: int) -> None:
        self.span.forget(oldest_us)

    def size(self) -> int:
        return self.span.size

    def items(self) -> list[tuple[int, float]]:
        return self.span.items()

    def answer(self) -> float | None:
        return self.span.sums.result()


class SlidingGreatest(Sliding):
    """TMPMAX; with a sign of -1, TMPMIN."""

    __slots__ = ("peaks", "sign")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> None:
        super().__init__(after, counts, operator, settings)
        self.sign = 1.0 if operator.aggregate == "MAX" else -1.0
        self.clear()

    def clear(self) -> None:
        #: Of the values times the sign.
        self.peaks = Peaks()

    def hold(self, time_us: int, value: float) -> None:
        self.peaks.add(time_us, value * self.sign)

    def forget(self, oldest_us: int) -> None:
        self.peaks.forget(oldest_us)

    def size(self) -> int:
        return len(self.peaks)

    def items(self) -> list[tuple[int, float]]:
        return [(time_us, value * self.sign) for time_us, value in self.peaks.items()]

    def answer(self) -> float | None:
        greatest = self.peaks.greatest()
        return None if greatest is None else greatest * self.sign


def sliding_of(after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> Sliding:
    if operator.aggregate in ("MIN", "MAX"):
        return SlidingGreatest(after, counts, operator, settings)
    return SlidingSum(after, counts, operator, settings)


class Periodic(Stage):
    """An aggregate per key, of the window that is open.  The engine closes it before time passes its end."""

    __slots__ = ("anchor_us", "buckets", "buckets_max", "end_us", "held", "length_us", "operator", "topics_max")

    def __init__(
        self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings, since_us: int
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
        values = results_of(self.held, self.counts)
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
