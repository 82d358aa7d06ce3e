"""Extracts the values of messages, in a task, for expressions that need them in order.

Payloads are read by the sources of a node's engine, once for all expressions that read them alike.  Only numbers leave
the task, however long the payloads are.  The driver orders them later (`ordered_evaluation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sterna.operators.functions import NO_FUNCTIONS
from sterna.operators.sources import AnySource, LastValue, NumberSource, TextSource, source_of
from sterna.operators.stages import Counts
from sterna.pipeline.expressions.columnar_aggregates import numbers_of
from sterna.pipeline.expressions.function_tasks import FunctionCaller, caller_of
from sterna.pipeline.expressions.matching import TopicMatches
from sterna.pipeline.expressions.registry import Entry
from sterna.pipeline.expressions.rule_forwarding import FORWARDED, ForwardedMessage, RuleFilter
from sterna.runtime.functions.settings import FunctionTable

ORDER_COLUMNS = ("topic", "payload", "ingress_time", "offset")


#: Remedies, by reason.
_WHY = {"no-function": "this job has no such function; name one in [functions] of the file --config names"}


class ExtractedValues(msgspec.Struct, frozen=True, array_like=True):
    """Values of messages of one journal, by one kind of reading."""

    journal: str
    reading: bytes
    topics: list[bytes]
    places: list[int]
    """Of each message's topic, among these."""
    times_us: list[int]
    offsets: list[int]
    values: list[float | ForwardedMessage | None]
    """None: the topic has no value any more."""
    left_out: dict[str, int] = {}
    """Why messages say nothing that should, and how many."""


class PayloadReading:
    """How payloads are read for an expression."""

    def __init__(self, entry: Entry, caller: FunctionCaller | None = None) -> None:
        self._caller = caller
        self._function = entry.expression.function
        self._last_value = LastValue(Counts())
        self._source = source = source_of(entry.expression, self._last_value, entry.settings, NO_FUNCTIONS)
        texts = (source.needles, source.numeric) if isinstance(source, TextSource) else ()
        kind = (
            "anything" if isinstance(source, AnySource) else "numbers" if isinstance(source, NumberSource) else "texts"
        )
        kind = "function" if self._function else kind
        bounds = (self._function,) if self._function else (source.field, source.bytes_max) if source.field else ()
        #: The same for all that read alike.
        self.name: bytes = msgspec.json.encode((kind, bounds, texts))
        self._by_columns = "" if source.field else kind

    def of(self, topics: Sequence[bytes], payloads: Any) -> tuple[Any, list[float | None], dict[str, int]]:
        """Which of the messages say anything, as a mask, what these say, and why others do not that should."""
        if self._function:
            return self._computed(payloads.to_pylist())
        return *self._read(topics, payloads), {}

    def _computed(self, payloads: list[bytes]) -> tuple[Any, list[float | None], dict[str, int]]:
        assert self._caller is not None
        left_out: dict[str, int] = {}
        answers = self._caller.numbers(self._function, payloads)
        for value, reason in answers:
            if value is None:
                why = f"${self._function}: {_WHY.get(reason, reason)}"
                left_out[why] = left_out.get(why, 0) + 1
        said = np.array([value is not None for value, _ in answers], bool)
        return said, [value for value, _ in answers if value is not None], left_out

    def _read(self, topics: Sequence[bytes], payloads: Any) -> tuple[Any, list[float | None]]:
        if self._by_columns == "anything":
            return np.ones(len(payloads), bool), [1.0] * len(payloads)
        if self._by_columns == "numbers":
            numbers = numbers_of(payloads)
            said = ~np.isnan(numbers)
            return said, numbers[said].tolist()
        take, last = self._source.take, self._last_value
        said, values = np.zeros(len(payloads), bool), list[float | None]()
        for place, (topic, payload) in enumerate(zip(topics, payloads.to_pylist(), strict=True)):
            if take(0, topic, payload):
                said[place] = True
                values.append(last.value)
        return said, values


class ValueExtractor:
    """All expressions of a batch that need order."""

    def __init__(self, entries: Sequence[Entry], table: FunctionTable | None = None) -> None:
        caller = None if table is None else caller_of(table)
        self._matches: TopicMatches[PayloadReading] = TopicMatches()
        self._rules = RuleFilter([entry for entry in entries if entry.expression.forwards])
        readings: dict[bytes, PayloadReading] = {}
        for entry in entries:
            if entry.expression.forwards:
                continue
            reading = PayloadReading(entry, caller)
            reading = readings.setdefault(reading.name, reading)
            self._matches.add(entry.expression.topic_filter, reading.name, reading)

    def extract(self, journal: str, rows: Any) -> Iterator[bytes]:
        """Wanted values of these rows, which are of one journal."""
        coded = rows.column("topic").dictionary_encode()
        topics = [topic.encode() for topic in coded.dictionary.to_pylist()]
        wanted: dict[PayloadReading, list[int]] = {}
        for code, topic in enumerate(topics):
            for reading in self._matches.of(topic):
                wanted.setdefault(reading, []).append(code)
        codes = coded.indices.to_numpy(zero_copy_only=False)
        places, passed, left_out = self._rules.passed(topics, codes, rows)
        if len(places) or left_out:
            yield _encoded(journal, FORWARDED, topics, codes[places], rows, places, passed, left_out)
        for reading, chosen in wanted.items():
            is_chosen = np.zeros(len(topics), bool)
            is_chosen[chosen] = True
            mask = is_chosen[codes]
            yield _said(journal, reading, topics, codes[mask], rows.filter(pa.array(mask)))


def _said(journal: str, reading: PayloadReading, topics: list[bytes], codes: Any, rows: Any) -> bytes:
    said, values, left_out = reading.of([topics[code] for code in codes.tolist()], rows.column("payload"))
    return _encoded(journal, reading.name, topics, codes[said], rows, said, values, left_out)


def _encoded(
    journal: str, reading: bytes, topics: list[bytes], codes: Any, rows: Any, said: Any, values: Any, left_out: Any
) -> bytes:
    """`said`: which of the rows the values are of."""
    used, places = np.unique(codes, return_inverse=True)
    times = rows.column("ingress_time").cast(pa.int64()).to_numpy()[said]
    offsets = rows.column("offset").to_numpy()[said]
    names = [topics[code] for code in used.tolist()]
    return msgspec.msgpack.encode(
        ExtractedValues(journal, reading, names, places.tolist(), times.tolist(), offsets.tolist(), values, left_out)
    )
