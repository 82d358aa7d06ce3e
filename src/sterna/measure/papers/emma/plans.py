"""Which runs an experiment has, simulated or live, and how they are played."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.scaling import thresholds
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.emma.live_town import LiveTown
from sterna.measure.papers.emma.playbooks import GROUP, MINUTE_S, PER_LINE, STEP_S, Playbook, emma, factories
from sterna.measure.papers.emma.records import RunRecords, Way
from sterna.measure.papers.emma.town import Town

CALM_S: Final = 30.0
"""Of the factories, whose minutes are the thesis'."""
LIVE_PER_LINE, LIVE_GROUP, LIVE_PER_S = 1, 4, 1.0
"""Gateways at each line, gateways of a client group, and messages a second of each publisher."""


class PlannedRun(NamedTuple):
    playbook: Playbook
    tuning: AdaptationTuning
    way: Way = "coordinates"


def factories_plans(live_minute_s: float | None) -> list[PlannedRun]:
    """Nodes that always run, and nodes that come and go.  None: simulated."""
    minute_s = live_minute_s or MINUTE_S
    per_line = PER_LINE if live_minute_s is None else LIVE_PER_LINE
    patience = CALM_S * minute_s / MINUTE_S
    tuning = _for_fewer(AdaptationTuning(calm_s=patience, young_s=patience), per_line / PER_LINE)
    static, dynamic = (factories(scaled=scaled, minute_s=minute_s, per_line=per_line) for scaled in (False, True))
    return [PlannedRun(static, AdaptationTuning(scaling="off")), PlannedRun(dynamic, tuning)]


def emma_plans(live_minute_s: float | None) -> list[PlannedRun]:
    """Brokers by hand, and by pressure, with workers that appear or are all there.  Simulated: brokers by hand with
    everything measured before them."""
    still = AdaptationTuning(scaling="off")
    if live_minute_s is None:
        everything = AdaptationTuning(scaling="off", selection="measure-all", pass_s=15)
        ours = AdaptationTuning()
        return [
            PlannedRun(emma(), everything, "measure-all"),
            PlannedRun(emma(), still),
            PlannedRun(emma(scaled=True), ours),
            PlannedRun(emma(scaled=True, all_workers=True), ours),
        ]
    small = partial(emma, step_s=STEP_S * live_minute_s / MINUTE_S, size=LIVE_GROUP, per_s=LIVE_PER_S)
    ours = _for_fewer(AdaptationTuning(), LIVE_GROUP / GROUP)
    return [PlannedRun(small(), still), PlannedRun(small(scaled=True), ours)]


def _for_fewer(tuning: AdaptationTuning, share: float) -> AdaptationTuning:
    """Thresholds for such a part of the gateways."""
    usual = thresholds(tuning)
    return tuning if share == 1 else replace(tuning, up=share * usual.up, down=share * usual.down)


def played(plans: Sequence[PlannedRun], seed: int, say: Say, *, live: bool, keep: bool) -> list[RunRecords]:
    """`keep`: so that they can be written to files."""
    if live and not may_be_at_a_distance():
        raise MeasurementError("hosts at a distance are network namespaces, which need root; leave --live out")
    found = []
    for plan in plans:
        say(f"{plan.playbook.title}, {plan.way}")
        if live:
            with tempfile.TemporaryDirectory(prefix="sterna-town-") as name:
                found.append(LiveTown(plan.playbook, plan.tuning, plan.way, seed, say).run(Path(name)))
        else:
            found.append(Town(plan.playbook, plan.tuning, plan.way, seed, keep=keep).run().records)
    return found


def nearest(run: RunRecords) -> RunRecords:
    """The same run with each gateway at the nearest node that served then, as if everything had been measured."""
    seconds = []
    for second in run.seconds:
        serving = [name for name, state in second.states.items() if state is WorkerNodeState.SERVING]
        on = {
            gateway: min(serving, key=partial(run.usual_s, second.at[gateway]), default=node)
            for gateway, node in second.on.items()
        }
        seconds.append(replace(second, on=on))
    return replace(run, way="measure-all", seconds=seconds)
