"""Matches messages with all expressions of a batch, in a task, and computes the parts of their windows.

Rows are sorted by topic and taken all at once.  Work that several expressions share is done once: reading numbers, and
aggregating a topic's values when they fall into the same window, as those of a short batch do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from sterna.mqtt.topics import FilterTree
from sterna.operators.expression import Family, Operator
from sterna.operators.window_division import InnerValues
from sterna.operators.windows import window_end
from sterna.pipeline.expressions.columnar_aggregates import ColumnarAggregates, Numbers, Wire, numbers_of
from sterna.pipeline.expressions.registry import Entry

ROWS_AT_ONCE = 262_144
TOPICS_KNOWN_MAX = 100_000

COLUMNS = ("topic", "payload", "ingress_time")
TICK, EXTRACTED, MISSED, LATE = -1, -2, -3, -4
"""Instead of an entry's number: the batch itself, with how late it is and the edition; what messages say to all who
need order (`value_extraction`); and what those say that were read before anybody knew of the entries that are new."""
PARTS: Any = pa.schema(
    [
        pa.field("lane", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("end_us", pa.int64()),
        pa.field("part", pa.binary()),
    ]
)
SPARK_PARTS = "lane int, number long, end_us long, part binary"

Row = tuple[int, int, bytes]
"""Entry, end of the window, what `MergedWindows.merge` takes; or one of the above, 0, and an `ExtractedValues`."""
_Value = TypeVar("_Value", bound=Hashable)
_Parts = list[tuple[bytes, object]]
_Cut = tuple[int, int, int]
"""Anchor and length of windows, and from when on."""
_Columns = tuple[Any, Any, Any]
"""Places of topics, microseconds, values; rows of a topic together."""
RELATIONS = {
    "GT": np.greater,
    "GTE": np.greater_equal,
    "LT": np.less,
    "LTE": np.less_equal,
    "EQ": np.equal,
    "NEQ": np.not_equal,
}


class TopicMatches(Generic[_Value]):
    """The values whose filters match a topic, each once; remembered, because topics come again and again."""

    def __init__(self) -> None:
        self._tree: FilterTree[bytes, _Value] = FilterTree()
        self.of = lru_cache(maxsize=TOPICS_KNOWN_MAX)(self._of)

    def add(self, topic_filter: bytes, name: bytes, value: _Value) -> None:
        self._tree.add(topic_filter, name, value)
        self.of.cache_clear()

    def _of(self, topic: bytes) -> list[_Value]:
        return list(dict.fromkeys(self._tree.match(topic)))


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
        #: Equal for computations that are alike given the same values.
        self.kind = f"{periodic.aggregate} {periodic.quantile}"

    def cut(self, first_us: int, last_us: int) -> _Cut | None:
        """How its windows cut what came in between these instants; None if they do not."""
        if self.since_us <= first_us and last_us < self.end_us(first_us):
            return None
        return self.anchor_us, self.length_us, max(self.since_us, first_us)

    def end_us(self, time_us: int) -> int:
        return window_end(time_us, self.anchor_us, self.length_us)


class Matcher:
    """All expressions of a batch."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._tree: FilterTree[int, tuple[_Values, _Windowed]] = FilterTree()
        self._all = [_Windowed(entry) for entry in entries]
        values: dict[object, _Values] = {}
        for entry, one in zip(entries, self._all, strict=True):
            key = reading_of(entry)
            if key not in values:
                values[key] = _values_of(entry)
            self._tree.add(entry.expression.topic_filter, entry.number, (values[key], one))
        self._matching = lru_cache(maxsize=TOPICS_KNOWN_MAX)(self._match)

    def _match(self, topic: bytes) -> list[tuple[_Values, list[_Windowed]]]:
        together: dict[_Values, list[_Windowed]] = {}
        for values, windowed in self._tree.match(topic):
            together.setdefault(values, []).append(windowed)
        return list(together.items())

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
        sheet = SortedRows(rows, self._matching)
        held: dict[tuple[int, int], _Parts] = {}
        for (values, cut), wanted in self._wanted(sheet).items():
            _Groups(sheet, values.of(sheet, sorted(wanted)), cut).add(held, wanted)
        return [(number, end_us, msgspec.msgpack.encode(parts)) for (number, end_us), parts in held.items()]

    def _wanted(self, sheet: SortedRows) -> dict[tuple[_Values, _Cut | None], dict[int, list[_Windowed]]]:
        """For which topics, by their places, who wants what."""
        found: dict[tuple[_Values, _Cut | None], dict[int, list[_Windowed]]] = {}
        cuts = {one.number: one.cut(sheet.first_us, sheet.last_us) for one in self._all}
        alike = set(cuts.values())
        for place, topic in enumerate(sheet.topics):
            for values, those in self._matching(topic):
                if len(alike) == 1:
                    found.setdefault((values, cuts[those[0].number]), {})[place] = those
                    continue
                for one in those:
                    found.setdefault((values, cuts[one.number]), {}).setdefault(place, []).append(one)
        return found


