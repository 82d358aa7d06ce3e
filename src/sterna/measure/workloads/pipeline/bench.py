"""`sterna bench pipeline`: from a node's journal through Spark, each figure beside what it was set out to be.

Nodes, publishers and Spark are real processes on this machine; every row starts its own nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.measure import figures
from sterna.measure.command import Means, known
from sterna.measure.figures import Figures
from sterna.measure.harness.comparison import Say
from sterna.measure.report import MeasurementReport
from sterna.measure.workloads.pipeline.plan import EVERY, NAMES, QUICK, PipelinePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def bench(
    means: Means,
    only: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(EVERY)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller, one round, about three minutes.")] = False,
) -> MeasurementReport:
    """From a node through Spark: speed, latency, and what the feed costs the node (about seven minutes)."""
    names = [known(name, dict.fromkeys(EVERY, name), "row", "--only") and name for name in only or NAMES]
    with means.spark() as spark:
        return figures.report(run(spark, names, QUICK if quick else PipelinePlan(), means.say))


def run(spark: SparkSession, names: Sequence[str], plan: PipelinePlan, say: Say) -> Figures:
    from sterna.measure.workloads.pipeline.rows import measured_by

    rows = figures.measure_parts({name: measured_by(name, spark, plan) for name in names}, say)
    return figures.figures(
        "pipeline",
        "The pipeline",
        "nodes, publishers and Spark share them, nothing pinned",
        rows,
        quick=plan == QUICK,
        Spark=spark.version,
    )
