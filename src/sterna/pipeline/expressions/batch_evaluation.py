"""Evaluates one expression over stored messages: batches of messages in, batches of parts or of results out.

If an expression can be computed in parts, many tasks compute them (`parts_of`), many tasks make one part of all parts
of a window (`joined_parts`), and one task takes these, window by window (`results_of_parts`).  Otherwise one task takes
all messages in the order of their times (`results_of_messages`).  Both give the results of a node's engine.  Needs no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from sterna.journal.filter_set import FilterSet
from sterna.journal.table import rows_of_interest
from sterna.operators.engine import Engine
from sterna.operators.expression import Expression
from sterna.operators.functions import NO_FUNCTIONS
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings
from sterna.operators.window_division import JoinedParts, MergedWindows, PartialWindows
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.function_tasks import caller_of
from sterna.runtime.functions.settings import FunctionTable

PARTS_HELD = 200_000
"""Aggregates a task holds before it passes them on."""
RESULTS_AT_ONCE = 8192
CALLS_AT_ONCE = 256
"""Payloads that are at hand at once for functions."""

PARTS: Any = pa.schema([pa.field("end_us", pa.int64()), pa.field("part", pa.binary())])
RESULTS: Any = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)


class Evaluation(msgspec.Struct, frozen=True):
    """An expression and its interval, as they travel to the tasks."""

    text: bytes
    settings: OperatorSettings
    since_us: int
    """Where windows begin, and messages."""
    until_us: int
    """Windows count that have ended by then, and messages that came in before."""
    functions: FunctionTable | None = None
    """Of an expression that has one."""

    @property
    def expression(self) -> Expression:
        return parse(self.text, NO_FUNCTIONS.assuming(self.text))


def rows_of(batch: Any, interest: FilterSet) -> Iterator[tuple[bytes, bytes, int]]:
    """(topic, payload, microseconds) of the messages that are of interest, in order."""
    coded = batch.column("topic").dictionary_encode()
    names = [topic.encode() for topic in coded.dictionary.to_pylist()]
    topics = [name if name in interest else None for name in names]
    times = batch.column("ingress_time").cast(pa.int64()).to_pylist()
    payloads = batch.column("payload").to_pylist()
    for place, payload, time_us in zip(coded.indices.to_pylist(), payloads, times, strict=True):
        topic = topics[place]
        if topic is not None:
            yield topic, payload, time_us


def parts_of(question: Evaluation, batches: Iterable[Any]) -> Iterator[Any]:
    expression = question.expression
    interest = FilterSet([expression.topic_filter])
    part = PartialWindows(expression, question.settings, question.since_us)
    for batch in batches:
        for topic, payload, time_us in rows_of(batch, interest):
            part.message(topic, payload, time_us)
        if part.size > PARTS_HELD:
            yield _parts(part)
    yield _parts(part)


def joined_parts(question: Evaluation, batches: Iterable[Any]) -> Iterator[Any]:
    """Parts come in the order of the ends of their windows, and all of a window come here."""
    joined = JoinedParts(question.expression, question.settings, question.since_us)
    last_us: int | None = None
    for batch in batches:
        for end_us, part in zip(batch.column("end_us").to_pylist(), batch.column("part").to_pylist(), strict=True):
            if last_us is not None and end_us != last_us:
                yield _parts(joined)
            joined.merge(end_us, part)
            last_us = end_us
    yield _parts(joined)


def _parts(part: PartialWindows | JoinedParts) -> Any:
    made = part.take()
    columns = [pa.array([end_us for end_us, _ in made], pa.int64()), pa.array([one for _, one in made], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PARTS)


def results_of_parts(question: Evaluation, batches: Iterable[Any]) -> Iterator[Any]:
    """Parts come in the order of the ends of their windows."""
    expression = question.expression
    whole = MergedWindows(expression, question.settings, question.since_us)
    results = _Results(expression)
    for batch in batches:
        for end_us, part in zip(batch.column("end_us").to_pylist(), batch.column("part").to_pylist(), strict=True):
            if end_us > question.until_us:
                break  # nor has any that comes after it ended
            for ended in whole.advance(end_us - 1):
                results.add(*ended)
            whole.merge(end_us, part)
            yield from results.full()
    for ended in whole.advance(question.until_us):
        results.add(*ended)
    _check(whole.engine)
    yield results.take()


def results_of_messages(question: Evaluation, batches: Iterable[Any]) -> Iterator[Any]:
    """Messages come in the order of their times."""
    expression = question.expression
    interest = FilterSet([expression.topic_filter])
    engine = Engine(expression, question.settings, question.since_us)
    results = _Results(expression)
    for batch in batches:
        for topic, payload, time_us in rows_of(batch, interest):
            if expression.function:  # what `numbers_of_messages` has made of it
                result = engine.computed(topic, float(payload), time_us)
            else:
                result = engine.message(topic, payload, time_us)
            if result is not None:
                results.add(engine.result_us, result, topic)
        _check(engine)
        yield from results.full()
    result = engine.advance(question.until_us)
    if result is not None:
        results.add(engine.result_us, result)
    yield results.take()


def numbers_of_messages(question: Evaluation, batches: Iterable[Any]) -> Iterator[Any]:
    """The same messages, those without a number left out, with numbers instead of payloads."""
    expression = question.expression
    interest = FilterSet([expression.topic_filter])
    assert question.functions is not None
    caller = caller_of(question.functions)
    for batch in batches:
        mine = batch.filter(rows_of_interest(batch.column("topic").cast(pa.binary()), interest))
        for first in range(0, mine.num_rows, CALLS_AT_ONCE):
            some = mine.slice(first, CALLS_AT_ONCE)
            answers = caller.numbers(expression.function, some.column("payload").to_pylist())
            numbers = pa.array([None if value is None else repr(value).encode() for value, _ in answers], pa.binary())
            place = some.schema.get_field_index("payload")
            yield some.set_column(place, some.schema.field(place), numbers).filter(numbers.is_valid())


def _check(engine: Engine) -> None:
    """A node falls silent; here somebody waits for an answer."""
    if engine.stopped:
        raise PipelineError(f"the expression has outgrown its bounds: {engine.stopped}; see [operators] in --config")


class _Results:
    """Results on their way."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._rows: list[tuple[int, str, bytes]] = []

    def add(self, time_us: int, payload: bytes, topic: bytes = b"") -> None:
        self._rows.append((time_us, self._expression.topic_of_result(topic).decode(), payload))

    def full(self) -> Iterator[Any]:
        if len(self._rows) >= RESULTS_AT_ONCE:
            yield self.take()

    def take(self) -> Any:
        rows, self._rows = self._rows, []
        times, topics, payloads = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [
            pa.array(times, pa.int64()).cast(RESULTS.field("time").type),
            pa.array(topics, pa.string()),
            pa.array(payloads, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RESULTS)
