"""Memory of driver and executors on a cluster, with so many messages and with four times as many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sterna.measure.figures import FigureRow
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.cluster_driver import ClusterFigures
from sterna.measure.workloads.pipeline.on_cluster import run_on_cluster
from sterna.measure.workloads.pipeline.plan import PipelinePlan

EXECUTORS, TIMES, GROWN_MAX = 2, 4, 1.25

Run = Callable[[PipelinePlan, str, int], ClusterFigures]


def measure_cluster_memory(plan: PipelinePlan, kind: str, run: Run = run_on_cluster) -> FigureRow:
    """A cluster and a node of its own for each of the two."""
    few = replace(plan, cluster_rows=plan.cluster_rows // 2)
    some, more = run(few, kind, EXECUTORS), run(replace(few, cluster_rows=TIMES * few.cluster_rows), kind, EXECUTORS)
    ours, beside = (found.driver_mib + found.executors_mib for found in (more, some))
    ratio = ours / beside
    return FigureRow(
        name=f"memory-of-{kind}",
        summary=f"most resident memory of driver and {EXECUTORS} executors ({kind}) with {more.rows:,} messages, "
        f"beside {some.rows:,}.",
        unit="MiB",
        figure=ours,
        beside=beside,
        ratio=ratio,
        target=f"<= {GROWN_MAX:g}x",
        verdict=verdict(ratio <= GROWN_MAX),
        remarks=[
            f"driver {more.driver_mib:,.0f} beside {some.driver_mib:,.0f} MiB, executors {more.executors_mib:,.0f} "
            f"beside {some.executors_mib:,.0f} MiB"
        ],
    )
