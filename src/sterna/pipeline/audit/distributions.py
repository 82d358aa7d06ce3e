"""Distributions of what an audit found: how long deliveries took, and when the messages came in that went wrong.

They are some dozen rows each, however many messages there were.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

BUCKETS_A_DECADE = 5
SLOTS = 60
_FATES = ("expected", "waiting", "dropped", "lost", "uncertain")


def latencies(judged: DataFrame) -> list[tuple[float, int]]:
    """(where a bucket begins in milliseconds, messages); by clocks that differ, some may take less than 0.1 ms."""
    took_ms = (_seconds("delivered_at") - _seconds("ingress_time")) * 1000
    bucket = f.floor(f.log10(f.greatest(took_ms, f.lit(0.1))) * BUCKETS_A_DECADE + 1e-9)
    rows = judged.where("verdict = 'delivered'").groupBy(bucket.alias("bucket")).count().orderBy("bucket").collect()
    return [(10 ** (row["bucket"] / BUCKETS_A_DECADE), row["count"]) for row in rows if row["bucket"] is not None]


def over_time(judged: DataFrame) -> list[dict[str, float]]:
    """A row for each slot of time in which messages came in: when it began, and what became of them."""
    came = _seconds("ingress_time")
    (span,) = judged.agg(f.min(came).alias("first"), f.max(came).alias("last")).collect()
    if span["first"] is None:
        return []
    length_s = max((span["last"] - span["first"]) / SLOTS, 1e-3)
    slot = f.least(f.floor((came - span["first"]) / length_s), f.lit(SLOTS - 1)).alias("slot")
    fates = [f.count_if(f.col("verdict") == fate).alias(fate) for fate in _FATES[1:]]
    rows = judged.groupBy(slot).agg(f.count("*").alias("expected"), *fates).orderBy("slot").collect()
    found = []
    for row in rows:
        counts = row.asDict()
        found.append({**counts, "begin": span["first"] + counts.pop("slot") * length_s})
    return found


def _seconds(name: str) -> Column:
    return f.col(name).cast("double")
