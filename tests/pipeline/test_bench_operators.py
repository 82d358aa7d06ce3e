"""How the benchmark of expressions on Spark judges: late, not held, wrong, twice or missing."""

from __future__ import annotations

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.workloads.operators.in_order import EXPRESSION, judge_in_order
from sterna.measure.workloads.operators.on_spark import EXPRESSIONS, RATE, judge_exact, judge_late
from sterna.operators.explain import placed
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings


def test_there_are_a_hundred_expressions_and_all_are_sparks() -> None:
    assert len(set(EXPRESSIONS)) == 100
    assert {placed(parse(text.encode()), OperatorSettings(engine="spark"))[0] for text in EXPRESSIONS} == {"spark"}


@pytest.mark.parametrize(
    ("late_ms", "held", "verdict"),
    [([300.0] * 100, RATE, "reached"), ([300.0] * 98 + [2000.0] * 2, RATE, "missed"), ([300.0], RATE * 0.9, "missed")],
)
def test_late_is_judged_by_the_slowest_and_by_the_rate(late_ms: list[float], held: float, verdict: str) -> None:
    assert judge_late(late_ms, held).verdict == verdict


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(MeasurementError):
        judge_late([], RATE)


COUNTED = {5.0: 7, 10.0: 100, 15.0: 200}


@pytest.mark.parametrize(
    ("told", "figure"),
    [
        ([(5.0, 1), (10.0, 100), (15.0, 200)], 0),
        ([(10.0, 100)], 1),
        ([(10.0, 99), (15.0, 200)], 1),
        ([(10.0, 100), (15.0, 200), (15.0, 200)], 1),
    ],
    ids=["right", "missing", "wrong", "twice"],
)
def test_every_window_is_held_against_the_journal(told: list[tuple[float, int]], figure: int) -> None:
    row = judge_exact(told, COUNTED, 15.0)
    assert row.figure == figure
    assert row.verdict == ("missed" if figure else "reached")


def test_in_order_is_measured_from_the_end_of_the_first_batch() -> None:
    assert placed(parse(EXPRESSION.encode()), OperatorSettings(engine="spark"))[0] == "spark"
    row = judge_in_order([10.0, 10.01, 12.0, 12.01, 14.0, 14.01], 1.0)
    assert row.figure == pytest.approx(4 * 20_000 / 4.0)
    with pytest.raises(MeasurementError, match="at once"):
        judge_in_order([10.0, 10.01], 1.0)
