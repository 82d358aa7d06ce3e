"""A town's figures on Spark are those of the analysis in memory, to the last bit but for the order of sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from sterna.measure.papers.emma.analysis import PlainAnalysis, TownRow
from sterna.measure.papers.emma.on_spark import SparkAnalysis
from sterna.measure.papers.emma.plans import PlannedRun, factories_plans, nearest, played
from sterna.measure.papers.emma.playbooks import emma, factories
from sterna.measure.papers.emma.records import RunRecords

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def written(plans: list[PlannedRun], directory: Path) -> list[RunRecords]:
    runs = played(plans, 1, print, live=False, keep=True)
    for run in runs:
        run.write(directory)
    return runs


def assert_same(one: TownRow, other: TownRow) -> None:
    """Sums of numbers with fractions are in another order."""
    first, second = msgspec.to_builtins(one), msgspec.to_builtins(other)
    latencies = first.pop("latency_ms"), second.pop("latency_ms")
    assert first == second
    assert latencies[0].keys() == latencies[1].keys()
    for topic, minutes in latencies[0].items():
        for minute, other_minute in zip(minutes, latencies[1][topic], strict=True):
            assert (minute is None) == (other_minute is None)
            assert minute is None or minute == pytest.approx(other_minute, rel=1e-9)
        assert any(minute is not None for minute in minutes)


def test_factories_have_the_same_figures(spark: SparkSession, tmp_path: Path) -> None:
    plans = [
        plan._replace(playbook=factories(scaled=scaled, minute_s=20.0, per_line=2))
        for plan, scaled in zip(factories_plans(None), (False, True), strict=True)
    ]
    static, dynamic = written(plans, tmp_path)
    plain, on_spark = PlainAnalysis(), SparkAnalysis(spark, tmp_path)
    for run in (static, dynamic):
        assert_same(plain.row(run), on_spark.row(run))
        assert plain.node_seconds(run) == on_spark.node_seconds(run) > 0
    assert plain.matched(dynamic) == on_spark.matched(dynamic) > 0
    spikes = plain.spikes(static, dynamic)
    assert spikes == on_spark.spikes(static, dynamic)
    assert spikes[0] > 0, "nobody knows at the start where it is"


def test_emma_has_the_same_figures(spark: SparkSession, tmp_path: Path) -> None:
    by_hand, dynamic = (emma(scaled=scaled, step_s=20.0, size=2) for scaled in (False, True))
    tuning = factories_plans(None)[0].tuning
    static, scaled = written([PlannedRun(by_hand, tuning), PlannedRun(dynamic, tuning)], tmp_path)
    best = nearest(static)
    best.write(tmp_path)
    plain, on_spark = PlainAnalysis(), SparkAnalysis(spark, tmp_path)
    assert_same(plain.row(static), on_spark.row(static))
    same = plain.same_choice(best, static)
    assert same == on_spark.same_choice(best, static)
    assert 0 < same < 1, "with steps as short as these some are not where they should be"
    assert plain.slower(static, scaled) == pytest.approx(on_spark.slower(static, scaled), rel=1e-9)
