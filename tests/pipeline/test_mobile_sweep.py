"""Runs of the experiment with brokers that move, as tasks of Spark: the same figures as in this process."""

from __future__ import annotations

from contextlib import nullcontext

from pyspark.sql import SparkSession

from sterna.measure.papers.mobile.sweep import measured, on_spark
from sterna.simulation.papers.radio_run import RunPlan


def test_a_run_gives_the_same_on_spark(spark: SparkSession) -> None:
    plans = [
        RunPlan(configuration="C4", speed_m_s=8.0, protocol=protocol, seed=seed, publish_s=5.0, silence_s=2.0)
        for protocol in ("mft", "aodv")
        for seed in (1, 2)
    ]
    said: list[str] = []
    samples = on_spark(plans, lambda: nullcontext(spark), None, said.append)
    assert {one.figures.plan for one in samples} == set(plans)
    assert {one.figures.digest for one in samples} == {measured(plan, None).figures.digest for plan in plans}
    assert said