class SortedRows:
    """Rows by topic, and those of a topic in their order; others than those of topics that somebody wants are left out.

    They would be in the way: payloads of one kind are read much faster than several kinds mixed.
    """

    def __init__(self, rows: Any, wants: Callable[[bytes], object]) -> None:
        coded = rows.column("topic").dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        self.topics = [topic.encode() for topic in coded.dictionary.to_pylist()]
        wanted = np.array([bool(wants(topic)) for topic in self.topics], bool)
        if not wanted.all():
            kept = wanted[codes]
            rows, codes = rows.filter(pa.array(kept)), (np.cumsum(wanted) - 1)[codes[kept]]
            self.topics = [topic for topic, stays in zip(self.topics, wanted, strict=True) if stays]
        # Of 16 bits they are sorted several times as fast.
        self._order = np.argsort(codes.astype(np.int16) if len(self.topics) < 1 << 15 else codes, kind="stable")
        self.places = codes[self._order]
        self.bounds = np.append(0, np.cumsum(np.bincount(codes, minlength=len(self.topics))))
        self.times = rows.column("ingress_time").cast(pa.int64()).to_numpy()[self._order]
        self.first_us, self.last_us = (int(self.times.min()), int(self.times.max())) if len(codes) else (0, 0)
        self._payloads = rows.column("payload")

    @cached_property
    def numbers(self) -> Numbers:
        return numbers_of(self._payloads)[self._order]

    @cached_property
    def _in_order(self) -> Any:
        return self._payloads.take(pa.array(self._order))

    def rows_of(self, place: int) -> tuple[list[bytes], list[int]]:
        """Payloads and microseconds of a topic's messages."""
        start, stop = self.bounds[place], self.bounds[place + 1]
        return self._in_order[start:stop].to_pylist(), self.times[start:stop].tolist()

    def rows_at(self, places: list[int]) -> Any:
        """Which rows are of these topics, as a mask."""
        chosen = np.zeros(len(self.topics), bool)
        chosen[places] = True
        return chosen[self.places]


def reading_of(entry: Entry) -> object:
    """The key that decides about the values; see `source_of`."""
    periodic = entry.expression.periodic
    assert periodic is not None
    texts = tuple(operator.text for operator in _inside(entry))
    field = entry.expression.operators[-1].field
    return texts, field, periodic.aggregate == "COUNT", entry.settings.field_payload_bytes


def _inside(entry: Entry) -> tuple[Operator, ...]:
    operators, periodic = entry.expression.operators, entry.expression.periodic
    assert periodic is not None
    return operators[operators.index(periodic) + 1 :]


class _Values:
    """The aggregated values of messages: here, what each says by itself, asked one by one."""

    def __init__(self, entry: Entry) -> None:
        self._reading = InnerValues(entry.expression, entry.settings)

    def of(self, sheet: SortedRows, places: list[int]) -> _Columns:
        """Of the messages of these topics that have a value: which topic, when, and the value."""
        counts, times, values = [], [], []
        for place in places:
            found = self._reading.values(sheet.topics[place], *sheet.rows_of(place))
            counts.append(len(found[0]))
            times += found[0]
            values += found[1]
        return np.repeat(places, counts), np.array(times, np.int64), np.array(values, np.float64)


