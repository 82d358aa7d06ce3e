"""Aggregates by columns are, to the bit, what aggregates of one value after another are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sterna.operators.aggregates import aggregate_of
from sterna.operators.exact_sum import NUMBER_MAX
from sterna.operators.grammar import parse
from sterna.operators.payload_values import number_of
from sterna.pipeline.expressions.columnar_aggregates import ColumnarAggregates, numbers_of

KINDS = ("AVG", "SUM", "MIN", "MAX", "COUNT", "STDDEV", "MEDIAN")
HALF_MAX = NUMBER_MAX / 2
VALUES = st.one_of(
    st.floats(-HALF_MAX, HALF_MAX),
    st.floats(-1e-20, 1e-20),  # of which something may be cut off
    st.floats(-1e3, 1e3),
    st.integers(-(10**6), 10**6).map(float),
).map(lambda value: value + 0.0)


@pytest.mark.parametrize("kind", KINDS)
@given(groups=st.lists(st.lists(VALUES, min_size=1, max_size=20), min_size=1, max_size=8))
@example(groups=[[1e-12, 1e12, -1e-13, 1e13, 0.0], [2.0**-128, -(2.0**-129), 5e-324], [2.0**126, -(2.0**-75)]])
def test_a_column_is_aggregated_as_its_values_are(kind: str, groups: list[list[float]]) -> None:
    operator = parse(f"$HOURLY{kind}/t".encode()).operators[0]
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    wire = ColumnarAggregates(np.array([value for group in groups for value in group]), starts).wires(operator)
    for number, group in enumerate(groups):
        aggregate = aggregate_of(operator)
        aggregate.add_all(group)
        found, expected = wire(number), aggregate.to_wire()
        assert found == expected
        assert repr(found) == repr(expected), "of one kind, too: MessagePack tells 1 from 1.0"


NUMERIC = st.one_of(
    st.floats().map(lambda value: repr(value).encode()),
    st.integers(-(10**30), 10**30).map(lambda value: str(value).encode()),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda value: str(value).encode()),
    st.from_regex(rb"\A[-+]?[0-9]{0,70}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?\Z"),
)
ODD = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([b" 1", b"1\n", b"1_0", b"nan", b"-inf", b"infinity", b"0x10", b"+1", b"-0", b"1e400", b"", b"1."]),
)


@given(st.lists(NUMERIC, max_size=6), st.lists(ODD, max_size=2))
def test_payloads_say_what_they_say_one_by_one(numeric: list[bytes], odd: list[bytes]) -> None:
    """Those that Arrow can read itself, and among others."""
    for payloads in (numeric, odd, numeric + odd, *([one] for one in numeric + odd)):
        found = numbers_of(pa.array(payloads, pa.binary())).tolist()
        assert [None if value != value else value for value in found] == [number_of(one) for one in payloads]
        assert "-0.0" not in map(repr, found)
