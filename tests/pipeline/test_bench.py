"""The benchmark of the pipeline: small, with real nodes and Spark, and how its figures are judged."""

from __future__ import annotations

import io

import numpy as np
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from sterna.measure import figures
from sterna.measure.workloads.pipeline import bench
from sterna.measure.workloads.pipeline.latency import judge_latency
from sterna.measure.workloads.pipeline.plan import NAMES, PipelinePlan
from sterna.measure.workloads.pipeline.rows import ROWS
from sterna.measure.workloads.pipeline.speed import judge_micro_batch, judge_throughput

TINY = PipelinePlan(
    rounds=1,
    warm_up_rounds=0,
    warm_up_batches=0,
    rows=40_000,
    rows_per_batch=20_000,
    batches=1,
    batches_before=1,
    latency_s=1.0,
    latency_warm_up_s=0.0,
    served_rows=10_000,
    served_small_rows=200,
    lag=50_000,
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_row_is_measured_and_told(spark: SparkSession) -> None:
    said: list[str] = []
    report = bench.run(spark, NAMES, TINY, said.append)
    assert [row.name for row in report.rows] == list(NAMES)
    assert [(row.name, row.summary) for row in report.rows if row.verdict == "failed"] == []
    assert all(row.figure is not None and row.figure > 0 for row in report.rows)
    assert sum(line.startswith("[") for line in said) == len(NAMES)
    out = io.StringIO()
    figures.report(report).as_table(Console(file=out, width=120))
    assert all(name in out.getvalue() for name in NAMES)


def test_every_name_has_its_measurement() -> None:
    assert tuple(ROWS) == NAMES


@pytest.mark.parametrize(("ours", "verdict"), [(600.0, "reached"), (599.0, "missed")])
def test_throughput_is_judged_beside_the_ready_made_source(ours: float, verdict: str) -> None:
    row = judge_throughput([(ours, 1000.0), (1.0, 1000.0), (1000.0, 1000.0)], TINY)
    assert (row.figure, row.beside, row.verdict) == (ours, 1000.0, verdict)


@pytest.mark.parametrize(("ours", "verdict"), [(60.0, "reached"), (61.0, "missed")])
def test_a_micro_batch_is_judged_beside_one_of_the_rate_source(ours: float, verdict: str) -> None:
    row = judge_micro_batch([(ours, 40.0)])
    assert (row.figure, row.beside, row.verdict) == (ours, 40.0, verdict)


@pytest.mark.parametrize(
    ("age_ms", "held", "verdict"), [(200.0, 1000.0, "reached"), (201.0, 1000.0, "missed"), (100.0, 900.0, "missed")]
)
def test_latency_counts_only_where_the_rate_was_held(age_ms: float, held: float, verdict: str) -> None:
    row = judge_latency(1_000, np.full(100, age_ms), held, done=3)
    assert (row.figure, row.verdict) == (age_ms, verdict)
    assert any("900 messages a second" in remark for remark in row.remarks) == (held < 1000)
