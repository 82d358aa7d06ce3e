"""Writes the journal and saves checkpoints in virtual time: `Committing` decides, this module has the dice.

A sync takes as long as the dice say; meanwhile the next group fills.  The disk tears what is under way when the machine
stops.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sterna.journal.store import Group, Position
from sterna.node.committing import Committing, Save, Step, Write
from sterna.node.node import Changes
from sterna.vocabulary.errors import JournalError

if TYPE_CHECKING:
    from sterna.simulation.machine import Running


class SimulatedCommitter:
    def __init__(self, running: Running, committing: Committing, dice: Random) -> None:
        self._running = running
        self._committing = committing
        self._dice = dice
        self._settings = running.machine.settings
        #: The group and the checkpoint on their way to the disk.
        self.writing: Group | None = None
        self.saving: Changes | None = None

    def perform(self, step: Step | None) -> None:
        """Take a step; it is over after a while, or at once where the node waits for it."""
        if isinstance(step, Save):
            self._begin_to_save(step)
        elif step is not None and self._committing.in_place:
            self._written(step)
        elif step is not None:
            self._begin_to_write(step)

    def _begin_to_write(self, write: Write) -> None:
        machine = self._running.machine
        self.writing = write.group
        seconds = self._sync_s()
        machine.reached("writing", seconds)
        if write.changes is not None:
            machine.reached("checkpoint", seconds)
        self._running.later(seconds, self._written, write)

    def _sync_s(self) -> float:
        usual = self._settings.sync_s * (0.5 + self._dice.random())
        return usual * 30 if self._dice.random() < self._settings.slow_syncs else usual

    def _written(self, write: Write) -> None:
        self.writing = None
        result = self._write(write.group)
        if isinstance(result, JournalError):
            self._running.tell("the journal cannot be written")
        step = self._committing.written(write, result, self._running.broker.now)
        if not isinstance(result, JournalError):
            self._running.machine.reached("committed", 0.0)
        self.perform(step)

    def _write(self, group: Group) -> Position | JournalError:
        try:
            return self._running.machine.disk.journal.write(group)
        except JournalError as error:
            return error

    def _begin_to_save(self, save: Save) -> None:
        running, changes = self._running, save.changes
        running.tell(f"checkpoint of {len(changes.sessions)} sessions at {changes.position}")
        self.saving = changes
        seconds = self._settings.checkpoint_s * (0.5 + self._dice.random())
        running.machine.reached("saving", seconds)
        running.later(seconds, self._saved, save)

    def _saved(self, save: Save) -> None:
        self.saving = None
        error = self._save(save.changes)
        step = self._committing.saved(save, error, self._running.broker.now)
        if error is None:
            self._running.machine.reached("saved", self._settings.sync_s)
        self.perform(step)

    def _save(self, changes: Changes) -> JournalError | None:
        try:
            self._running.machine.disk.checkpoints.checkpoint(changes)
        except JournalError as error:
            return error
        return None
