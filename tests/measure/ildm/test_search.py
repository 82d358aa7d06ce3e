"""The search for the limit: the paper's bound of 5 %, its count of measurements, bisection, and noise."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.measure.errors import MeasurementError
from sterna.measure.ildm.search import DOUBLINGS_MAX, SearchResult, find_limit, twentieths


def sham(limit_ms: float) -> tuple[list[float], SearchResult]:
    """A broker that keeps up with intervals of at least so much, searched from one millisecond on."""
    asked: list[float] = []

    def passes(interval: float) -> bool:
        asked.append(interval)
        return interval >= limit_ms

    return asked, find_limit(passes, 1.0)


def test_the_limit_of_a_sham_broker_is_found_within_5_percent_100_of_100_times() -> None:
    dice = random.Random(20190730)
    found = 0
    for _ in range(100):
        limit = 2 ** dice.uniform(-5, 9)
        asked, result = sham(limit)
        throughput, best = 1 / result.interval_ms, 1 / limit
        found += throughput <= best <= throughput * 1.05
        assert result.fine == 19
        assert len(asked) == len(set(asked))
        assert not result.is_noisy
    assert found == 100


@given(st.floats(0.01, 1000.0))
def test_neighbouring_twentieths_differ_by_at_most_5_percent(interval: float) -> None:
    steps = [interval / 2, *twentieths(interval), interval]
    assert len(steps) == 21
    for small, large in pairwise(steps):
        assert 1 < large / small <= 1.05 + 1e-9


@given(st.floats(0.03, 1000.0), st.sampled_from([0.25, 1.0, 8.0, 64.0]))
def test_bisection_finds_the_same_interval_with_fewer_measurements(limit: float, start: float) -> None:
    def passes(interval: float) -> bool:
        return interval >= limit

    slow, quick = find_limit(passes, start), find_limit(passes, start, "bisect")
    assert quick.interval_ms == slow.interval_ms
    assert quick.fine <= 5


def test_noise_is_noticed_and_the_interval_counts_above_which_all_passed() -> None:
    result = find_limit(lambda interval: interval >= 2.2 and interval != 3.0, 1.0)
    assert result.is_noisy
    assert result.interval_ms == pytest.approx(3.1)
    assert not find_limit(lambda interval: interval >= 2.2, 1.0).is_noisy


def test_a_system_without_a_limit_or_without_any_speed_is_named() -> None:
    with pytest.raises(MeasurementError, match="does not reach the limit"):
        find_limit(lambda interval: True, 1.0)
    asked = []
    with pytest.raises(MeasurementError, match="does not keep up"):
        find_limit(lambda interval: bool(asked.append(interval)), 1.0)  # type: ignore[func-returns-value]
    assert len(asked) == DOUBLINGS_MAX + 1
