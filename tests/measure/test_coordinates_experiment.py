"""The experiments on coordinates: one seed gives the shapes of the thesis, twice the same, and a report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from sterna.measure.papers.coordinates import report as reporting
from sterna.measure.papers.coordinates.accuracy import AccuracyRun, accuracy
from sterna.measure.papers.coordinates.neighbours import MIXES, RoundResult, neighbours, trained
from sterna.measure.papers.coordinates.world import WorldShape
from sterna.overlay.vivaldi_settings import DEFAULT, PAPER

SHAPE = WorldShape()
FAST = replace(DEFAULT, replays=0)


@pytest.mark.slow
def test_the_error_falls_and_then_is_flat_and_the_same_dice_fall_the_same_way() -> None:
    first = accuracy(1, PAPER, SHAPE)
    assert first == accuracy(1, PAPER, SHAPE)
    assert first.rmse_ms[50] > 1.5 * first.rmse_ms[200]
    assert first.rmse_ms[200] <= 60
    assert first.rmse_ms[200] <= 1.3 * first.rmse_ms[300]


@pytest.mark.slow
def test_liars_push_the_workers_that_believe_them_and_nobody_else() -> None:
    believed = accuracy(1, PAPER, WorldShape(liars=0.1, mutual=True)).rmse_ms[300]
    ignored = accuracy(1, PAPER, WorldShape(liars=0.1)).rmse_ms[300]
    assert believed > 1.3 * ignored
    assert ignored <= 1.1 * accuracy(1, PAPER, SHAPE).rmse_ms[300]


@pytest.mark.slow
def test_who_asks_by_its_round_trips_finds_its_neighbour_sooner_than_by_its_coordinate() -> None:
    def after_three(mix: str) -> RoundResult:
        return neighbours(trained(1, FAST, SHAPE), MIXES[mix], 1)[2]

    static, closest, shipped = map(after_three, ("static", "4+6", "shipped"))
    assert static.chosen < closest.chosen < shipped.chosen
    assert shipped.chosen >= 0.97


def test_the_report_names_the_targets_that_were_missed() -> None:
    rounds = [RoundResult(rmse_ms=1.0, neighbour=0.5, region=0.9, chosen=0.9)] * 5
    runs = {name: accuracy_like(40.0) for name in (*reporting.ACCURACY, *reporting.LYING)}
    found = {(preset, mix, False): rounds for preset in reporting.PRESETS for mix in MIXES}
    found |= {("seed", "4+6", True): rounds, ("default", "shipped", True): rounds}
    told = reporting.document([reporting.SeedResult(accuracy=runs, neighbours=found)], SHAPE)
    verdicts = {one.bound: one.verdict for one in told.targets}
    assert (verdicts["<= 60"], verdicts["<= 1.3"], verdicts[">= 99"], verdicts["< 2"]) == (
        "reached",
        "reached",
        "missed",
        "reached",
    )
    console = Console(record=True, width=140)
    reporting.report(told).as_table(console)
    assert "Targets missed: shipped" in console.export_text()


def accuracy_like(ms: float) -> AccuracyRun:
    return AccuracyRun(rmse_ms=dict.fromkeys(range(10, 301, 10), ms))
