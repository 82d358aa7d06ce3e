"""How old a message is when Spark is done with it.

From the instant at which the node took the message in (`ingress_time`) to the end of the micro-batch that held it: the
noop sink has had its rows and the checkpoint says so.  Which batch that was follows from the offsets Spark tells, so
nothing is added to the query to measure it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.nodes import FeedNode, publishing, reader_of, started_node
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.publisher import PublisherLoad
from sterna.measure.workloads.pipeline.queries import SparkBatch, batches, running, stream, wait_for_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGETS_MS = {1_000: 200.0, 100_000: 250.0}
HELD_MIN = 0.98
"""Part of the rate that has to come in for the rate to count as held."""
HOUR_S = 3600


def measure_latency(spark: SparkSession, plan: PipelinePlan, rate: int) -> FigureRow:
    with started_node() as node, publishing(node, PublisherLoad(messages=rate * HOUR_S, rate=rate)) as publisher:
        table = stream(spark, "sterna", {"nodes": node.feed, "startingOffsets": "latest", "reader": "latency"})
        with running(table, processingTime="0 seconds") as query:
            wait_for_batches(query, 1)
            time.sleep(plan.latency_warm_up_s)
            before = len(batches(query))
            time.sleep(plan.latency_s)
            done = wait_for_batches(query, before + 1)[before:]
        if publisher.is_over:
            raise MeasurementError(f"the publisher gave up at {rate:,} messages a second")
        publisher.stop()
        return judge_latency(rate, *_ages(node, done), len(done))


def _ages(node: FeedNode, done: Sequence[SparkBatch]) -> tuple[np.ndarray, float]:
    """The age in milliseconds of every row when its batch was done, and the rate at which the rows had come in."""
    ages, first, last = [], None, 0
    with reader_of(node) as feed:
        for batch in done:
            ((_, stop),) = batch.end.items()
            for rows in feed.read(stop - batch.rows, stop, columns=["ingress_time"]):
                taken_us = rows.column("ingress_time").cast(pa.int64()).to_numpy()
                ages.append((batch.done_us - taken_us) / 1000)
                first, last = taken_us[0] if first is None else first, taken_us[-1]
    whole = np.concatenate(ages)
    return whole, (len(whole) - 1) / max(1, last - (first or 0)) * 1e6


def judge_latency(rate: int, ages_ms: np.ndarray, held: float, done: int) -> FigureRow:
    p50, p95, p99 = (float(value) for value in np.percentile(ages_ms, (50, 95, 99)))
    remarks = [f"p95 {p95:,.0f} ms, p99 {p99:,.0f} ms; {len(ages_ms):,} messages in {done} micro-batches."]
    is_held = held >= HELD_MIN * rate
    if not is_held:
        remarks.append(f"the rate was not held: {held:,.0f} messages a second came in.")
    return FigureRow(
        name=f"latency-{rate // 1000}k",
        summary=f"{rate:,} messages a second over MQTT at QoS 1: from ingress_time to the end of the micro-batch with "
        "the message, noop sink and checkpoint included.",
        unit="ms p50",
        figure=p50,
        target=f"<= {TARGETS_MS[rate]:g}",
        verdict=verdict(is_held and p50 <= TARGETS_MS[rate]),
        remarks=remarks,
    )
