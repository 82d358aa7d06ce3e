"""A query with a watermark drops rows of a node that is behind the others, and keeps them where times are aligned."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from live.nodes import wait_until

from .feeding import FeedingNode, finished, numbers

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

SOON_S = 180.0
OLD, NEW, AT_ONCE = 300, 30, 60
DELAY_S = 1.0
"""Of the watermark; the new messages are later than the old ones by three times that."""


def test_rows_of_a_node_with_a_backlog_are_dropped_unless_times_are_aligned(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode]
) -> None:
    ahead, behind = start_feeding("ahead"), start_feeding("behind")
    behind.publish("t", range(OLD))
    before = time.time()
    wait_until(lambda: time.time() > before + 3 * DELAY_S, "it is later")
    ahead.publish("t", range(OLD, OLD + NEW))
    nodes = f"{ahead.feed},{behind.feed}"

    def kept(name: str, **options: str) -> tuple[list[int], int]:
        """Numbers that came through, and how often Spark says that it dropped one."""
        asked = {"nodes": nodes, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(AT_ONCE), **options}
        rows = spark.readStream.format("sterna").options(**asked).load()
        once = rows.withWatermark("ingress_time", f"{DELAY_S} seconds").dropDuplicatesWithinWatermark(["payload"])
        query = finished(
            lambda: once.writeStream.format("memory").queryName(name).trigger(availableNow=True).start(), SOON_S
        )
        dropped = sum(
            part["numRowsDroppedByWatermark"] for batch in query.recentProgress for part in batch["stateOperators"]
        )
        return numbers(spark.table(name)), dropped

    found, dropped = kept("aside")
    assert dropped == OLD + NEW - len(found) > 0
    assert set(found) > set(range(OLD, OLD + NEW)), "only old ones are missing"
    assert kept("aligned", alignTime="100ms") == (list(range(OLD + NEW)), 0)
