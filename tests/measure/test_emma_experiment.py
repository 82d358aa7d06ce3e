"""EMMA and the factories, simulated: the thesis' decisions come out, twice the same."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.command import Means
from sterna.measure.papers.emma.playbooks import EAST, WEST, emma, factories, open_factories
from sterna.measure.papers.emma.report import TownDocument, emma_experiment, factories_experiment
from sterna.measure.papers.emma.town import Town


def no_spark() -> object:
    raise AssertionError("nobody needs it")


def means() -> Means:
    return Means(lambda *_: None, ExitStack(), no_spark)  # type: ignore[arg-type]


def test_the_playbooks_are_those_of_the_thesis() -> None:
    static = emma()
    assert [event.name for event in static.events if event.kind == "start"] == ["central", "west", "east", "west2"]
    assert sum(event.kind == "gateway" for event in static.events) == 23
    assert [event.name for event in static.events if event.kind == "stop"] == ["east"]
    assert [event.at_s for event in static.events] == sorted(event.at_s for event in static.events)
    assert all(event.kind != "stop" for event in emma(scaled=True).events)
    assert [open_factories(minute) for minute in (0, 2, 4, 6, 8, 10, 12)] == [3, 2, 1, 0, 1, 2, 3]
    assert sum(event.kind == "start" for event in factories(scaled=False).events) == 10


@pytest.mark.slow
def test_a_run_repeats_itself() -> None:
    def run() -> Town:
        return Town(emma(scaled=True, step_s=30.0), AdaptationTuning(), "coordinates", 3).run()

    assert run().seconds == run().seconds


@pytest.mark.slow
def test_emma_reaches_what_it_set_out_to() -> None:
    told = emma_experiment(means()).document
    assert isinstance(told, TownDocument)
    assert [one.what for one in told.targets if one.verdict == "missed"] == []
    by_title = {(row.title, row.way): row for row in told.runs}
    dynamic = by_title["EMMA, dynamic", "coordinates"]
    assert [name for _, name in dynamic.starts] == ["west", "east"], "the second in the west is not needed"
    assert dynamic.stops == []
    early = by_title["EMMA, dynamic (all workers)", "coordinates"]
    assert early.starts[0][1] == "east"
    assert early.starts[0][0] < 240, "before the group appears: clients of the global topic are enough"
    assert {WEST, EAST, "global"} == set(dynamic.latency_ms)


@pytest.mark.slow
def test_nodes_follow_the_factories() -> None:
    told = factories_experiment(means()).document
    assert isinstance(told, TownDocument)
    static, dynamic = told.runs
    assert dynamic.nodes == [4, 4, 3, 3, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4]
    assert static.nodes == [10] * 14
    assert [one.verdict for one in told.targets[:3]] == ["reached"] * 3, "minutes, later spikes, and the cold start"
