"""The journal's writer in virtual time: one group under way at a time, as `runtime/committer.py` has it.

A sync takes as long as the dice say; meanwhile the next group fills.  What is under way when the machine stops is the
disk's to tear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from sterna.broker.commitments import Commit
from sterna.journal.store import Group, Position
from sterna.node.node import Changes
from sterna.vocabulary.errors import JournalError

if TYPE_CHECKING:
    from sterna.simulation.machine import Running

Written = Callable[[Position | JournalError | None], None]

RETRY_S = 1.0
"""How long a journal that could not be written is left alone."""


class Committer:
    def __init__(self, running: Running, dice: Random) -> None:
        self._running = running
        self._dice = dice
        self._settings = running.machine.settings
        self._interval_s = self._settings.journal.group_commit_ms / 1000
        self._last_start = -1.0
        self._timer = 0  # the number of the one timer that counts; 0: none
        self._timers = 0
        #: No group is to be begun: a checkpoint needs the moment between two.
        self._held = False
        self._checkpointing = False
        self.trouble: str | None = None
        #: What is on its way to the disk.
        self.writing: Group | None = None
        self.saving: Changes | None = None

    @property
    def checkpointing(self) -> bool:
        return self._checkpointing

    @property
    def _pending(self) -> bool:
        return self._running.broker.commitments.pending

    def commit_soon(self) -> None:
        if not self._pending or self._held or self.writing is not None or self._timer:
            return
        wait_s = self._last_start + self._interval_s - self._running.kernel.now
        if self.trouble is not None:
            self._later(RETRY_S, self._retry)
        elif wait_s > 0 and not self._running.broker.overloaded():
            self._later(wait_s, self._start)
        else:
            self._start()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers += 1
        self._timer = self._timers
        self._running.later(seconds, self._timer_is_up, self._timer, action)

    def _timer_is_up(self, number: int, action: Callable[[], None]) -> None:
        if number == self._timer:
            self._timer = 0
            if not self._held:
                action()

    def _retry(self) -> None:
        if self._pending:
            self._start()
        else:
            self.trouble = None  # for all we know: the next group will tell

    def _start(self) -> None:
        self._write(self._running.broker.commitments.close(), None)

    def _write(self, commit: Commit, written: Written | None) -> None:
        """Have a group written; `written` then hears where, or why not."""
        running = self._running
        if commit.group is None:
            self._committed(commit, None)
            running.turn()
            if written is not None:
                written(None)
            return
        self._last_start = running.kernel.now
        self.writing = commit.group
        seconds = self._duration()
        running.machine.reached("writing", seconds)
        running.later(seconds, self._written, commit, commit.group, written)

    def _duration(self) -> float:
        usual = self._settings.sync_s * (0.5 + self._dice.random())
        return usual * 30 if self._dice.random() < self._settings.slow_syncs else usual

    def _written(self, commit: Commit, group: Group, written: Written | None) -> None:
        self.writing = None
        outcome: Position | JournalError
        try:
            outcome = self._running.machine.disk.journal.write(group)
        except JournalError as error:
            outcome = error
            self._failed(commit, error)
        else:
            self._committed(commit, outcome)
        if self._held:
            self._rests()
        self._running.turn()
        if written is not None:
            written(outcome)

    def _committed(self, commit: Commit, position: Position | None) -> None:
        self.trouble = None
        self._running.broker.committed(commit, position)
        self._running.machine.reached("committed", 0.0)

    def _failed(self, commit: Commit, error: JournalError) -> None:
        self.trouble = str(error)
        self._running.tell("the journal cannot be written")
        self._running.broker.failed(commit, str(error))
        if not self._timer:
            self._later(RETRY_S, self._retry)

    # -- checkpoints --

    def checkpoint(self) -> None:
        """At the moment between two groups: what differs from the last checkpoint, then the open group."""
        if self._checkpointing or self.trouble is not None:
            return
        self._held = self._checkpointing = True
        if self.writing is None:
            self._rests()

    def _rests(self) -> None:
        self._timer = 0
        self._held = False
        if self.trouble is not None:
            self._checkpointing = False
            self.commit_soon()
            return
        running = self._running
        changes = running.node.changes()
        running.tell(f"checkpoint of {len(changes.sessions)} sessions at {changes.position}")
        running.machine.reached("checkpoint", self._settings.sync_s)
        if self._pending:
            self._write(running.broker.commitments.close(), partial(self._save, changes))
        else:
            self._save(changes, None)

    def _save(self, changes: Changes, outcome: Position | JournalError | None) -> None:
        """The group that was open is safe, or is not."""
        if isinstance(outcome, JournalError):
            self._checkpoint_failed(changes)
            return
        self.saving = changes.begun_at(outcome)
        seconds = self._settings.checkpoint_s * (0.5 + self._dice.random())
        self._running.machine.reached("saving", seconds)
        self._running.later(seconds, self._saved, self.saving)

    def _saved(self, changes: Changes) -> None:
        try:
            self._running.machine.disk.checkpoints.checkpoint(changes)
        except JournalError:
            self._checkpoint_failed(changes)
        else:
            self.saving, self._checkpointing = None, False
            self._running.node.checkpointed(changes)
            self._running.machine.reached("saved", self._settings.sync_s)

    def _checkpoint_failed(self, changes: Changes) -> None:
        self.saving, self._checkpointing = None, False
        self._running.node.checkpoint_failed(changes)
