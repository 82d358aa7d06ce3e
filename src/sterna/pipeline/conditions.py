"""Conditions on rows: comparisons of one column with fixed values, which tasks check exactly and nodes roughly.

A task checks every condition on the batches that it reads, so Spark gets no other rows.  `asked_of_nodes` says which
part of them a node can leave out itself: topics, instants, publishers, QoS.  A node may send more than that and never
less.  A comparison with null is not true, as in SQL.  Needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sterna.journal.filter_set import FilterSet
from sterna.mqtt.topics import is_topic_filter
from sterna.pipeline.table import SCHEMA

IN, NOT_NULL = "in", "is not null"
LESS, UP_TO, GREATER, FROM = "<", "<=", ">", ">="
STARTS, ENDS, CONTAINS, MATCHES = "starts with", "ends with", "contains", "matches"

_ALL_QOS = (0, 1, 2)
WORDS_MAX, WORDS_BYTES_MAX = 1000, 24 * 1024
"""Told to a node at most: a request has a limit, and a longer list is checked by tasks alone."""
_TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX = 128, 65535


@dataclass(frozen=True, slots=True)
class Condition:
    """`Condition("qos", IN, (1, 2))`.  Instants are microseconds since 1970."""

    column: str
    test: str
    values: tuple[Any, ...] = ()
    negated: bool = False

    def holds(self, values: Any) -> Any:
        """Of which values of the column it is true: a mask."""
        made: Any = _TESTS[self.test](values, self.values)
        return pc.and_kleene(pc.invert(made) if self.negated else made, values.is_valid())

    def holds_of(self, value: object) -> bool:
        kind = SCHEMA.field(self.column).type
        return bool(self.holds(pa.array([value], kind))[0].as_py())


def _one(compare: Callable[..., Any]) -> Callable[[Any, Sequence[Any]], Any]:
    return lambda values, others: compare(values, pa.scalar(others[0], values.type))


def _matches(values: Any, patterns: Sequence[str]) -> Any:
    """The whole of it; topics repeat, so each different one is looked at once."""
    pattern = re.compile(patterns[0])
    coded = values.dictionary_encode()
    found = [text is not None and pattern.fullmatch(text) is not None for text in coded.dictionary.to_pylist()]
    return pa.array(found, pa.bool_()).take(coded.indices)


_TESTS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    IN: lambda values, others: pc.is_in(values, value_set=pa.array(others, values.type)),
    NOT_NULL: lambda values, _: values.is_valid(),
    LESS: _one(pc.less),
    UP_TO: _one(pc.less_equal),
    GREATER: _one(pc.greater),
    FROM: _one(pc.greater_equal),
    STARTS: lambda values, others: pc.starts_with(values, others[0]),
    ENDS: lambda values, others: pc.ends_with(values, others[0]),
    CONTAINS: lambda values, others: pc.match_substring(values, others[0]),
    MATCHES: _matches,
}


def columns_of(conditions: Iterable[Condition]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(condition.column for condition in conditions))


def rows_that_hold(batch: Any, conditions: Iterable[Condition]) -> Any:
    """The batch without the rows of which one of them is not true."""
    mask = None
    for condition in conditions:
        held = condition.holds(batch.column(condition.column))
        mask = held if mask is None else pc.and_(mask, held)
    return batch if mask is None or mask.true_count == batch.num_rows else batch.filter(mask)


class AskedOfNodes(NamedTuple):
    """The part of the conditions that nodes are told; None: everything."""

    filters: tuple[str, ...] | None = None
    since_us: int | None = None
    until_us: int | None = None
    publishers: tuple[str, ...] | None = None
    qos: tuple[int, ...] | None = None

    @property
    def is_nothing(self) -> bool:
        """No message can be meant."""
        return () in (self.filters, self.publishers, self.qos)


def asked_of_nodes(topics: Sequence[str], conditions: Sequence[Condition]) -> AskedOfNodes:
    """`topics`: MQTT filters, one of which has to match as well; none: every topic."""
    levels = tuple(qos for qos in _ALL_QOS if all(one.holds_of(qos) for one in _on("qos", conditions)))
    return AskedOfNodes(
        _filters(topics, _on("topic", conditions)),
        *_instants(_on("ingress_time", conditions)),
        _listed(_on("publisher", conditions)),
        None if levels == _ALL_QOS else levels,
    )


def _on(column: str, conditions: Iterable[Condition]) -> list[Condition]:
    return [condition for condition in conditions if condition.column == column]


def _listed(conditions: Iterable[Condition]) -> tuple[str, ...] | None:
    """The only values of which all of these can be true; None if there are others or too many."""
    lists = [set(one.values) for one in conditions if one.test == IN and not one.negated]
    words = sorted(set.intersection(*lists)) if lists else None
    return tuple(words) if words is not None and _can_be_told(words) else None


def _can_be_told(words: Sequence[str]) -> bool:
    return len(words) <= WORDS_MAX and sum(len(word.encode()) + 8 for word in words) <= WORDS_BYTES_MAX


def _filters(topics: Sequence[str], conditions: Sequence[Condition]) -> tuple[str, ...] | None:
    names = _listed(conditions)
    if names is not None:
        wanted = FilterSet(topic.encode() for topic in topics) if topics else None
        return tuple(name for name in names if _is_name(name) and (wanted is None or name.encode() in wanted))
    if topics:
        return tuple(topics)
    beginnings = [one.values[0] for one in conditions if one.test == STARTS and not one.negated]
    # Of a beginning within the first level there is no filter: # leaves out topics that begin with $.
    told = [filter_of(beginning) for beginning in beginnings if "/" in beginning]
    return (max(told, key=len),) if told and _can_be_told(told) and _is_filter(max(told, key=len)) else None


def filter_of(beginning: str) -> str:
    """The narrowest filter that matches every topic with this beginning, which has a slash in it."""
    return f"{beginning.rpartition('/')[0]}/#"


def _is_filter(text: str) -> bool:
    return is_topic_filter(text.encode(), _TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX)


def _is_name(text: str) -> bool:
    return not {"+", "#", "\0"} & set(text) and _is_filter(text)


def _instants(conditions: Iterable[Condition]) -> tuple[int | None, int | None]:
    """The first instant that can be meant, and the first after all that can."""
    since: list[int] = []
    until: list[int] = []
    for one in conditions:
        if one.test == NOT_NULL or one.negated or not one.values:
            continue
        if one.test in (FROM, GREATER, IN):
            since.append(min(one.values) + (one.test == GREATER))
        if one.test in (UP_TO, LESS, IN):
            until.append(max(one.values) + (one.test != LESS))
    return max(since, default=None), min(until, default=None)


def bounds(conditions: Iterable[Condition]) -> tuple[int, int]:
    """The offsets [start, stop) beyond which none is meant."""
    since, until = _instants(_on("offset", conditions))
    return max(0, since or 0), 1 << 62 if until is None else until


def are_of(node: str, conditions: Iterable[Condition]) -> bool:
    """Can messages of this node be meant?"""
    return all(condition.holds_of(node) for condition in _on("origin", conditions))
