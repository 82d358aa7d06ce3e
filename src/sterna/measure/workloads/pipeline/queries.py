"""Streaming queries of the benchmark: started into the sink that does nothing, and read off Spark's own progress."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sterna.measure.errors import MeasurementError
from sterna.pipeline.offsets import without_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY_S_MAX = 300.0
LOOK_S = 0.25
_REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"


@dataclass(frozen=True, slots=True)
class SparkBatch:
    """One micro-batch that held rows, as Spark tells of it."""

    rows: int
    seconds: float
    """The whole of it: asking for offsets, planning, tasks, sink, both writes to the checkpoint."""
    done_us: int
    """The instant at which it ended, in microseconds since 1970, to the millisecond."""
    start: Mapping[str, int]
    end: Mapping[str, int]


def stream(spark: SparkSession, source: str, options: Mapping[str, object]) -> DataFrame:
    reader = spark.readStream.format(source)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


@contextmanager
def running(table: DataFrame, **trigger: Any) -> Iterator[StreamingQuery]:
    """The query into nothing; over, with its checkpoint, when the block ends."""
    spark = table.sparkSession
    before = spark.conf.get(_REMEMBERED)
    spark.conf.set(_REMEMBERED, "100000")
    try:
        with tempfile.TemporaryDirectory(prefix="sterna-bench-") as checkpoint:
            writer = table.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(**trigger).start()
            try:
                yield query
            finally:
                query.stop()
    finally:
        spark.conf.set(_REMEMBERED, str(before))


def run_to_its_end(table: DataFrame) -> list[SparkBatch]:
    """Everything that is there now."""
    with running(table, availableNow=True) as query:
        if not query.awaitTermination(int(QUERY_S_MAX)):
            raise MeasurementError(f"a query did not end in {QUERY_S_MAX:g} s")
        return batches(query)


def wait_for_batches(query: StreamingQuery, count: int, within_s: float = QUERY_S_MAX) -> list[SparkBatch]:
    """Until so many batches with rows are done."""
    deadline = time.monotonic() + within_s
    while True:
        # Looking at the last one is cheap, looking at all of them is not, and this process has no core of its own.
        last = query.lastProgress
        found = batches(query) if last is not None and last.batchId >= count - 1 else []
        if len(found) >= count:
            return found
        if time.monotonic() > deadline or not query.isActive:
            raise MeasurementError(f"no {count} batches in {within_s:g} s: {query.exception()}")
        time.sleep(LOOK_S)


def batches(query: StreamingQuery) -> list[SparkBatch]:
    """Those that held rows, in order."""
    return [_batch(told) for told in query.recentProgress if told.numInputRows]


def _batch(told: Any) -> SparkBatch:
    duration_ms = told.durationMs["triggerExecution"]
    begun = datetime.fromisoformat(told.timestamp)
    (source,) = told.sources
    return SparkBatch(
        rows=told.numInputRows,
        seconds=duration_ms / 1000,
        done_us=round(begun.timestamp() * 1_000_000) + duration_ms * 1000,
        start=_offsets(source.startOffset),
        end=_offsets(source.endOffset),
    )


def _offsets(text: str | None) -> Mapping[str, int]:
    """Empty for what is not by node, as the offsets of other sources are not."""
    found = json.loads(text) if text else {}
    return without_cut(found) if isinstance(found, dict) else {}
