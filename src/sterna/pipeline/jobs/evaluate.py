"""The evaluation job: answers an expression over the past, from archive and journals, as a node would have.

The stream is every stored message, in the order of `ingress_time`; windows begin at `since`, or follow the clock.  If
the expression can be computed in parts, tasks compute parts of the messages they read, tasks merge the parts of the
windows that they are given, and one task takes the windows in order: operators outside the period may look back.  If it
has a difference to a topic's previous value inside, each topic goes to one task.  Otherwise all messages go through
one task.  Functions are called in all tasks, and only their numbers go through that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sterna.operators.window_division import Division, division
from sterna.pipeline.expressions.batch_evaluation import (
    Evaluation,
    joined_parts,
    numbers_of_messages,
    parts_of,
    results_of_messages,
    results_of_parts,
)
from sterna.pipeline.jobs.query import messages
from sterna.pipeline.table import spark_schema

_COLUMNS = ("topic", "payload", "origin", "epoch", "offset", "ingress_time")
_ORDER = ("ingress_time", "origin", "epoch", "offset")
_MESSAGES = spark_schema(_COLUMNS)
_PARTS = "end_us long, part binary"
_RESULTS = "time timestamp, topic string, payload binary"

_Step = Callable[[Evaluation, Iterable[Any]], Iterator[Any]]


def evaluate(
    spark: SparkSession, question: Evaluation, source: Mapping[str, str] | None, archive: str | Path | None = None
) -> DataFrame:
    """The results, in order: (time, topic, payload).  At least one of source and archive must be named."""
    told = _messages(spark, question, source, archive)
    how = division(question.expression)
    if question.functions is not None:
        told = told.mapInArrow(_step(numbers_of_messages, question), _MESSAGES)
    if how is Division.NONE:
        return _in_one_task(told, _ORDER).mapInArrow(_step(results_of_messages, question), _RESULTS)
    if how is Division.BY_TOPIC:
        told = told.repartition("topic").sortWithinPartitions(*_ORDER)
    parts = told.mapInArrow(_step(parts_of, question), _PARTS).where(f.col("end_us") <= question.until_us)
    windows = parts.repartition("end_us").sortWithinPartitions("end_us")
    parts = windows.mapInArrow(_step(joined_parts, question), _PARTS)
    return _in_one_task(parts, ("end_us",)).mapInArrow(_step(results_of_parts, question), _RESULTS)


def _messages(
    spark: SparkSession, question: Evaluation, source: Mapping[str, str] | None, archive: str | Path | None
) -> DataFrame:
    since, until = (datetime.fromtimestamp(at_us / 1e6, UTC) for at_us in (question.since_us, question.until_us))
    if source is not None:
        # Nodes need not send what is of no interest; behind an archive they are read from where it ends.
        source = {**source, "topics": question.expression.topic_filter.decode()}
        if archive is None:
            source |= {"startingOffsets": since.isoformat(), "columns": ",".join(_COLUMNS)}
    told = messages(spark, source, archive, [question.expression.topic_filter.decode()], since, until)
    instant = f.unix_micros("ingress_time")
    return told.select(*_COLUMNS).where((instant >= question.since_us) & (instant < question.until_us))


def _in_one_task(table: DataFrame, order: tuple[str, ...]) -> DataFrame:
    return table.repartition(1).sortWithinPartitions(*order)


def _step(step: _Step, question: Evaluation) -> Callable[[Iterator[Any]], Iterator[Any]]:
    return lambda batches: step(question, batches)
