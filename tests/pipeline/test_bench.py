"""The benchmark of the pipeline: small, with real nodes and Spark, and how its figures are judged."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from sterna.measure import figures
from sterna.measure.errors import MeasurementError
from sterna.measure.workloads.pipeline import bench
from sterna.measure.workloads.pipeline.at_rate import (
    AT_ONCE,
    MANY_TABLES,
    judge_at_rate,
    many_expressions,
    subscribed_at_once,
)
from sterna.measure.workloads.pipeline.cluster_driver import ClusterFigures
from sterna.measure.workloads.pipeline.cluster_memory import measure_cluster_memory
from sterna.measure.workloads.pipeline.latency import judge_latency
from sterna.measure.workloads.pipeline.made_archive import PlanFigures, judge_archive_files, measure_archive_files
from sterna.measure.workloads.pipeline.made_audit import AuditCost, judge_audit, judge_audit_memory
from sterna.measure.workloads.pipeline.made_messages import (
    BEGIN,
    HOUR_US,
    LEVEL,
    LEVELS,
    ArchiveCost,
    MadeMessages,
    QuestionCost,
    judge_archive_messages,
)
from sterna.measure.workloads.pipeline.nodes import started_node
from sterna.measure.workloads.pipeline.on_cluster import judge_on_cluster
from sterna.measure.workloads.pipeline.plan import EVERY, NAMES, PipelinePlan
from sterna.measure.workloads.pipeline.rows import ROWS
from sterna.measure.workloads.pipeline.speed import judge_micro_batch, judge_throughput
from sterna.operators.explain import placed
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings

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
    audited=30_000,
    cluster_rows=20_000,
    at_rate=1_000,
    at_rate_warm_up_s=2.0,
    at_rate_s=10.0,
    expressions=1_000,
    archived_files=2_000,
    archived=20_000,
    archived_days=2,
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_audit_of_made_up_records_finds_what_is_missing(spark: SparkSession) -> None:
    (row,) = bench.run(spark, ["audit"], TINY, print).rows
    assert row.verdict in ("reached", "missed"), row.summary
    assert row.figure is not None
    assert row.figure > 0
    assert "Python" in row.remarks[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("STERNA_KILL_PAIRS") != "all", reason="a cluster of its own: make soak")
@pytest.mark.parametrize("name", ["source-on-1", "operators-on-2", "archive-on-1"])
def test_driver_and_executors_are_measured_apart(spark: SparkSession, name: str) -> None:
    (row,) = bench.run(spark, [name], TINY, print).rows
    assert row.verdict == "shown", row.summary
    assert "the driver's share" in row.remarks[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("STERNA_KILL_PAIRS") != "all", reason="clusters of their own: make soak")
@pytest.mark.parametrize("name", ["operators-at-100k", "operators-at-100k-of-10k", "memory-of-archive"])
def test_what_has_a_target_on_a_cluster_is_measured(spark: SparkSession, name: str) -> None:
    (row,) = bench.run(spark, [name], TINY, print).rows
    assert row.verdict in ("reached", "missed"), row.summary
    assert row.figure is not None
    assert row.figure > 0


def test_ten_thousand_expressions_are_all_different_and_all_sparks() -> None:
    many = many_expressions(10_000)
    assert len(set(many)) == 10_000
    settings = OperatorSettings(engine="spark")
    assert {placed(parse(text.encode()), settings)[0] for text in many[::97]} == {"spark"}


@pytest.mark.slow
def test_a_client_subscribes_to_more_expressions_than_a_packet_holds() -> None:
    count = AT_ONCE + 100
    with started_node(tables=MANY_TABLES) as node, subscribed_at_once(node, many_expressions(count)):
        pass
    with (
        started_node(tables={"operators": MANY_TABLES["operators"]}) as node,
        pytest.raises(MeasurementError, match="were refused"),
        subscribed_at_once(node, many_expressions(count)),
    ):
        pass


@pytest.mark.parametrize(
    ("driver_s", "rows", "verdict"), [(0.9, 1_000_000, "reached"), (1.1, 1_000_000, "missed"), (0.9, 900_000, "missed")]
)
def test_the_drivers_share_is_judged_where_the_rate_was_held(driver_s: float, rows: int, verdict: str) -> None:
    cost = ClusterFigures(
        rows=rows, seconds=10.0, driver_cpu_s=driver_s, executors_cpu_s=10 - driver_s, driver_mib=1, executors_mib=1
    )
    row = judge_at_rate(100_000, 100, cost)
    assert (row.name, row.verdict) == ("operators-at-100k", verdict)
    assert ("the rate was not held." in row.remarks) == (rows < 1_000_000)
    assert judge_at_rate(100_000, 10_000, cost).name == "operators-at-100k-of-10k"


@pytest.mark.parametrize(("grown_mib", "verdict"), [(250.0, "reached"), (251.0, "missed")])
def test_memory_is_judged_beside_a_quarter_of_the_messages(grown_mib: float, verdict: str) -> None:
    def cluster(plan: PipelinePlan, kind: str, _executors: int) -> ClusterFigures:
        found = {10_000: 100.0, 40_000: grown_mib / 2}[plan.cluster_rows]
        return ClusterFigures(
            rows=plan.cluster_rows, seconds=1, driver_cpu_s=1, executors_cpu_s=1, driver_mib=found,
            executors_mib=found,
        )  # fmt: skip

    assert measure_cluster_memory(TINY, "archive", cluster).verdict == verdict
    before, after = AuditCost(1.0, 150.0, 50.0), AuditCost(4.0, grown_mib - 50, 50.0)
    assert judge_audit_memory(400, 100, before, after).verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(1000.0, "reached"), (1001.0, "missed")])
def test_an_audit_of_a_hundred_million_takes_minutes(seconds: float, verdict: str) -> None:
    assert judge_audit(100_000_000, AuditCost(seconds, 1.0, 1.0)).verdict == verdict


@pytest.mark.slow
def test_a_question_to_a_made_up_log_is_planned() -> None:
    row = measure_archive_files(replace(TINY, archived_files=30_000))
    assert (row.verdict, row.remarks[0].partition(" ")[0]) == ("reached", "3"), row


@pytest.mark.parametrize(
    ("seconds", "mib", "files", "verdict"),
    [(30.0, 2048.0, 9, "reached"), (31.0, 1.0, 9, "missed"), (1.0, 2049.0, 9, "missed"), (1.0, 1.0, 1_000, "missed")],
)
def test_planning_is_judged_by_time_memory_and_by_files_passed_over(
    seconds: float, mib: float, files: int, verdict: str
) -> None:
    assert judge_archive_files(1_000, PlanFigures(seconds=seconds, mib=mib, files=files)).verdict == verdict


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_archive_of_made_up_messages_is_asked(spark: SparkSession) -> None:
    (row,) = bench.run(spark, ["archive-messages"], TINY, print).rows
    assert row.verdict in ("reached", "missed"), row.summary
    assert "1 of 20 files is left" in row.remarks[0]


@pytest.mark.parametrize(
    ("seconds", "files", "verdict"), [(30.0, 9, "reached"), (31.0, 9, "missed"), (1.0, 1_000, "missed")]
)
def test_an_archive_of_messages_is_judged_by_time_and_by_files_passed_over(
    seconds: float, files: int, verdict: str
) -> None:
    cost = ArchiveCost(1_000, QuestionCost(seconds, files), QuestionCost(60.0, 1_000), 1.0, 1.0)
    assert judge_archive_messages(1_000_000, cost).verdict == verdict


def test_messages_of_an_hour_are_counted_as_they_are_made() -> None:
    """A question of everything beside it would not notice a count that is made as wrongly as the messages."""
    made = MadeMessages(20_000, 3)
    since_us = (made.noon - BEGIN) // timedelta(microseconds=1)
    there = [one for one in range(made.count) if since_us <= one * made.step_us < since_us + HOUR_US]
    assert made.of_an_hour() == sum(one % LEVELS == LEVEL for one in there) > 0


def test_a_share_of_the_driver_is_told() -> None:
    found = ClusterFigures(
        rows=1_000_000, seconds=2.0, driver_cpu_s=0.1, executors_cpu_s=0.9, driver_mib=10, executors_mib=20
    )
    row = judge_on_cluster("source", 2, found)
    assert (row.name, row.figure) == ("source-on-2", 500_000)
    assert row.remarks[0].startswith("CPU for a message: driver 0.10 µs, executors 0.90 µs (the driver's share is 10%)")


def test_every_name_has_its_measurement() -> None:
    assert tuple(ROWS) == EVERY


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
