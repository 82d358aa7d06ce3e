"""How fast rows get from a node through Spark: at full speed, and in batches of a few rows.

Each beside what Spark itself takes for the same, in turns, in the same session.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.nodes import FeedNode, fill, publishing, reader_of, started_node
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.publisher import PublisherLoad
from sterna.measure.workloads.pipeline.queries import SparkBatch, run_to_its_end, running, stream, wait_for_batches
from sterna.measure.workloads.pipeline.ready_made import Dealt, ReadyMade, make_ready
from sterna.pipeline.offsets import Range, TaskCut, packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THROUGHPUT_MIN = 0.6
MICRO_BATCH_MAX = 1.5
IDLE_RATE = 20
"""Messages a second and node: a few rows for each batch."""
FULL_FRAMES = 4096


def measure_throughput(spark: SparkSession, plan: PipelinePlan) -> FigureRow:
    with started_node() as node, tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        fill(node, PublisherLoad(messages=plan.rows, burst=FULL_FRAMES))
        file = Path(directory) / "ready-made.arrow"
        dealt = make_ready(file, _as_spark_takes_them(node, plan))
        spark.dataSource.register(ReadyMade)
        rounds = []
        for number in range(plan.warm_up_rounds + plan.rounds):
            ours = _rate(_sterna(spark, node, plan, f"throughput-{number}"), plan)
            theirs = _rate(_ready_made(spark, file, dealt), plan)
            rounds.append((ours, theirs))
    return judge_throughput(rounds[plan.warm_up_rounds :], plan)


def judge_throughput(rounds: Sequence[tuple[float, float]], plan: PipelinePlan) -> FigureRow:
    ours, theirs = (median(rates) for rates in zip(*rounds, strict=True))
    ratio = median(one / other for one, other in rounds)
    return FigureRow(
        name="throughput",
        summary=f"{plan.rows:,} rows of 100 bytes to the noop sink, {plan.rows_per_batch:,} a micro-batch, beside a "
        "Python source that yields the same Arrow batches ready-made; published through MQTT at QoS 1.",
        unit="rows/s",
        figure=ours,
        beside=theirs,
        ratio=ratio,
        target=f">= {THROUGHPUT_MIN:g}x",
        verdict=verdict(ratio >= THROUGHPUT_MIN),
        rounds=list(rounds),
    )


def _sterna(spark: SparkSession, node: FeedNode, plan: PipelinePlan, reader: str) -> DataFrame:
    options = {"nodes": node.feed, "startingOffsets": "earliest", "reader": reader}
    return stream(spark, "sterna", {**options, "maxOffsetsPerTrigger": plan.rows_per_batch})


def _ready_made(spark: SparkSession, file: Path, dealt: Dealt) -> DataFrame:
    return stream(spark, ReadyMade.name(), {"file": file, "dealt": json.dumps(dealt)})


def _as_spark_takes_them(node: FeedNode, plan: PipelinePlan) -> Iterator[list[Iterator[Any]]]:
    """The Arrow batches of every task of every micro-batch, as `format("sterna")` has them."""
    with reader_of(node) as feed:
        for start in range(0, plan.rows, plan.rows_per_batch):
            whole = Range("bench", start, min(plan.rows, start + plan.rows_per_batch))
            tasks = packed([whole], TaskCut(os.cpu_count() or 1))
            yield [feed.read(part.start, part.stop) for parts in tasks for part in parts]


def _rate(table: DataFrame, plan: PipelinePlan) -> float:
    """Rows a second, the first micro-batch aside: it starts the workers."""
    done = run_to_its_end(table)
    rows = sum(batch.rows for batch in done)
    if rows != plan.rows:
        raise MeasurementError(f"{rows:,} rows were read of {plan.rows:,}")
    counted = done[1:] or done
    return sum(batch.rows for batch in counted) / sum(batch.seconds for batch in counted)


def measure_micro_batch(spark: SparkSession, plan: PipelinePlan) -> FigureRow:
    with ExitStack() as stack:
        nodes = [stack.enter_context(started_node(name)) for name in ("bench-a", "bench-b")]
        for node in nodes:
            stack.enter_context(publishing(node, PublisherLoad(messages=IDLE_RATE * 3600, rate=IDLE_RATE)))
        ours = {"nodes": ",".join(node.feed for node in nodes), "startingOffsets": "latest"}
        theirs = {"rowsPerSecond": 2 * IDLE_RATE, "numPartitions": 2}
        _warm_up(stream(spark, "sterna", ours), plan)
        # The rate source itself has a batch a second; its sibling runs through the same code as often as one likes.
        _warm_up(stream(spark, "rate-micro-batch", {"rowsPerBatch": 2 * IDLE_RATE, "numPartitions": 2}), plan)
        rounds = [
            (
                _duration_ms(stream(spark, "sterna", {**ours, "reader": f"micro-batch-{number}"}), plan),
                _duration_ms(stream(spark, "rate", theirs), plan),
            )
            for number in range(plan.rounds)
        ]
    return judge_micro_batch(rounds)


def judge_micro_batch(rounds: Sequence[tuple[float, float]]) -> FigureRow:
    ours, theirs = (median(durations) for durations in zip(*rounds, strict=True))
    ratio = median(one / other for one, other in rounds)
    return FigureRow(
        name="micro-batch",
        summary=f"one with about {2 * IDLE_RATE} rows from two nodes, a task each, to the noop sink, once a second, "
        "beside one of Spark's rate source with two partitions; median of each round.",
        unit="ms",
        figure=ours,
        beside=theirs,
        ratio=ratio,
        target=f"<= {MICRO_BATCH_MAX:g}x",
        verdict=verdict(ratio <= MICRO_BATCH_MAX),
        rounds=list(rounds),
    )


def _warm_up(table: DataFrame, plan: PipelinePlan) -> None:
    if plan.warm_up_batches:
        with running(table, processingTime="0 seconds") as query:
            wait_for_batches(query, plan.warm_up_batches)


def _duration_ms(table: DataFrame, plan: PipelinePlan) -> float:
    with running(table, processingTime="1 second") as query:
        found = wait_for_batches(query, plan.batches_before + plan.batches)
    counted = [batch for batch in found[plan.batches_before :] if _all_nodes_have_rows(batch)]
    if not counted:
        raise MeasurementError("no micro-batch had rows of both nodes")
    return median(batch.seconds for batch in counted) * 1000


def _all_nodes_have_rows(batch: SparkBatch) -> bool:
    return all(batch.start.get(node, end) < end for node, end in batch.end.items())
