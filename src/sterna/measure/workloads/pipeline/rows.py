"""The rows of the pipeline's benchmark: what measures each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.workloads.pipeline.feed import measure_cpu, measure_cpu_small, measure_memory
from sterna.measure.workloads.pipeline.latency import measure_latency
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.speed import measure_micro_batch, measure_throughput
from sterna.pipeline.spark_session import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Mapping[str, Callable[[SparkSession, PipelinePlan], FigureRow]] = {
    "throughput": measure_throughput,
    "micro-batch": measure_micro_batch,
    "latency-1k": lambda spark, plan: measure_latency(spark, plan, 1_000),
    "latency-100k": lambda spark, plan: measure_latency(spark, plan, 100_000),
    "cpu": lambda _, plan: measure_cpu(plan),
    "cpu-small": lambda _, plan: measure_cpu_small(plan),
    "memory": lambda _, plan: measure_memory(plan),
}


def measured_by(name: str, spark: SparkSession, plan: PipelinePlan) -> Callable[[], list[FigureRow]]:
    def measure() -> list[FigureRow]:
        try:
            return [ROWS[name](spark, plan)]
        except PySparkException as error:
            raise MeasurementError(one_line(error)) from None

    return measure
