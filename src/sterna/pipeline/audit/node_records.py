"""Reads the nodes' records for an audit: each delivery of each message, and each subscription with its interval.

A node keeps these records with `[journal] deliveries = true`.  Tasks read them from the nodes, segment by segment.
The driver only learns which segments there are, and how often each node was started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from sterna.pipeline.audit.moved_sessions import continued
from sterna.pipeline.audit.subscription_intervals import INTERVALS, Lives, intervals
from sterna.pipeline.errors import DataLoss, NodesMissing
from sterna.pipeline.feed.errors import Trimmed, Unreachable
from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.source.nodes import Seen, open_feed, patiently, whole_network

BATCH_ROWS = 8192

TASK_BYTES = 16 * 1024 * 1024
"""Of the journal, for a task of its own."""

_APART = StorageLevel.DISK_ONLY

_STAMP = "struct<epoch: bigint, sequence: bigint>"

#: The tables as Spark spells them.
SESSIONS = (
    "node string, node_epoch bigint, place bigint, what string, at timestamp, client string, session bigint, "
    f"filter string, qos tinyint, no_local boolean, rules string, vector map<string, {_STAMP}>, number bigint"
)
DELIVERIES = (
    "node string, node_epoch bigint, place bigint, at timestamp, client string, session bigint, share string, "
    "origin string, epoch bigint, sequence bigint, qos tinyint, resent boolean, retained boolean, dropped string, "
    "messages bigint"
)


class AuditRecords(NamedTuple):
    """The notes of the nodes."""

    subscriptions: DataFrame
    deliveries: DataFrame
    nodes: dict[str, Seen]
    silent: list[str]
    """Nodes that note nothing, and so cannot be audited."""


def read_records(spark: SparkSession, source: Mapping[str, str], since_us: int | None = None) -> AuditRecords:
    """`source` are options of the source.  Deliveries before `since_us` are left out, subscriptions are not."""
    options = ReadOptions.parse(source, streaming=False)
    nodes = patiently(options, lambda: whole_network(options))
    segments = [segment for seen in nodes.values() for segment in _segments(options.access, seen)]
    sessions = _pulled(spark, "sessions", SESSIONS, segments, options.access, None)
    # They are gone through several times; nodes are asked once.
    deliveries = _pulled(spark, "deliveries", DELIVERIES, segments, options.access, since_us).persist(_APART)
    lives = _lives(sessions, deliveries, nodes)
    subscriptions = (
        sessions.where("what != 'started'")
        .groupBy("node", "client")
        .applyInArrow(lambda rows: intervals(rows, lives), INTERVALS)
        .persist(_APART)
    )
    whole, came = continued(subscriptions, deliveries)
    return AuditRecords(whole, came, nodes, sorted(name for name in nodes if name not in lives))


def _segments(access: Access, seen: Seen) -> list[tuple[str, str, int, int]]:
    with open_feed(access, seen.address) as feed:
        return [(seen.name, seen.address, start, stop) for start, stop in feed.segments()]


def _lives(sessions: DataFrame, deliveries: DataFrame, nodes: Mapping[str, Seen]) -> Lives:
    """Of each node that notes anything: its starts, and when the last record of each was made.

    A start that left no record is one with which the node has ceased to note anything.
    """
    found = _last_records(sessions)
    for name, seen in nodes.items():
        if name in found:
            found[name].setdefault(seen.epoch, 0.0)
    if any(len(epochs) > 1 for epochs in found.values()):  # else nobody asks when a life ended
        for name, epochs in _last_records(deliveries).items():
            for epoch, last in epochs.items():
                found[name][epoch] = max(last, found[name].get(epoch, 0.0))
    return {node: dict(sorted(epochs.items())) for node, epochs in found.items()}


def _last_records(records: DataFrame) -> dict[str, dict[int, float]]:
    last = records.groupBy("node", "node_epoch").agg(f.max("at").cast("double").alias("last"))
    found: dict[str, dict[int, float]] = {}
    for row in last.collect():
        found.setdefault(row.node, {})[row.node_epoch] = row.last
    return found


def _pulled(
    spark: SparkSession,
    table: str,
    schema: str,
    segments: Sequence[tuple[str, str, int, int]],
    access: Access,
    since_us: int | None,
) -> DataFrame:
    def pull(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for segment in batch.to_pylist():
                yield from _gathered(_pull(table, segment, access, since_us))

    ranges = spark.createDataFrame(segments, "node string, address string, start bigint, stop bigint")
    size = sum(stop - start for _, _, start, stop in segments)
    tasks = min(len(segments), 4 * spark.sparkContext.defaultParallelism, 1 + size // TASK_BYTES) or 1
    return ranges.repartition(tasks).mapInArrow(pull, schema)


def _pull(table: str, segment: Mapping[str, Any], access: Access, since_us: int | None) -> Iterator[pa.RecordBatch]:
    node = segment["node"]
    try:
        with open_feed(access, segment["address"]) as feed:
            for _, batch in feed.records(table, segment["start"], segment["stop"], since_us):
                yield batch
            assert feed.last_read is not None
            if feed.last_read.lost:
                raise DataLoss(f"records of node {node} are damaged on its disk: nothing can be said about its clients")
    except Trimmed:
        raise DataLoss(f"node {node} has dropped records while they were read; run the audit again") from None
    except Unreachable as error:
        raise NodesMissing(f"the records of node {node} cannot be read: {error}") from None


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: a quiet node writes a frame for every few records."""
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield _one(some)
            some, rows = [], 0
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
