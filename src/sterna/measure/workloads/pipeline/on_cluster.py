"""Source and jobs on a standalone cluster on this machine: what driver and executors take for a message."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from sterna.measure.figures import FigureRow
from sterna.measure.harness.processes import WorkerProcess
from sterna.measure.harness.spark_cluster import SparkCluster
from sterna.measure.workloads.operators.on_spark import EXPRESSIONS, LINES, TABLES, subscribed
from sterna.measure.workloads.pipeline.cluster_driver import ClusterFigures, ClusterJob
from sterna.measure.workloads.pipeline.nodes import fill, started_node
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.publisher import PublisherLoad

BURST = 4096
DRIVER_S_MAX = 900.0
WHAT = {
    "source": "the source to the noop sink",
    "operators": f"the operators job, {len(EXPRESSIONS)} expressions",
    "archive": "the archive job, from its start to its end",
}


def measure_on_cluster(plan: PipelinePlan, kind: str, executors: int) -> FigureRow:
    return judge_on_cluster(kind, executors, run_on_cluster(plan, kind, executors))


def run_on_cluster(plan: PipelinePlan, kind: str, executors: int) -> ClusterFigures:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-bench-")))
        node = stack.enter_context(started_node(tables=TABLES))
        if kind == "operators":
            stack.enter_context(subscribed(node, EXPRESSIONS))
        fill(node, PublisherLoad(messages=plan.cluster_rows, burst=BURST, lines=LINES))
        cluster = stack.enter_context(SparkCluster(directory, executors))
        job = ClusterJob(
            master=cluster.master,
            workers=[worker.pid for worker in cluster.workers],
            feed=node.feed,
            kind=kind,
            rows=plan.cluster_rows,
            rows_per_batch=plan.rows_per_batch,
        )
        driver = WorkerProcess("sterna.measure.workloads.pipeline.cluster_driver", job)
        stack.callback(driver.stop)
        return driver.result(ClusterFigures, "the driver", DRIVER_S_MAX)


def judge_on_cluster(kind: str, executors: int, found: ClusterFigures) -> FigureRow:
    share = found.driver_cpu_s / max(1e-9, found.driver_cpu_s + found.executors_cpu_s)
    return FigureRow(
        name=f"{kind}-on-{executors}",
        summary=f"{WHAT[kind]}: {found.rows:,} messages, executors of one core each: {executors}.",
        unit="messages/s",
        figure=found.rows / found.seconds,
        verdict="shown",
        remarks=[
            f"CPU for a message: driver {1e6 * found.driver_cpu_s / found.rows:.2f} µs, "
            f"executors {1e6 * found.executors_cpu_s / found.rows:.2f} µs (the driver's share is {share:.0%})",
            f"resident memory at its most: driver {found.driver_mib:,.0f} MiB, "
            f"executors {found.executors_mib:,.0f} MiB",
            f"the machine has {os.cpu_count()} cores for node, driver and executors together",
        ],
    )
