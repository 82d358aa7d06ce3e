"""Writing the journal: when a group is closed, in which thread it is written, and who hears of it.

With durability "fsync" the write and its sync run in a thread while the loop goes on filling the next group, so one
sync serves every client that published meanwhile.  With "os" and "memory" nothing takes long and it is done in place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sterna.broker.broker import Broker
from sterna.broker.commitments import Commit
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Group, Position, Store
from sterna.vocabulary.errors import JournalError

log = logging.getLogger(__name__)

#: Commits made in place in one turn, and to settle.  Each may give rise to another (an acknowledgement noted by a
#: delivery it made).
IN_PLACE_MAX = 8

RETRY_S = 1.0
"""How long a journal that could not be written is left alone."""


class Committer:
    def __init__(self, broker: Broker, store: Store, settings: JournalSettings, turn: Callable[[], None]) -> None:
        self._broker = broker
        self._store = store
        self._in_thread = settings.durability == "fsync"
        self._interval_s = settings.group_commit_ms / 1000
        self._turn = turn
        self._writer = ThreadPoolExecutor(1, "journal-writer") if self._in_thread else None
        self._writing: asyncio.Future[Position] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_start = 0.0
        #: No group is to be begun: somebody needs the moment between two.
        self._held = False
        #: Told when a group is safe.
        self.told: Callable[[], None] | None = None
        #: Why the journal could not be written the last time it was tried; None if it could.
        self.trouble: str | None = None

    def commit_soon(self) -> None:
        """End of a turn: see that what is pending gets written."""
        if not self._broker.commitments.pending or self._held:
            return
        if self.trouble is not None:
            self._retry_later()
        elif not self._in_thread:
            self._commit_in_place()
        elif self._writing is None and self._timer is None:
            self._start_or_wait()

    def _commit_in_place(self) -> None:
        for _ in range(IN_PLACE_MAX):
            if not self._broker.commitments.pending:
                return
            commit = self._broker.commitments.close()
            try:
                position = None if commit.group is None else self._store.write(commit.group)
            except JournalError as error:
                self._failed(commit, error)
                return
            self._committed(commit, position)

    def _retry_later(self) -> None:
        if self._writing is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        if self._held:
            return
        if not self._broker.commitments.pending:
            self.trouble = None  # for all we know: the next group will tell
        elif self._in_thread:
            self._start()
        else:
            self._commit_in_place()
            self._turn()

    def _start_or_wait(self) -> None:
        """Start now if the last sync began long enough ago; else let more publishers share the next one."""
        loop = asyncio.get_running_loop()
        wait_s = self._last_start + self._interval_s - loop.time()
        if wait_s > 0 and not self._broker.overloaded():
            self._timer = loop.call_later(wait_s, self._start)
        else:
            self._start()

    def _start(self) -> None:
        self._timer = None
        if self._held:
            return
        commit = self._broker.commitments.close()
        if commit.group is None:
            self._committed(commit, None)
            self._turn()
        else:
            self._write_in_thread(commit, commit.group)

    def _write_in_thread(self, commit: Commit, group: Group) -> asyncio.Future[Position]:
        assert self._writer is not None
        loop = asyncio.get_running_loop()
        self._last_start = loop.time()
        writing = self._writing = loop.run_in_executor(self._writer, self._write, group)
        writing.add_done_callback(lambda done: self._written(commit, done))
        return writing

    def _write(self, group: Group) -> Position:
        return self._store.write(group)

    def _written(self, commit: Commit, done: asyncio.Future[Position]) -> None:
        self._writing = None
        error = done.exception()
        if error is None:
            self._committed(commit, done.result())
        else:
            self._failed(commit, error)
        self._turn()

    def _committed(self, commit: Commit, position: Position | None) -> None:
        self.trouble = None
        self._broker.committed(commit, position)
        if self.told is not None:
            self.told()

    def _failed(self, commit: Commit, error: BaseException) -> None:
        if not isinstance(error, JournalError):
            raise error
        if self.trouble is None:
            log.error("the journal cannot be written", extra={"reason": str(error)})
        self.trouble = str(error)
        self._broker.failed(commit, str(error))
        self._retry_later()

    async def hold(self) -> bool:
        """Wait for the moment between two groups, which lasts until `write_open_group`; False if writing fails anyway.

        Under load the next group is begun as soon as one is done, so it does not come by itself.
        """
        if self.trouble is None:
            await self._come_to_rest()
        if self.trouble is None:
            return True
        self._held = False
        self._retry_later()  # even if nothing is left to write: the trouble must not seem to last for ever
        return False

    async def write_open_group(self) -> Position | None:
        """Write what is pending, where all groups are written; where it begins, or None if there was nothing.

        Raises JournalError if it could not be written.
        """
        self._held = False
        if not self._broker.commitments.pending:
            return None
        commit = self._broker.commitments.close()
        if commit.group is not None and self._in_thread:
            return await self._write_in_thread(commit, commit.group)
        try:
            position = None if commit.group is None else self._store.write(commit.group)
        except JournalError as error:
            self._failed(commit, error)
            raise
        self._committed(commit, position)
        self._turn()
        return position

    async def _come_to_rest(self) -> None:
        self._held = True
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # its callback runs before we look again
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def settle(self) -> bool:
        """Write what is pending and what comes of it, for shutdown.  False if something is left."""
        for _ in range(IN_PLACE_MAX):
            await self._come_to_rest()
            try:
                await self.write_open_group()
            except JournalError:
                break  # `_failed` has said so
            if not self._broker.commitments.pending:
                break
        self._broker.flush()
        return not self._broker.commitments.pending and not self._broker.commitments.under_way

    def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown()
