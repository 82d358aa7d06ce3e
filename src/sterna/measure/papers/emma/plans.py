"""Which runs an experiment has, and how they are played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.harness.comparison import Say
from sterna.measure.papers.emma.playbooks import Playbook, emma, factories
from sterna.measure.papers.emma.records import RunRecords, Way
from sterna.measure.papers.emma.town import Town

CALM_S: Final = 30.0
"""Of the factories."""


class PlannedRun(NamedTuple):
    playbook: Playbook
    tuning: AdaptationTuning
    way: Way = "coordinates"


def factories_plans() -> list[PlannedRun]:
    """Nodes that always run, and nodes that come and go."""
    tuning = AdaptationTuning(calm_s=CALM_S, young_s=CALM_S)
    return [
        PlannedRun(factories(scaled=False), AdaptationTuning(scaling="off")),
        PlannedRun(factories(scaled=True), tuning),
    ]


def emma_plans() -> list[PlannedRun]:
    """Brokers by hand, with everything measured and by coordinates; brokers by pressure, with workers that appear or
    are all there."""
    everything = AdaptationTuning(scaling="off", selection="measure-all", pass_s=15)
    return [
        PlannedRun(emma(), everything, "measure-all"),
        PlannedRun(emma(), AdaptationTuning(scaling="off")),
        PlannedRun(emma(scaled=True), AdaptationTuning()),
        PlannedRun(emma(scaled=True, all_workers=True), AdaptationTuning()),
    ]


def played(plans: Sequence[PlannedRun], seed: int, say: Say, *, keep: bool) -> list[RunRecords]:
    """`keep`: so that they can be written to files."""
    found = []
    for plan in plans:
        say(f"{plan.playbook.title}, {plan.way}")
        found.append(Town(plan.playbook, plan.tuning, plan.way, seed, keep=keep).run().records)
    return found
