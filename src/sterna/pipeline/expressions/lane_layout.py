"""How many lanes a job's directory has, which never changes, and lanes made of the state of an earlier release."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from sterna.pipeline.expressions.lane_choice import ExpressionLane
from sterna.pipeline.expressions.lane_files import LaneFiles
from sterna.pipeline.expressions.part_merge import ExpressionResult, PartMerge
from sterna.pipeline.expressions.registry import Registry, RegistryFiles
from sterna.pipeline.expressions.result_delivery import OwedResults

LANES_MAX = 256
_COUNT = "count"


class Lanes(NamedTuple):
    directory: Path
    among: int


def lanes_in(job: Path, wanted: int, registries: RegistryFiles) -> Lanes:
    """Those there are; `wanted`: so many if there are none yet."""
    lanes = job / "lanes"
    if not lanes.exists():
        _make(lanes, max(1, min(wanted, LANES_MAX)), job / "state", registries)
    return Lanes(lanes, int((lanes / _COUNT).read_text()))


def _make(lanes: Path, count: int, state: Path, registries: RegistryFiles) -> None:
    """`state`: of a release that had one merge for all, if there is any."""
    making = lanes.with_name(f".lanes-{os.getpid()}")
    making.mkdir(parents=True)
    if state.exists():
        _deal_out(making, count, state, registries)
    (making / _COUNT).write_text(str(count))
    making.rename(lanes)
    shutil.rmtree(state, ignore_errors=True)


def _deal_out(making: Path, count: int, state: Path, registries: RegistryFiles) -> None:
    before, owed = PartMerge(computed=state.parent.name == "functions"), OwedResults()
    files = LaneFiles(state, registries.load)
    files.load(before, owed)
    for number in range(count):
        lane = ExpressionLane(number, count)
        after = PartMerge(computed=state.parent.name == "functions", lane=lane)
        after.restore(before.registry, before.snapshot(), list(before.buffer.waiting))
        mine = OwedResults()
        mine.add(one for one in owed.all() if _has(lane, before.registry, one))
        made = LaneFiles(making / str(number), registries.load)
        made.load(after, OwedResults())
        made.last_batch = files.last_batch
        made.snapshot(after, mine)


def _has(lane: ExpressionLane, registry: Registry, result: ExpressionResult) -> bool:
    """One of an expression that has gone meanwhile goes to the first."""
    for entry in registry.entries:
        if (entry.node, entry.text) == (result.node, result.text):
            return lane.has(entry)
    return lane.number == 0
