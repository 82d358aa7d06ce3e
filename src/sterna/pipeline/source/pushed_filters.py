"""Filters that Spark hands down to a batch read (`pushFilters`), as conditions.

Spark does this where `spark.sql.python.filterPushdown.enabled` is true, and shows the filters in the plan.  A filter
that is not understood stays with Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sterna.pipeline import conditions as on
from sterna.pipeline.conditions import Condition
from sterna.pipeline.table import SCHEMA

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INSTANT = pa.timestamp("us", "UTC")
#: A row of any other type is compared by Spark.
_TYPES = (pa.string(), pa.int8(), pa.int64(), pa.bool_(), _INSTANT)

_COMPARISONS: dict[type[Filter], str] = {
    GreaterThan: on.GREATER,
    GreaterThanOrEqual: on.FROM,
    LessThan: on.LESS,
    LessThanOrEqual: on.UP_TO,
}
_OF_TEXT: dict[type[Filter], str] = {
    StringStartsWith: on.STARTS,
    StringEndsWith: on.ENDS,
    StringContains: on.CONTAINS,
}

#: The process in which Spark asks for filters; it asks in no other.
_ASKS = "pyspark.sql.worker.data_source_pushdown_filters"


def are_asked_for() -> bool:
    """Elsewhere Spark refuses a reader that could be asked: a session has to allow it."""
    main = sys.modules.get("__main__")
    return _ASKS in sys.modules or getattr(getattr(main, "__spec__", None), "name", "") == _ASKS


def divided(filters: Iterable[Filter], columns: Iterable[str]) -> tuple[list[Condition], list[Filter]]:
    """Those on these columns that are understood, as conditions; and the rest."""
    known = set(columns)
    understood: list[Condition] = []
    rest: list[Filter] = []
    for one in filters:
        condition = _condition(one)
        if condition is not None and condition.column in known:
            understood.append(condition)
        else:
            rest.append(one)
    return understood, rest


def _condition(pushed: Filter) -> Condition | None:
    negated = isinstance(pushed, Not)
    inner: Any = pushed.child if isinstance(pushed, Not) else pushed
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in SCHEMA.names or SCHEMA.field(path[0]).type not in _TYPES:
        return None
    column, kind = path[0], SCHEMA.field(path[0]).type
    if isinstance(inner, IsNotNull):
        return None if negated else Condition(column, on.NOT_NULL)
    test = on.IN if isinstance(inner, EqualTo | In) else _COMPARISONS.get(type(inner))
    if kind == pa.string():
        test = test or _OF_TEXT.get(type(inner))
    values = inner.value if isinstance(inner, In) else (getattr(inner, "value", None),)
    found = [_value(value, kind) for value in values]
    if test is None or not found or None in found:
        return None
    return Condition(column, test, tuple(found), negated)


def _value(value: object, kind: Any) -> Any:
    """As Arrow compares it; None if that is something else."""
    if isinstance(value, datetime) and kind == _INSTANT:
        return _micros(value)
    try:
        return pa.scalar(value, kind).as_py() if _is_of(value, kind) else None
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _micros(value: datetime) -> int:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _is_of(value: object, kind: Any) -> bool:
    if isinstance(value, bool) or kind == pa.bool_():
        return isinstance(value, bool) and bool(kind == pa.bool_())
    return isinstance(value, str if kind == pa.string() else int) and kind != _INSTANT
