"""When a node writes its journal and saves its checkpoints: one policy, without a disk and without a clock.

The world asks in every turn (`turn`) and once `wake_at` has come (`wake`).  The answer is the next step, a `Write` or a
`Save`, or None.  The world takes the step, however long that lasts, and reports it (`written`, `saved`); the answer may
be another step.

- One group is written at a time.  With durability "fsync" two writes begin at least `group_commit_ms` apart, so that
  one sync serves every client that published meanwhile.  A backlog that holds up clients is written at once.
- With "os" and "memory" a write is short: it follows in the same turn, and so does what comes of it, a few times.
- After a write that failed nothing is written for RETRY_S.  Clients that waited for the group are sent away.
- A checkpoint is taken between two groups.  The open group is written first, the checkpoint is saved only then.  It is
  not tried while writing fails.
"""

from __future__ import annotations

import math
from typing import Final

from sterna.broker.commitments import Commit
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Group, Position
from sterna.node.node import Changes, Node
from sterna.vocabulary.errors import JournalError

#: Groups closed one after the other, in one turn or to settle.  Each may give rise to another (an acknowledgement noted
#: by a delivery it made).
GROUPS_MAX: Final = 8

RETRY_S: Final = 1.0
"""How long a journal that could not be written is left alone."""


class Write:
    """Write this group, then call `written`."""

    __slots__ = ("changes", "commit", "group")

    def __init__(self, commit: Commit, group: Group, changes: Changes | None) -> None:
        self.commit = commit
        self.group = group
        #: The checkpoint that waits for this group.
        self.changes = changes


class Save:
    """Save this checkpoint, then call `saved`.  Groups may be written meanwhile."""

    __slots__ = ("changes",)

    def __init__(self, changes: Changes) -> None:
        self.changes = changes


Step = Write | Save


class Committing:
    def __init__(self, node: Node, settings: JournalSettings, retry_s: float = RETRY_S) -> None:
        self._node = node
        self._broker = node.broker
        self._commitments = node.broker.commitments
        #: A write is short enough to wait for it.
        self.in_place = settings.durability != "fsync"
        self._interval_s = settings.group_commit_ms / 1000
        self._retry_s = retry_s
        #: When `wake` has to be called; infinite if nothing is waited for.
        self.wake_at = math.inf
        #: Why the journal could not be written the last time it was tried; None if it could.
        self.trouble: str | None = None
        #: A checkpoint is asked for and not yet saved.
        self.checkpointing = False
        #: `settle` was called and there is more to write.
        self.settling = False
        self._last_start = -math.inf
        self._is_writing = False
        #: A checkpoint waits for the group that is being written.
        self._checkpoint_waits = False
        #: Groups that may still be closed in this turn.
        self._left = 0

    def turn(self, now: float) -> Step | None:
        """HOT.  Something may have been promised or noted."""
        if self._is_writing or self.trouble is not None or not self._commitments.pending:
            return None
        if not self.in_place:
            begin = self._last_start + self._interval_s
            if now < begin and not self._broker.overloaded():
                self.wake_at = begin
                return None
        self._left = GROUPS_MAX
        return self._next_group(now)

    def wake(self, now: float) -> Step | None:
        """`wake_at` has come."""
        self.wake_at = math.inf
        if self._is_writing:
            return None
        if not self._commitments.pending:
            self.trouble = None  # the next group will tell
            return None
        self._left = GROUPS_MAX
        return self._next_group(now)

    def written(self, write: Write, result: Position | JournalError, now: float) -> Step | None:
        """The group is kept from this position on, or could not be written."""
        self._is_writing = False
        if isinstance(result, JournalError):
            self._failed(write, str(result), now)
            return None
        self.trouble = None
        self._broker.committed(write.commit, result)
        if write.changes is not None:
            return Save(write.changes.begun_at(result))
        if self._checkpoint_waits:
            return self._take_checkpoint(now)
        if self.in_place or self.settling:
            return self._next_group(now)
        return None

    def checkpoint(self, now: float) -> Step | None:
        """Save what differs from the last checkpoint, at the next moment between two groups."""
        if self.checkpointing or self.trouble is not None:
            return None
        self.checkpointing = True
        if self._is_writing:
            self._checkpoint_waits = True
            return None
        return self._take_checkpoint(now)

    def saved(self, save: Save, error: JournalError | None, now: float) -> Step | None:
        """The checkpoint is safe, or is not."""
        self.checkpointing = False
        if error is None:
            self._node.checkpointed(save.changes)
        else:
            self._node.checkpoint_failed(save.changes)
        return self._next_group(now) if self.settling and not self._is_writing else None

    def settle(self, now: float) -> Step | None:
        """Write what is pending and what comes of it: without a pause, also after a failure, up to GROUPS_MAX groups.
        The node is stopping."""
        self.settling = True
        self._left = GROUPS_MAX
        return None if self._is_writing else self._next_group(now)

    @property
    def settled(self) -> bool:
        """Is everything written and reported?"""
        return not self._commitments.pending and not self._commitments.under_way

    def _next_group(self, now: float) -> Write | None:
        """Close the open group.  One that holds promises only needs no disk."""
        while self._commitments.pending and self._left:
            self._left -= 1
            write = self._close(None, now)
            if write is not None:
                return write
        self.settling = False
        if self._commitments.pending:
            self.wake_at = now  # in the next turn
        return None

    def _take_checkpoint(self, now: float) -> Step:
        self._checkpoint_waits = False
        changes = self._node.changes()
        write = self._close(changes, now) if self._commitments.pending else None
        return Save(changes) if write is None else write

    def _close(self, changes: Changes | None, now: float) -> Write | None:
        commit = self._commitments.close()
        if commit.group is None:
            self.trouble = None
            self._broker.committed(commit, None)
            return None
        self._last_start = now
        self.wake_at = math.inf
        self._is_writing = True
        return Write(commit, commit.group, changes)

    def _failed(self, write: Write, reason: str, now: float) -> None:
        self.trouble = reason
        self.settling = False
        self._broker.failed(write.commit, reason)
        if write.changes is not None:
            self._node.checkpoint_failed(write.changes)
        if write.changes is not None or self._checkpoint_waits:
            self.checkpointing = self._checkpoint_waits = False
        self.wake_at = now + self._retry_s
