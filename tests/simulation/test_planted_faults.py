"""The simulator finds what it is there to find: each of these worlds breaks one promise, and is caught at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sterna.journal.store import Group, Position
from sterna.node.committing import Save, Step, Write
from sterna.node.node import Changes, Node
from sterna.simulation.chaos import Chaos, StormPlan
from sterna.simulation.committing import SimulatedCommitter
from sterna.simulation.disk import CheckpointStore, DiskStore
from sterna.simulation.machine import MachineSettings, Running, SimulatedMachine, make_lone_node

SEEDS = range(15)
"""Within so many scenarios a fault must have shown."""


FAULTS = ("worst-crash", "power", "client-break")
PROMISES = frozenset({"lost", "duplicated", "reordered", "session lost"})


def broken_promises(
    prepare: Callable[[SimulatedMachine], None] | None = None,
    make: Callable[[Running], Node] | None = None,
    seeds: range = SEEDS,
) -> frozenset[str]:
    """The promises that the first scenario to break any of them breaks."""
    for seed in seeds:
        plan = StormPlan(seed, nodes=1, seconds=10, faults=FAULTS, fault_pause_s=0.7, publish_pause_s=0.1)
        outcome = Chaos(plan, settings=MachineSettings(sync_s=0.02), prepare=prepare, make=make).run()
        broken = PROMISES & {violation.claim for violation in outcome.violations}
        if broken:
            return broken
    return frozenset()


def with_store(kind: type[DiskStore]) -> Callable[[SimulatedMachine], None]:
    def prepare(machine: SimulatedMachine) -> None:
        machine.disk.journal = kind(machine.settings.journal, machine.name, machine.disk.dice)

    return prepare


def with_committer(kind: type[SimulatedCommitter]) -> Callable[[SimulatedMachine], None]:
    def prepare(machine: SimulatedMachine) -> None:
        machine.make_committer = kind

    return prepare


def test_without_a_planted_fault_nothing_is_found() -> None:
    assert broken_promises(seeds=range(3)) == set()


class LyingStore(DiskStore):
    """Says that a group is synced when it is not; now and then it is."""

    def sync(self, serial: int) -> None:
        if self.writes % 20 == 0:
            super().sync(serial)


def test_a_disk_that_lies_about_syncing_is_caught() -> None:
    assert broken_promises(with_store(LyingStore))


class HastyCommitter(SimulatedCommitter):
    """Reports a group committed while it is still being written: publishers are acknowledged too early."""

    def perform(self, step: Step | None) -> None:
        while isinstance(step, Write):
            store = self._running.machine.disk.journal
            position = store.place(step.group)
            self._running.later(0.05, store.sync, position.serial)
            step = self._committing.written(step, position, self._running.broker.now)
            self._running.machine.reached("committed", 0.0)
        super().perform(step)


def test_acknowledging_before_the_commit_is_caught() -> None:
    assert broken_promises(with_committer(HastyCommitter))


class ShortStore(DiskStore):
    """Loses the last group it synced when the machine stops."""

    last: tuple[int, int] = (0, 0)

    def place(self, group: Group) -> Position:
        position = super().place(group)
        self.last = position.serial, position.byte
        return position

    def crash(self, being_written: Group | None) -> None:
        super().crash(None)
        serial, size = self.last
        if serial in self._segments:
            self.truncate(serial, size)


def test_one_group_less_than_was_synced_is_caught() -> None:
    assert broken_promises(with_store(ShortStore))


def without_sessions(running: Running) -> Node:
    store = running.machine.disk.checkpoints
    store._sessions.clear()
    return make_lone_node(running)


def test_a_node_that_forgets_the_sessions_of_its_checkpoint_is_caught() -> None:
    assert broken_promises(make=without_sessions)


class HalfCheckpoints(CheckpointStore):
    """Writes the position of a checkpoint, and not all of what it holds."""

    def checkpoint(self, changes: Changes) -> None:
        super().checkpoint(replace(changes, sessions=dict(list(changes.sessions.items())[1:])))


def test_a_checkpoint_that_is_not_whole_is_caught() -> None:
    def prepare(machine: SimulatedMachine) -> None:
        machine.disk.checkpoints = HalfCheckpoints()

    assert broken_promises(prepare)


class EarlyCheckpoints(SimulatedCommitter):
    """Saves a checkpoint at once instead of waiting until the group that was open is safe."""

    def perform(self, step: Step | None) -> None:
        if isinstance(step, Write) and step.changes is not None:
            self._running.machine.disk.checkpoints.checkpoint(step.changes)
        if isinstance(step, Save):
            self._committing.saved(step, None, self._running.broker.now)
        else:
            super().perform(step)


def test_a_checkpoint_saved_before_its_group_is_safe_is_caught() -> None:
    assert broken_promises(with_committer(EarlyCheckpoints))
