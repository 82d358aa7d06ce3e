"""`sterna bench adaptation` measures a pass that has something to decide."""

from __future__ import annotations

from random import Random

from sterna.adaptation.deciding import decide
from sterna.adaptation.reasons import Move, Start
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.workloads.adaptation.bench import _measured, town


def test_the_town_has_something_to_decide() -> None:
    decisions = decide(town(200, 20, Random(1)).picture(1.0), AdaptationTuning(steady_s=0.0, high_s=0.0)).decisions
    assert any(isinstance(one, Move) for one in decisions)
    assert any(isinstance(one, Start) for one in decisions)


def test_its_rows_are_a_time_and_a_size() -> None:
    rows = _measured(50, 10, "small")
    assert [row.unit for row in rows] == ["s CPU", "MiB"]
    assert all(row.figure is not None and row.figure > 0 for row in rows)
