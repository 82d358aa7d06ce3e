"""Writes the journal and saves checkpoints: `Committing` decides, this module has the threads.

With durability "fsync" a write and its sync run in a thread of their own, so that the loop goes on filling the next
group.  With "os" and "memory" nothing takes long and it is done in place.  Checkpoints are always saved in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic

from sterna.broker.broker import Broker
from sterna.journal.store import Group, Position, Store
from sterna.node.committing import Committing, Save, Step, Write
from sterna.node.node import Changes
from sterna.runtime.process_view import Timings
from sterna.vocabulary.errors import JournalError

log = logging.getLogger(__name__)


class Committer:
    def __init__(
        self,
        committing: Committing,
        broker: Broker,
        store: Store,
        save: Callable[[Changes], None],
        turn: Callable[[], None],
        timings: Timings | None = None,
    ) -> None:
        """`save` saves a checkpoint, in any thread.  `turn` follows each piece of work."""
        self._timings = timings or Timings()
        self._committing = committing
        self._broker = broker
        self._store = store
        self._save = save
        self._turn = turn
        self._writer = None if committing.in_place else ThreadPoolExecutor(1, "journal-writer")
        self._checkpoint_failed = False
        #: Set when a step has been taken.
        self._stepped = asyncio.Event()
        #: Told when a group is safe.
        self.told: Callable[[], None] | None = None

    @property
    def trouble(self) -> str | None:
        return self._committing.trouble

    # -- steps --

    def perform(self, step: Step | None) -> None:
        """Take a step, and those that follow at once."""
        while step is not None:
            if isinstance(step, Save):
                saving = asyncio.get_running_loop().run_in_executor(None, self._try_to_save, step.changes)
                saving.add_done_callback(partial(self._saved, step))
                return
            if self._writer is not None:
                writing = asyncio.get_running_loop().run_in_executor(self._writer, self._try_to_write, step.group)
                writing.add_done_callback(partial(self._written, step, monotonic()))
                return
            step = self._report(step, self._try_to_write(step.group))

    def _try_to_write(self, group: Group) -> Position | JournalError:
        begun = monotonic()
        try:
            position = self._store.write(group)
            # Of two threads only this one observes it.
            self._timings.journal_write.observe(monotonic() - begun)
            return position
        except JournalError as error:
            return error
        except Exception as error:  # a fault of ours: clients are sent away, and it is tried again
            log.exception("the journal's store failed")
            return JournalError(repr(error))

    def _try_to_save(self, changes: Changes) -> JournalError | None:
        try:
            self._save(changes)
        except JournalError as error:
            return error
        except Exception as error:
            log.exception("the store of checkpoints failed")
            return JournalError(repr(error))
        return None

    def _written(self, write: Write, begun: float, done: asyncio.Future[Position | JournalError]) -> None:
        self._broker.at(monotonic())
        self.perform(self._report(write, done.result()))
        self._turn()
        self._timings.commit.observe(monotonic() - begun)
        self._stepped.set()

    def _report(self, write: Write, result: Position | JournalError) -> Step | None:
        is_written = not isinstance(result, JournalError)
        if not is_written and self._committing.trouble is None:
            log.error("the journal cannot be written", extra={"reason": str(result)})
        step = self._committing.written(write, result, self._broker.now)
        if is_written and self.told is not None:
            self.told()
        return step

    def _saved(self, save: Save, done: asyncio.Future[JournalError | None]) -> None:
        self._broker.at(monotonic())
        error = done.result()
        if error is not None and not self._checkpoint_failed:  # it will be tried every second
            log.error("the checkpoint failed; the journal still holds everything", extra={"reason": str(error)})
        self._checkpoint_failed = error is not None
        self.perform(self._committing.saved(save, error, self._broker.now))
        self._turn()
        self._stepped.set()

    # -- what is waited for --

    async def checkpoint(self) -> None:
        """Save what differs from the last checkpoint, and wait until it is safe or given up."""
        self.perform(self._committing.checkpoint(self._broker.now))
        self._turn()
        await self._while(lambda: self._committing.checkpointing)

    async def settle(self) -> bool:
        """Write what is pending and what comes of it, for shutdown.  False if something is left."""
        self.perform(self._committing.settle(self._broker.now))
        await self._while(lambda: self._committing.settling)
        self._broker.flush()
        return self._committing.settled

    async def _while(self, lasts: Callable[[], bool]) -> None:
        while lasts():
            self._stepped.clear()
            await self._stepped.wait()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown()
