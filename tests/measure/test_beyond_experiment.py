"""Situations in which the rules of the thesis do badly: ours reach what they set out to."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sterna.measure.command import Means
from sterna.measure.papers.emma import sweeps
from sterna.measure.papers.emma.beyond import BeyondDocument, experiment
from sterna.measure.papers.emma.playbooks import (
    Playbook,
    far_subscribers,
    hot_site,
    leader_killed,
    noisy,
    two_regions,
    wandering,
)
from sterna.measure.workloads.adaptation import settled


def means() -> Means:
    return Means(lambda *_: None, ExitStack(), no_spark)  # type: ignore[arg-type]


def no_spark() -> object:
    raise AssertionError("nobody needs it")


PLAYBOOKS = [wandering(), noisy(), far_subscribers(), hot_site(), leader_killed(), two_regions()]


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda one: one.title)
def test_the_playbooks_are_in_order_and_nobody_leaves_before_he_came(playbook: Playbook) -> None:
    assert [event.at_s for event in playbook.events] == sorted(event.at_s for event in playbook.events)
    here: set[str] = set()
    for event in playbook.events:
        if event.kind == "gateway":
            assert event.name not in here
            here.add(event.name)
        elif event.kind in ("leave", "relocate", "crowd"):
            assert event.name in here
            here -= {event.name} if event.kind == "leave" else set()


def test_management_grows_with_gateways_and_measuring_everything_with_brokers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "BROKERS", (4, 8))
    monkeypatch.setattr(sweeps, "GATEWAYS", (5, 10, 1000))
    monkeypatch.setattr(sweeps, "SIMULATED_MAX", 10)
    monkeypatch.setattr(sweeps, "BEFORE_S", 120.0)
    monkeypatch.setattr(sweeps, "MINUTES", 3)
    rows = {(row.brokers, row.gateways): row for row in sweeps.management(means(), 1)}
    assert len(rows) == 6
    assert rows[4, 5].messages < rows[4, 10].messages < rows[4, 1000].messages / 10
    assert rows[8, 10].everything_messages == 2 * rows[4, 10].everything_messages
    assert rows[8, 10].messages < 2 * rows[4, 10].messages + rows[8, 5].messages
    assert rows[8, 1000].everything_kib > 5 * rows[8, 1000].kib


@pytest.mark.slow
def test_our_rules_reach_their_targets_where_the_thesis_rules_do_not() -> None:
    told = experiment(means()).document
    assert isinstance(told, BeyondDocument)
    assert [(row.scenario, row.what, row.ours) for row in told.rows if row.verdict == "missed"] == []
    thesis = {row.scenario: row.thesis for row in told.rows}
    assert thesis["noisy load"] > 10, "starts and stops with each wave"
    assert thesis["far subscribers"] > 0, "a node for publishers alone"
    by_figure = {row.what: row for row in told.rows}
    hot = by_figure["seconds until p99 is below twice that of the idle site"]
    assert hot.thesis > 5 * hot.ours > 0, "its pressure knows no load"
    assert by_figure["seconds until one leads and acts again"].thesis > 100, "it has one coordinator"
    assert by_figure["coordinators that act while the regions are apart"].thesis == 1
    assert by_figure["moves per relocation"].ours > 0.5, "they do move"


def test_a_settled_gateway_says_less_than_one_that_has_just_come() -> None:
    (early, _), (late, busiest) = (settled.measured(minutes=2, settled_min=after) for after in (0, 20))
    assert early.figure is not None
    assert late.figure is not None
    assert 0.1 < late.figure < early.figure
    assert busiest.figure == max(one for one, _ in late.rounds)
