"""`sterna bench pipeline`: from a node's journal through Spark, each figure beside what it was set out to be.

Nodes, publishers and Spark are real processes on this machine; every row starts its own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import Report, Row
from sterna.measure.harness.comparison import Say, machine
from sterna.measure.workloads.pipeline.feed import measure_cpu, measure_cpu_small, measure_memory
from sterna.measure.workloads.pipeline.latency import measure_latency
from sterna.measure.workloads.pipeline.plan import QUICK, Plan
from sterna.measure.workloads.pipeline.speed import measure_micro_batch, measure_throughput
from sterna.pipeline.feed.errors import FeedError
from sterna.pipeline.spark_session import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Mapping[str, Callable[[SparkSession, Plan], Row]] = {
    "throughput": measure_throughput,
    "micro-batch": measure_micro_batch,
    "latency-1k": lambda spark, plan: measure_latency(spark, plan, 1_000),
    "latency-100k": lambda spark, plan: measure_latency(spark, plan, 100_000),
    "cpu": lambda _, plan: measure_cpu(plan),
    "cpu-small": lambda _, plan: measure_cpu_small(plan),
    "memory": lambda _, plan: measure_memory(plan),
}


def _failed(name: str, reason: str) -> Row:
    return Row(name=name, summary=f"failed: {reason}", unit="-", verdict="failed")


def run(spark: SparkSession, names: Sequence[str], plan: Plan, say: Say) -> Report:
    """Measure these rows; one that fails is reported and the rest goes on."""
    rows = []
    for number, name in enumerate(names, 1):
        say(f"[{number}/{len(names)}] {name}")
        try:
            row = ROWS[name](spark, plan)
        except (MeasurementError, FeedError) as error:
            row = _failed(name, str(error))
        except PySparkException as error:
            row = _failed(name, one_line(error))
        rows.append(row)
        figure = "-" if row.figure is None else f"{row.figure:,.2f} {row.unit}"
        say(f"    {figure}, target {row.target}: {row.verdict}")
    versions = {"sterna": version("sterna"), "Spark": spark.version}
    return Report(
        benchmark="pipeline",
        title="The pipeline",
        setting="nodes, publishers and Spark share them, nothing pinned",
        versions=versions,
        machine=machine(),
        quick=plan == QUICK,
        rows=rows,
    )