class _Anything(_Values):
    def of(self, sheet: SortedRows, places: list[int]) -> _Columns:
        chosen = sheet.rows_at(places)
        times = sheet.times[chosen]
        return sheet.places[chosen], times, np.ones(len(times))


class _Numbers(_Values):
    """Payloads that are numbers, with nothing but rules about them."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self._rules = [(RELATIONS[operator.name], operator.number) for operator in _inside(entry)]

    def of(self, sheet: SortedRows, places: list[int]) -> _Columns:
        numbers = sheet.numbers
        chosen = sheet.rows_at(places) & ~np.isnan(numbers)
        for relation, number in self._rules:
            chosen &= relation(numbers, number)
        return sheet.places[chosen], sheet.times[chosen], numbers[chosen]


def _values_of(entry: Entry) -> _Values:
    inside, field = _inside(entry), entry.expression.operators[-1].field
    periodic = entry.expression.periodic
    assert periodic is not None
    if field or any(operator.family is not Family.RULE for operator in inside):
        return _Values(entry)
    return _Anything(entry) if periodic.aggregate == "COUNT" and not inside else _Numbers(entry)


class _Groups:
    """Values of a topic and a window together."""

    def __init__(self, sheet: SortedRows, columns: _Columns, cut: _Cut | None) -> None:
        self._topics = sheet.topics
        self._first_us = sheet.first_us
        places, times, values = columns
        ends = None
        if cut is not None:
            anchor_us, length_us, since_us = cut
            inside = times >= since_us
            places, times, values = places[inside], times[inside], values[inside]
            ends = times + length_us - (times - anchor_us) % length_us  # as `window_end` has it
            if len(ends):
                keys = places * ((ends.max() - ends.min()) // length_us + 1) + (ends - ends.min()) // length_us
                if (keys[1:] < keys[:-1]).any():  # a topic's rows are nearly always in the order of their times
                    order = np.argsort(keys, kind="stable")
                    places, ends, values = places[order], ends[order], values[order]
        fresh = places[1:] != places[:-1]
        if ends is not None:
            fresh |= ends[1:] != ends[:-1]
        starts = np.flatnonzero(np.append(True, fresh)) if len(places) else np.zeros(0, np.int64)
        self._places = places[starts].tolist()
        #: Empty if all are in one window, which differs from expression to expression.
        self._ends = ends[starts].tolist() if ends is not None else []
        self._tally = ColumnarAggregates(values, starts)

    def add(self, held: dict[tuple[int, int], _Parts], wanted: dict[int, list[_Windowed]]) -> None:
        wires: dict[str, Wire] = {}
        lists: dict[tuple[int, int | None], _Parts] = {}
        for group, place in enumerate(self._places):
            topic, end_us = self._topics[place], self._ends[group] if self._ends else None
            shared: dict[str, tuple[bytes, object]] = {}
            for one in wanted[place]:
                part = shared.get(one.kind)
                if part is None:
                    if one.kind not in wires:
                        wires[one.kind] = self._tally.wires(one.operator)
                    part = shared[one.kind] = (topic, wires[one.kind](group))
                mine = lists.get((one.number, end_us))
                if mine is None:
                    window_us = one.end_us(self._first_us) if end_us is None else end_us
                    mine = lists[one.number, end_us] = held.setdefault((one.number, window_us), [])
                mine.append(part)


def parts_batch(rows: Sequence[tuple[int, Row]]) -> Any:
    """Of rows with their lanes."""
    lanes, parts = zip(*rows, strict=True) if rows else ((), ())
    columns = zip(*parts, strict=True) if rows else ((), (), ())
    arrays = [pa.array(one, field.type) for one, field in zip((lanes, *columns), PARTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTS)
