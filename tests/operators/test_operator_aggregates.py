"""Aggregates are exact, and parts merged in any order are the whole."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.operators import reference
from sterna.operators.aggregates import Aggregate, Deviation, Last, Removable, aggregate_of, from_wire
from sterna.operators.errors import StateError
from sterna.operators.expression import Operator
from sterna.operators.grammar import parse
from sterna.operators.sketch import Sketch, bucket_of, middle_of

NAMES = ["COUNT", "SUM", "AVG", "STDDEV", "MIN", "MAX", "MEDIAN", "QUANTILE;0.9"]
numbers = st.floats(-(2.0**126), 2.0**126).map(lambda number: number + 0.0)


def operator_of(name: str) -> Operator:
    return parse(f"${name}/t".encode()).operators[0]


def of(name: str, values: list[float]) -> Aggregate:
    aggregate = aggregate_of(operator_of(name))
    for value in values:
        aggregate.add(value)
    return aggregate


def travelled(name: str, aggregate: Aggregate) -> Aggregate:
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(aggregate.to_wire()))
    return from_wire(operator_of(name), wire)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.lists(numbers, max_size=5), min_size=1, max_size=5), st.randoms())
def test_parts_merged_in_any_order_are_the_whole(name: str, parts: list[list[float]], dice: random.Random) -> None:
    whole = of(name, [value for part in parts for value in part])
    dice.shuffle(parts)
    merged = of(name, [])
    for part in parts:
        merged.merge(travelled(name, of(name, part)))
    assert merged.to_wire() == whole.to_wire()
    assert merged.result() == whole.result()
    assert merged.result() == reference.aggregate(operator_of(name), [value for part in parts for value in part])


@pytest.mark.parametrize("name", ["COUNT", "SUM", "AVG", "STDDEV", "MEDIAN", "QUANTILE;0.9"])
@given(st.lists(numbers, max_size=6), st.lists(numbers, max_size=6))
def test_what_was_added_can_be_taken_out_without_a_trace(name: str, kept: list[float], passing: list[float]) -> None:
    aggregate = of(name, [*passing, *kept])
    assert isinstance(aggregate, Removable)
    for value in passing:
        aggregate.remove(value)
    assert aggregate.to_wire() == of(name, kept).to_wire()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b"]), st.integers(0, 2)), max_size=6), st.randoms()
)
def test_the_newest_of_parts_is_the_newest_of_all(said: list[tuple[int, bytes, int]], dice: random.Random) -> None:
    parts = []
    for time_us, topic, value in said:
        parts.append(Last())
        parts[-1].add_at(time_us, topic, float(value))
    dice.shuffle(parts)
    merged = Last()
    for part in parts:
        merged.merge(travelled("LAST", part))
    newest = min(((-time_us, topic, value) for time_us, topic, value in said), default=None)
    assert merged.result() == (None if newest is None else newest[2])


def test_ten_tenths_are_the_double_nearest_to_ten_times_the_double_tenth() -> None:
    assert sum([0.1] * 10) != 1.0
    assert of("SUM", [0.1] * 10).result() == float(Fraction(0.1) * 10) == 1.0
    assert of("AVG", [0.1] * 10).result() == 0.1
    assert of("STDDEV", [0.1] * 10).result() == 0.0


def test_huge_values_do_not_swallow_tiny_ones() -> None:
    assert of("SUM", [1e30, 1e-20, -1e30]).result() == 1e-20
    assert of("AVG", [2.0**126, 1.0, -(2.0**126), 2.0]).result() == 0.75
    assert of("STDDEV", [1e15, 1e15 + 1, 1e15 + 2]).result() == math.sqrt(2 / 3)


def test_what_is_finer_than_the_grid_is_cut_off() -> None:
    assert of("SUM", [2.0**-128]).result() == 2.0**-128
    assert of("SUM", [2.0**-129] * 4).result() == 0.0
    assert of("MAX", [2.0**-129]).result() == 2.0**-129


def test_an_answer_beyond_all_doubles_is_an_overflow_not_an_infinity() -> None:
    deviation = Deviation()
    deviation.add(1e200)
    deviation.add(-1e200)
    with pytest.raises(OverflowError):
        deviation.result()


@pytest.mark.parametrize("name", [*NAMES, "LAST"])
@pytest.mark.parametrize(
    "wire", [[], [-1], [1, 2], "x", [1, b"a", 3.0], -5, [[5]], {}, [[1, 0]], [[10**9, 1]], math.nan]
)
def test_a_part_that_nobody_made_is_refused(name: str, wire: object) -> None:
    possible = {("MEDIAN", "[]"), ("QUANTILE;0.9", "[]"), ("LAST", "[1, b'a', 3.0]"), ("MIN", "-5"), ("MAX", "-5")}
    if (name, repr(wire)) in possible:
        assert from_wire(operator_of(name), wire).to_wire() is not None
        return
    with pytest.raises(StateError):
        from_wire(operator_of(name), wire)


def test_squares_that_no_values_have_are_refused() -> None:
    with pytest.raises(StateError):
        from_wire(operator_of("STDDEV"), [1, b"\x05", b"\x01"])


@given(st.floats(1e-12, 1e12), st.sampled_from([1, -1]))
def test_a_bucket_is_within_one_percent_of_every_value_in_it(magnitude: float, sign: int) -> None:
    value = magnitude * sign
    assert abs(middle_of(bucket_of(value)) - value) <= abs(value) / 128
    assert middle_of(bucket_of(value)) == reference.bucketed(value)


@given(numbers, numbers)
def test_buckets_keep_the_order_of_values(one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert bucket_of(low) <= bucket_of(high)


def test_a_sketch_has_a_bounded_number_of_buckets() -> None:
    assert 0 < bucket_of(1e-30) == bucket_of(1e-12)
    assert bucket_of(1e30) == bucket_of(1e12)
    assert (bucket_of(1e12) - bucket_of(1e-12) + 1) * 2 + 1 <= 10_241
    dice = random.Random(7)
    sketch = Sketch()
    for _ in range(2_000):
        sketch.add(bucket_of(dice.lognormvariate(0, 1)), 1)
    assert len(sketch.buckets) < 600


def test_quantiles_of_many_values_are_within_one_percent() -> None:
    dice = random.Random(3)
    values = sorted(dice.lognormvariate(0, 2) for _ in range(3_000))
    aggregate = of("QUANTILE;0.9", values)
    result = aggregate.result()
    assert result is not None
    assert abs(result - values[2_699]) <= values[2_699] / 100
