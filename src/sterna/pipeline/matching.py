"""Messages in, parts of all expressions out: what a task does with the rows it has read.

Rows are taken topic by topic.  What several expressions would compute alike of a topic's rows (the numbers in them, and
the aggregate of those where they fall into one window, as the rows of a short batch do) is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sterna.mqtt.topics import FilterTree
from sterna.operators.aggregates import aggregate_of
from sterna.operators.windows import window_end
from sterna.operators.windows_apart import Reading
from sterna.pipeline.registry import Entry

ROWS_AT_ONCE = 65_536
TOPICS_KNOWN_MAX = 100_000

COLUMNS = ("topic", "payload", "ingress_time")
#: `number` is an entry's, or below 0.
PARTS: Any = pa.schema([pa.field("number", pa.int64()), pa.field("end_us", pa.int64()), pa.field("part", pa.binary())])
SPARK_PARTS = "number long, end_us long, part binary"

Row = tuple[int, int, bytes]
"""Entry, end of the window, what `Whole.merge` takes."""
_Values = tuple[list[int], list[float]]


class _Windowed:
    """One expression's windows."""

    def __init__(self, entry: Entry) -> None:
        expression = entry.expression
        periodic = expression.periodic
        assert periodic is not None
        self.number = entry.number
        self.since_us = entry.since_us
        self.operator = periodic
        self.length_us = entry.settings.period_us(periodic.period)
        self.anchor_us = entry.since_us if entry.settings.anchor == "subscription" else 0
        #: What is computed alike of the same values.
        self.kind = f"{periodic.aggregate} {periodic.quantile}"
        inside = expression.operators[expression.operators.index(periodic) + 1 :]
        #: What decides about the values; see `source_of`.
        self.reading = (
            tuple(operator.text for operator in inside),
            expression.operators[-1].field,
            periodic.aggregate == "COUNT",
            entry.settings.field_payload_bytes,
        )

    def end_us(self, time_us: int) -> int:
        return window_end(time_us, self.anchor_us, self.length_us)

    def by_window(self, values: _Values) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for time_us, value in zip(*values, strict=True):
            if time_us >= self.since_us:
                found.setdefault(self.end_us(time_us), []).append(value)
        return found


class Matcher:
    """All expressions of a batch."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._tree: FilterTree[int, tuple[Reading, _Windowed]] = FilterTree()
        readings: dict[object, Reading] = {}
        for entry in entries:
            windowed = _Windowed(entry)
            if windowed.reading not in readings:
                readings[windowed.reading] = Reading(entry.expression, entry.settings)
            self._tree.add(entry.expression.topic_filter, entry.number, (readings[windowed.reading], windowed))
        self._known: dict[bytes, list[tuple[Reading, list[_Windowed]]]] = {}

    def _matching(self, topic: bytes) -> list[tuple[Reading, list[_Windowed]]]:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPICS_KNOWN_MAX:
                self._known.clear()
            together: dict[Reading, list[_Windowed]] = {}
            for reading, windowed in self._tree.match(topic):
                together.setdefault(reading, []).append(windowed)
            known = self._known[topic] = list(together.items())
        return known

    def parts(self, batches: Iterable[Any]) -> Iterator[list[Row]]:
        """Parts of the rows of all batches, of so many rows at a time."""
        gathered: list[Any] = []
        for batch in batches:
            gathered.append(batch)
            if sum(one.num_rows for one in gathered) >= ROWS_AT_ONCE:
                yield self.parts_of(pa.concat_batches(gathered))
                gathered = []
        if gathered:
            yield self.parts_of(pa.concat_batches(gathered))

    def parts_of(self, rows: Any) -> list[Row]:
        held: dict[tuple[int, int], list[tuple[bytes, object]]] = {}
        for topic, payloads, times in by_topic(rows):
            for reading, those in self._matching(topic):
                values = reading.values(topic, payloads, times)
                if values[0]:
                    _add(held, topic, values, those)
        return [(number, end_us, msgspec.msgpack.encode(parts)) for (number, end_us), parts in held.items()]


def _add(
    held: dict[tuple[int, int], list[tuple[bytes, object]]], topic: bytes, values: _Values, those: list[_Windowed]
) -> None:
    first_us, last_us = min(values[0]), max(values[0])
    shared: dict[object, object] = {}
    for one in those:
        end_us = one.end_us(first_us)
        if first_us >= one.since_us and last_us < end_us:
            if one.kind not in shared:
                shared[one.kind] = _wire(one, values[1])
            held.setdefault((one.number, end_us), []).append((topic, shared[one.kind]))
        else:
            for end_us, inside in one.by_window(values).items():
                held.setdefault((one.number, end_us), []).append((topic, _wire(one, inside)))


def _wire(one: _Windowed, values: list[float]) -> object:
    aggregate = aggregate_of(one.operator)
    aggregate.add_all(values)
    return aggregate.to_wire()


def by_topic(rows: Any) -> Iterator[tuple[bytes, list[bytes], list[int]]]:
    """(topic, payloads, microseconds), rows of a topic in their order."""
    coded = rows.column("topic").dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    payloads = rows.column("payload").take(pa.array(order)).to_pylist()
    times = rows.column("ingress_time").cast(pa.int64()).to_numpy()[order].tolist()
    begin = 0
    for topic, stop in zip(coded.dictionary.to_pylist(), np.cumsum(np.bincount(codes)).tolist(), strict=True):
        yield topic.encode(), payloads[begin:stop], times[begin:stop]
        begin = stop


@lru_cache(maxsize=8)
def matcher_of(entries: tuple[Entry, ...]) -> Matcher:
    """A worker keeps what it has prepared for an edition."""
    return Matcher(entries)


def parts_batch(rows: Sequence[Row]) -> Any:
    numbers, ends, parts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(numbers, pa.int64()), pa.array(ends, pa.int64()), pa.array(parts, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PARTS)
