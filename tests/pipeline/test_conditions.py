"""Conditions: a task keeps exactly the rows that SQL would, and nodes are told nothing that would cost one of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sterna.journal.filter_set import FilterSet
from sterna.pipeline import conditions as on
from sterna.pipeline.conditions import AskedOfNodes, Condition, asked_of_nodes, rows_that_hold
from sterna.pipeline.source.pushed_filters import are_asked_for, divided
from sterna.pipeline.table import COLUMNS, schema_of

_TOPICS = ["a/b", "a/b/c", "a", "/a", "$SYS/a", "b/c", "a/bb", "plant/1/t"]
_COLUMNS = ("topic", "publisher", "qos", "ingress_time", "content_type")
_ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(_TOPICS),
        "publisher": st.sampled_from(["p", "q"]),
        "qos": st.integers(0, 2),
        "ingress_time": st.integers(0, 9),
        "content_type": st.sampled_from(["text", None]),
    }
)
_TEXTS = st.sampled_from([*_TOPICS, "a/", "", "/", "b", "a/+", "#", "plant/"])
_ON_TOPIC = st.builds(
    lambda test, texts, negated: Condition("topic", test, tuple(texts if test == on.IN else texts[:1]), negated),
    st.sampled_from([on.IN, on.STARTS, on.ENDS, on.CONTAINS, on.LESS, on.FROM]),
    st.lists(_TEXTS, min_size=1, max_size=3),
    st.booleans(),
)
_COMPARISONS = st.sampled_from([on.LESS, on.UP_TO, on.GREATER, on.FROM, on.IN])
_OTHERS = st.one_of(
    st.builds(lambda test, at: Condition("ingress_time", test, (at,)), _COMPARISONS, st.integers(0, 9)),
    st.builds(lambda test, level: Condition("qos", test, (level,)), _COMPARISONS, st.integers(0, 3)),
    st.builds(
        lambda who, negated: Condition("publisher", on.IN, (who,), negated), st.sampled_from("pqr"), st.booleans()
    ),
    st.just(Condition("content_type", on.NOT_NULL)),
    st.builds(lambda negated: Condition("content_type", on.IN, ("text",), negated), st.booleans()),
)


def _python(condition: Condition, row: dict[str, Any]) -> bool:
    """As SQL has it."""
    value, other = row[condition.column], condition.values[0] if condition.values else None
    if value is None:
        return False
    tests: dict[str, Callable[[], bool]] = {
        on.IN: lambda: value in condition.values,
        on.NOT_NULL: lambda: True,
        on.LESS: lambda: value < other,
        on.UP_TO: lambda: value <= other,
        on.GREATER: lambda: value > other,
        on.FROM: lambda: value >= other,
        on.STARTS: lambda: value.startswith(other),
        on.ENDS: lambda: value.endswith(other),
        on.CONTAINS: lambda: other in value,
    }
    return tests[condition.test]() != condition.negated


def _is_sent(asked: AskedOfNodes, row: dict[str, Any]) -> bool:
    return (
        (asked.filters is None or row["topic"].encode() in FilterSet(one.encode() for one in asked.filters))
        and (asked.since_us is None or row["ingress_time"] >= asked.since_us)
        and (asked.until_us is None or row["ingress_time"] < asked.until_us)
        and (asked.publishers is None or row["publisher"] in asked.publishers)
        and (asked.qos is None or row["qos"] in asked.qos)
    )


@given(
    st.lists(_ROW, max_size=20),
    st.lists(_ON_TOPIC | _OTHERS, max_size=4),
    st.sampled_from([(), ("a/#",), ("+/b", "a")]),
)
def test_tasks_keep_what_sql_would_and_nodes_send_no_less(
    rows: list[dict[str, Any]], conditions: list[Condition], topics: tuple[str, ...]
) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema_of(_COLUMNS))
    wanted = [row for row in rows if all(_python(one, row) for one in conditions)]
    kept = rows_that_hold(batch, conditions)
    assert kept.equals(pa.RecordBatch.from_pylist(wanted, schema_of(_COLUMNS)))
    of_topics = FilterSet(one.encode() for one in topics or ("#", "$SYS/#"))
    asked = asked_of_nodes(topics, conditions)
    assert all(_is_sent(asked, row) for row in wanted if row["topic"].encode() in of_topics)
    assert not asked.is_nothing or not [row for row in wanted if row["topic"].encode() in of_topics]


def test_nodes_are_told_as_much_as_they_understand() -> None:
    conditions = [
        Condition("topic", on.STARTS, ("plant/hall/te",)),
        Condition("ingress_time", on.GREATER, (10,)),
        Condition("ingress_time", on.UP_TO, (20,)),
        Condition("qos", on.FROM, (1,)),
        Condition("publisher", on.IN, ("p", "q")),
        Condition("publisher", on.IN, ("q", "r")),
    ]
    assert asked_of_nodes((), conditions) == AskedOfNodes(("plant/hall/#",), 11, 21, ("q",), (1, 2))
    names = Condition("topic", on.IN, ("a/b", "c/d"))
    assert asked_of_nodes(("a/#",), [names]).filters == ("a/b",)
    assert asked_of_nodes(("e/#",), [names]).is_nothing


def test_a_list_too_long_to_be_told_is_left_to_the_tasks() -> None:
    many = Condition("topic", on.IN, tuple(f"t/{n}" for n in range(2000)))
    assert asked_of_nodes((), [many]).filters is None


def test_a_pattern_has_to_match_the_whole_topic() -> None:
    batch = pa.RecordBatch.from_pylist([{"topic": topic} for topic in ("t1", "t22", "xt1")], schema_of(["topic"]))
    kept = rows_that_hold(batch, [Condition("topic", on.MATCHES, (r"t\d",))])
    assert kept.column("topic").to_pylist() == ["t1"]


_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_NOON_US = int(_NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("pushed", "condition"),
    [
        (EqualTo(("topic",), "a"), Condition("topic", on.IN, ("a",))),
        (Not(EqualTo(("topic",), "a")), Condition("topic", on.IN, ("a",), negated=True)),
        (In(("qos",), (1, 2)), Condition("qos", on.IN, (1, 2))),
        (GreaterThanOrEqual(("ingress_time",), _NOON), Condition("ingress_time", on.FROM, (_NOON_US,))),
        (GreaterThan(("offset",), 7), Condition("offset", on.GREATER, (7,))),
        (LessThan(("offset",), 7), Condition("offset", on.LESS, (7,))),
        (LessThanOrEqual(("offset",), 7), Condition("offset", on.UP_TO, (7,))),
        (StringStartsWith(("topic",), "a/"), Condition("topic", on.STARTS, ("a/",))),
        (StringEndsWith(("topic",), "/a"), Condition("topic", on.ENDS, ("/a",))),
        (StringContains(("publisher",), "x"), Condition("publisher", on.CONTAINS, ("x",))),
        (IsNotNull(("content_type",)), Condition("content_type", on.NOT_NULL)),
        (EqualTo(("retain",), True), Condition("retain", on.IN, (True,))),
    ],
)
def test_what_spark_pushes_becomes_a_condition(pushed: Filter, condition: Condition) -> None:
    assert divided([pushed], COLUMNS) == ([condition], [])


@pytest.mark.parametrize(
    "pushed",
    [
        IsNull(("content_type",)),
        EqualTo(("payload",), b"x"),
        EqualTo(("user_properties", "key"), "x"),
        In(("topic",), ("a", None)),
        Not(IsNotNull(("content_type",))),
        Not(Not(EqualTo(("topic",), "a"))),
        EqualTo(("qos",), 300),
        EqualTo(("qos",), "1"),
        EqualTo(("topic",), None),
    ],
)
def test_what_is_not_understood_stays_with_spark(pushed: Filter) -> None:
    assert divided([pushed], COLUMNS) == ([], [pushed])


def test_a_column_that_is_not_read_has_no_condition() -> None:
    pushed = EqualTo(("topic",), "a")
    assert divided([pushed], ("payload",)) == ([], [pushed])


def test_filters_are_asked_for_in_sparks_planner_alone() -> None:
    assert not are_asked_for()
