"""The rows of the pipeline's benchmark: what measures each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.workloads.operators.on_spark import EXPRESSIONS
from sterna.measure.workloads.pipeline.at_rate import many_expressions, measure_at_rate
from sterna.measure.workloads.pipeline.cluster_memory import measure_cluster_memory
from sterna.measure.workloads.pipeline.feed import measure_cpu, measure_cpu_small, measure_memory
from sterna.measure.workloads.pipeline.latency import measure_latency
from sterna.measure.workloads.pipeline.made_archive import measure_archive_files
from sterna.measure.workloads.pipeline.made_audit import measure_audit, measure_audit_memory
from sterna.measure.workloads.pipeline.made_messages import measure_archive_messages
from sterna.measure.workloads.pipeline.on_cluster import measure_on_cluster
from sterna.measure.workloads.pipeline.plan import MEMORY_OF, ON_CLUSTER, PipelinePlan
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
    "audit": measure_audit,
    "audit-memory": measure_audit_memory,
    "archive-files": lambda _, plan: measure_archive_files(plan),
    "archive-messages": measure_archive_messages,
    **{
        name: lambda _, plan, how=how: measure_on_cluster(plan, *how)  # type: ignore[misc]  # bound now
        for name, how in ON_CLUSTER.items()
    },
    "operators-at-100k": lambda _, plan: measure_at_rate(plan, EXPRESSIONS),
    "operators-at-100k-of-10k": lambda _, plan: measure_at_rate(plan, many_expressions(plan.expressions)),
    **{
        name: lambda _, plan, kind=kind: measure_cluster_memory(plan, kind)  # type: ignore[misc]  # bound now
        for name, kind in MEMORY_OF.items()
    },
}


def measured_by(name: str, spark: SparkSession, plan: PipelinePlan) -> Callable[[], list[FigureRow]]:
    def measure() -> list[FigureRow]:
        try:
            return [ROWS[name](spark, plan)]
        except PySparkException as error:
            raise MeasurementError(one_line(error)) from None

    return measure
