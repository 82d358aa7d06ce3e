"""The audit of clients that moved, from the records that the clients wrote themselves.

It reads the records of `sterna experiment migration` (one directory per table, Parquet); each client there is one run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from sterna.pipeline.audit.contract import judge

_STAMPS = "map<string, struct<epoch: bigint, sequence: bigint>>"
SILENCE_AFTER_S = 2.0
"""How long after a move a silence still counts as its own."""


def account(spark: SparkSession, directory: Path) -> list[dict[str, Any]]:
    """A row per client and subscription: client, topic, qos, expected, delivered, lost, duplicated, reordered, and the
    latency before and after the move, and the longest silence of a stream around it beside the stream's mean gap, in
    milliseconds.  A stream is the messages of one publisher on one topic; the worst one counts.

    The clients have left by now: messages that still wait for them are lost.
    """
    messages, subscriptions, deliveries, moves = (
        spark.read.parquet(str(directory / name)) for name in ("messages", "subscriptions", "deliveries", "moves")
    )
    judged = judge(messages, _subscriptions(subscriptions), _deliveries(deliveries), skew_s=0.0)
    ordered = moves.select("client", "ordered", f.coalesce("arrived", "finished", "ordered").alias("served"))
    told = judged.join(f.broadcast(ordered), "client", "left")
    latency = (f.col("delivered_at").cast("double") - f.col("ingress_time").cast("double")) * 1000
    after = f.col("delivered_at") > f.col("served")
    table = told.groupBy("client", f.col("filter").alias("topic"), "qos").agg(
        f.count("*").alias("expected"),
        f.count_if(f.col("verdict") == "delivered").alias("delivered"),
        f.count_if(f.col("verdict") != "delivered").alias("lost"),
        f.sum(f.greatest(f.col("times") - 1, f.lit(0))).alias("duplicated"),
        f.count_if("reordered").alias("reordered"),
        f.percentile_approx(f.when(~after, latency), 0.5).alias("before_ms"),
        f.percentile_approx(f.when(after, latency), 0.5).alias("after_ms"),
    )
    table = table.join(_silences(messages, deliveries, ordered), ["client", "topic"], "left")
    return [row.asDict() for row in table.orderBy("client", "topic").collect()]


def _subscriptions(told: DataFrame) -> DataFrame:
    """As the audit takes them: of no node in particular, because they go from node to node."""
    nothing = {"until": "timestamp", "after": _STAMPS, "reached": _STAMPS, "over": "string", "rules": "string"}
    return told.select(
        "*",
        f.lit("").alias("node"),
        f.lit(0).cast("bigint").alias("session"),
        f.lit(False).alias("no_local"),
        *(f.lit(None).cast(kind).alias(name) for name, kind in nothing.items()),
    )


def _deliveries(told: DataFrame) -> DataFrame:
    return told.select(
        "*",
        f.lit("").alias("node"),
        f.lit(0).cast("bigint").alias("session"),
        f.lit(None).cast("string").alias("share"),
        f.lit(False).alias("retained"),
        f.lit(None).cast("string").alias("dropped"),
    )


def _silences(messages: DataFrame, deliveries: DataFrame, moves: DataFrame) -> DataFrame:
    """(client, topic, silence_ms, gap_ms): the longest between two messages of a stream of which the later came after
    the order to move and the earlier not long after the client was served.  A repetition breaks no silence."""
    gaps = messages.groupBy("topic", "origin").agg(
        (1000 * _span(f.max("ingress_time"), f.min("ingress_time")) / (f.count("*") - 1)).alias("gap_ms")
    )
    in_order = Window.partitionBy("client", "topic", "origin").orderBy("at")
    first = deliveries.groupBy("client", "topic", "origin", "epoch", "sequence").agg(f.min("at").alias("at"))
    pauses = first.withColumn("before", f.lag("at").over(in_order)).join(f.broadcast(moves), "client")
    around = (f.col("at") > f.col("ordered")) & (_span(f.col("before"), f.col("served")) < SILENCE_AFTER_S)
    longest = (
        pauses.where(around)
        .groupBy("client", "topic", "origin")
        .agg((1000 * f.max(_span(f.col("at"), f.col("before")))).alias("silence_ms"))
        .join(f.broadcast(gaps), ["topic", "origin"])
    )
    worst = f.max_by(f.struct("silence_ms", "gap_ms"), f.col("silence_ms") / f.col("gap_ms")).alias("worst")
    return longest.groupBy("client", "topic").agg(worst).select("client", "topic", "worst.silence_ms", "worst.gap_ms")


def _span(later: Column, earlier: Column) -> Column:
    """In seconds."""
    return later.cast("double") - earlier.cast("double")
