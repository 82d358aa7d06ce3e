"""Aggregates that can be merged: the merged aggregate of several places is that of all their values together.

`merge` is commutative and associative to the bit.  It is meant for disjoint parts: different topics, or different
messages.  Values can be removed again (`remove`) where that is exact.  The greatest and the newest of the remaining
values cannot be known from the greatest and the newest.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated

import msgspec

from sterna.operators import exact_sum
from sterna.operators.errors import StateError
from sterna.operators.exact_sum import BITS, ratio, to_exact
from sterna.operators.expression import Operator
from sterna.operators.sketch import Sketch, bucket_of

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Double = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class Aggregate:
    """The aggregate of no values, until some are added."""

    __slots__ = ()

    def add(self, value: float) -> None:
        raise NotImplementedError

    def add_all(self, values: list[float]) -> None:
        for value in values:
            self.add(value)

    def merge(self, other: Aggregate) -> None:
        raise NotImplementedError

    def result(self) -> float | None:
        """None of no values; OverflowError if the answer is beyond what a double can say."""
        raise NotImplementedError

    def to_wire(self) -> object:
        """Lists, bytes, integers and doubles, as MessagePack takes them."""
        raise NotImplementedError

    def load(self, wire: object) -> None:
        """Become what `to_wire` gave; ValidationError if it never gave that."""
        raise NotImplementedError

    def buckets(self) -> int:
        """Its size, for those that grow."""
        return 0


class Removable(Aggregate):
    __slots__ = ()

    def remove(self, value: float) -> None:
        """Take out a value that was added."""
        raise NotImplementedError

    def take_out(self, other: Aggregate) -> None:
        """Take out all values of another one, which were added or merged."""
        raise NotImplementedError


class Count(Removable):
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1

    def add_all(self, values: list[float]) -> None:
        self.count += len(values)

    def remove(self, value: float) -> None:
        self.count -= 1

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Count)
        self.count += other.count

    def take_out(self, other: Aggregate) -> None:
        assert isinstance(other, Count)
        self.count -= other.count

    def result(self) -> float | None:
        return float(self.count)

    def to_wire(self) -> object:
        return self.count

    def load(self, wire: object) -> None:
        self.count = msgspec.convert(wire, _Natural)


class Sum(Removable):
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += to_exact(value)

    def remove(self, value: float) -> None:
        self.count -= 1
        self.total -= to_exact(value)

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Sum)
        self.count += other.count
        self.total += other.total

    def take_out(self, other: Aggregate) -> None:
        assert isinstance(other, Sum)
        self.count -= other.count
        self.total -= other.total

    def result(self) -> float | None:
        return ratio(self.total, 1 << BITS) if self.count else None

    def to_wire(self) -> object:
        return [self.count, exact_sum.to_wire(self.total)]

    def load(self, wire: object) -> None:
        self.count, total = msgspec.convert(wire, tuple[_Natural, bytes])
        self.total = exact_sum.from_wire(total)


class Mean(Sum):
    __slots__ = ()

    def result(self) -> float | None:
        return ratio(self.total, self.count << BITS) if self.count else None


class Deviation(Removable):
    """The standard deviation of these values (not an estimate from a sample): the root of the rounded variance."""

    __slots__ = ("count", "squares", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.squares = 0

    def add(self, value: float) -> None:
        number = to_exact(value)
        self.count += 1
        self.total += number
        self.squares += number * number

    def remove(self, value: float) -> None:
        number = to_exact(value)
        self.count -= 1
        self.total -= number
        self.squares -= number * number

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Deviation)
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    def take_out(self, other: Aggregate) -> None:
        assert isinstance(other, Deviation)
        self.count -= other.count
        self.total -= other.total
        self.squares -= other.squares

    def result(self) -> float | None:
        if not self.count:
            return None
        variance = ratio(self.count * self.squares - self.total * self.total, (self.count * self.count) << (2 * BITS))
        return math.sqrt(variance)

    def to_wire(self) -> object:
        return [self.count, exact_sum.to_wire(self.total), exact_sum.to_wire(self.squares)]

    def load(self, wire: object) -> None:
        self.count, total, squares = msgspec.convert(wire, tuple[_Natural, bytes, bytes])
        self.total, self.squares = exact_sum.from_wire(total), exact_sum.from_wire(squares)
        if self.count * self.squares < self.total * self.total:
            raise msgspec.ValidationError("squares that no values have")


class Quantile(Removable):
    __slots__ = ("denominator", "numerator", "sketch")

    def __init__(self, numerator: int, denominator: int) -> None:
        self.numerator = numerator
        self.denominator = denominator
        self.sketch = Sketch()

    def add(self, value: float) -> None:
        self.sketch.add(bucket_of(value), 1)

    def remove(self, value: float) -> None:
        self.sketch.add(bucket_of(value), -1)

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Quantile)
        self.sketch.merge(other.sketch)

    def take_out(self, other: Aggregate) -> None:
        assert isinstance(other, Quantile)
        self.sketch.take_out(other.sketch)

    def result(self) -> float | None:
        return self.sketch.value_at(self.numerator, self.denominator)

    def to_wire(self) -> object:
        return self.sketch.to_wire()

    def load(self, wire: object) -> None:
        self.sketch = Sketch.from_wire(wire)

    def buckets(self) -> int:
        return len(self.sketch.buckets)


class Greatest(Aggregate):
    """MAX; with a sign of -1, MIN."""

    __slots__ = ("sign", "value")

    def __init__(self, sign: float) -> None:
        self.sign = sign
        self.value: float | None = None

    def add(self, value: float) -> None:
        if self.value is None or value * self.sign > self.value * self.sign:
            self.value = value

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Greatest)
        if other.value is not None:
            self.add(other.value)

    def result(self) -> float | None:
        return self.value

    def to_wire(self) -> object:
        return self.value

    def load(self, wire: object) -> None:
        self.value = msgspec.convert(wire, _Double | None)


class Last(Aggregate):
    """The newest value; of several of one instant, the one whose topic comes first."""

    __slots__ = ("time_us", "topic", "value")

    def __init__(self) -> None:
        self.time_us = 0
        self.topic = b""
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.add_at(0, b"", value)

    def add_at(self, time_us: int, topic: bytes, value: float) -> None:
        if self.value is None or (-time_us, topic, value) < (-self.time_us, self.topic, self.value):
            self.time_us, self.topic, self.value = time_us, topic, value

    def merge(self, other: Aggregate) -> None:
        assert isinstance(other, Last)
        if other.value is not None:
            self.add_at(other.time_us, other.topic, other.value)

    def result(self) -> float | None:
        return self.value

    def to_wire(self) -> object:
        return None if self.value is None else [self.time_us, self.topic, self.value]

    def load(self, wire: object) -> None:
        if wire is not None:
            self.time_us, self.topic, self.value = msgspec.convert(wire, tuple[int, bytes, _Double])


def aggregate_of(operator: Operator) -> Aggregate:
    """An empty aggregate of the kind an operator computes."""
    kind = operator.aggregate
    if kind == "COUNT":
        return Count()
    if kind == "SUM":
        return Sum()
    if kind == "AVG":
        return Mean()
    if kind == "STDDEV":
        return Deviation()
    if kind == "LAST":
        return Last()
    if kind in ("MIN", "MAX"):
        return Greatest(1.0 if kind == "MAX" else -1.0)
    assert kind in ("MEDIAN", "QUANTILE")
    return Quantile(operator.quantile.numerator, operator.quantile.denominator)


def from_wire(operator: Operator, wire: object) -> Aggregate:
    """The aggregate that another place computed of this operator; StateError if it cannot be that."""
    aggregate = aggregate_of(operator)
    try:
        aggregate.load(wire)
    except msgspec.ValidationError as error:
        raise StateError(f"not a partial result of {operator.text}: {error}") from None
    return aggregate
