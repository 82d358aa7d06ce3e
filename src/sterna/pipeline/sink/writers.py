"""`df.write` and `df.writeStream` with `format("sterna")`: rows become messages, each published once.

A task numbers its messages by (batch, row), under a name made of the query and the partition.  A batch that runs
again, after a retry or a restart, has the same names and numbers, and the node drops the messages it already has.
This needs the rows of a partition in the same order again.  Plans without a shuffle keep that order; behind a shuffle,
sort within partitions before writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sterna.pipeline.errors import BadRow
from sterna.pipeline.options import WriteOptions
from sterna.pipeline.sink.publisher import NumberedPublisher
from sterna.pipeline.sink.rows import check_columns, outgoing

# Spark tells a stream's writer neither; these are what it calls them among its own.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

UNNAMED_S = 3600
"""How long a node remembers a batch write that was given no name."""

Messages = list[WriterCommitMessage | None]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    rows: int


class BatchWriter(DataSourceArrowWriter):
    """A write of its own name, unless it was given one, with which it can be run again."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        check_columns(columns)
        # Nobody will run a write again whose name nobody knows; its tasks may be tried again until it is over.
        forgetful = replace(options, remember_s=min(options.remember_s, UNNAMED_S))
        self._options = options if options.publisher else forgetful
        self._name = options.publisher or uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        return _write(iterator, self._options, self._name, self._options.batch)

    def commit(self, messages: Messages) -> None:
        """Every row is published already."""

    def abort(self, messages: Messages) -> None:
        """Published rows stay published; the same write run again adds the rest."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        check_columns(columns)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        query, batch = _of_the_task(_QUERY_ID), _of_the_task(_BATCH_ID)
        return _write(iterator, self._options, self._options.publisher or query, int(batch))

    def commit(self, messages: Messages, batchId: int) -> None:
        """Every row is published already."""

    def abort(self, messages: Messages, batchId: int) -> None:
        """Published rows stay published; the batch will be run again and adds the rest."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def _of_the_task(name: str) -> str:
    value = _task().getLocalProperty(name)
    assert value, f"this version of Spark does not tell tasks {name}"
    return value


def _write(batches: Iterator[Any], options: WriteOptions, name: str, batch: int) -> Written:
    rows = 0
    with NumberedPublisher(options, f"spark-{name}-{_task().partitionId()}", batch) as publisher:
        for record_batch in batches:
            try:
                messages = outgoing(record_batch, rows)
            except BadRow as error:
                publisher.finish()
                raise BadRow(f"{error}; {publisher.published} rows before it were published, none after it") from None
            publisher.publish(messages)
            rows += len(messages)
        publisher.finish()
    return Written(rows)
