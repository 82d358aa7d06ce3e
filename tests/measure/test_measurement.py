"""The statistics, and when a figure must not be trusted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.measure.harness.measurement import Measurement, percentile, summarise


def measured(**changed: Any) -> Measurement:
    fields: dict[str, Any] = {
        "seconds": 2.0,
        "published": 100,
        "delivered": 1000,
        "broker_cpu_s": 1.9,
        "generator_busy": 0.5,
    }
    return Measurement(**{**fields, **changed})


@given(st.lists(st.integers(0, 1000), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values: list[int], share: float) -> None:
    found = percentile(sorted(values), share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_percentiles_of_a_hundred_values_are_the_values_of_that_rank() -> None:
    ordered = list(range(1, 101))
    assert [percentile(ordered, share) for share in (0.50, 0.99, 1.0)] == [50, 99, 100]


def test_the_median_round_counts_and_the_worst_loss_is_kept() -> None:
    rounds = [measured(broker_cpu_s=cpu, lost=lost) for cpu, lost in ((1.0, 0), (9.0, 3), (2.0, 0))]
    summary = summarise("cpu_us_per_message", rounds)
    assert summary.figure == summary.cpu_us_per_message == 2000.0
    assert (summary.figure_min, summary.figure_max) == (1000.0, 9000.0)
    assert summary.lost == 3
    assert summary.throughput == 500.0
    assert summary.latency_p99_us is None


@pytest.mark.parametrize(
    ("generator", "broker_cpu_s", "bound"), [(0.96, 1.7, True), (0.96, 1.9, False), (0.94, 1.7, False)]
)
def test_the_generator_is_to_blame_only_if_it_is_busy_and_the_broker_is_not(
    generator: float, broker_cpu_s: float, bound: bool
) -> None:
    assert measured(generator_busy=generator, broker_cpu_s=broker_cpu_s).generator_bound is bound


def test_a_run_is_disturbed_when_sends_are_late_or_the_broker_waits_for_its_core() -> None:
    assert measured(late=2).disturbed
    assert measured(broker_waited_s=0.2).disturbed
    assert not measured(late=1, broker_waited_s=0.1).disturbed
    assert not measured(published=0).disturbed
