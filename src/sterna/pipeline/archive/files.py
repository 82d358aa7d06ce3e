"""The files of an archive: adding, replacing and removing them, whoever else does so at the same time.

A file is in its place, durably, before the log names it, and stays for a while after it was replaced, for readers that
still use it.  Needs no Spark.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sterna.pipeline.archive.delta_log import ArchiveState, BatchKnown, Choose, DeltaLog, FilesGone, KeptFile, NewFile
from sterna.pipeline.archive.file_list import IN_LOG, FileList, listed_of
from sterna.pipeline.archive.storage import Folder, Storage, is_address, storage_at
from sterna.pipeline.errors import PipelineError

KEEP_S = 24 * 3600.0
"""How long a file stays that was replaced: longer than any question to the archive takes."""
SWEEP_EVERY_S = 3600.0
"""So seldom a job looks through all files there are for those that may go."""
UNKNOWN_S = 24 * 3600.0
"""A file that the log has never named is one that is being written, unless it is as old as this."""
_OFFSETS_KEPT = 20


class ArchiveFiles:
    def __init__(self, place: str | Path) -> None:
        self.place = str(place).rstrip("/")
        self.directory = None if is_address(place) else Path(place)
        """None: it is in an object store."""
        self.messages = f"{self.place}/messages"
        self.storage: Storage = storage_at(self.messages)
        self.log = DeltaLog(self.storage)
        self._batch: int | None = None

    def exists(self) -> bool:
        return self.log.exists()

    def check_exists(self) -> None:
        if not self.exists():
            raise PipelineError(f"{self.place} is no archive, or an empty one")

    def state(self, choose: Choose = lambda listed: listed) -> ArchiveState:
        return self.log.state(choose)

    def last_batch(self) -> int:
        """The newest batch that is in the archive; -1 if there is none."""
        return self.log.batch() if self.exists() else -1

    def take_in(self, batch: int, made: Sequence[NewFile], offsets: bytes = b"{}") -> None:
        """These files are the batch's: all of them count from now on, or, if the batch is known, none.  `offsets` say
        how far the archive reaches with it."""
        if self.knows(batch):
            return
        self.storage.put(_offsets(batch), offsets)
        try:
            self.log.commit(made, batch=batch)
        except BatchKnown:
            self._batch = None
            return
        self._batch = batch
        self.storage.delete([_offsets(batch - _OFFSETS_KEPT)])

    def knows(self, batch: int) -> bool:
        if self._batch is None:
            self._batch = self.last_batch()
        return batch <= self._batch

    def reached(self, batch: int) -> bytes | None:
        """How far the archive reached with this batch; None if nobody has said so."""
        return self.storage.get(_offsets(batch))

    def exchange(
        self, old: Sequence[KeptFile], new: Sequence[NewFile], since: int, *, erased: bool = False, is_last: bool = True
    ) -> bool:
        """The new files take the place of the old ones, which were in the archive at version `since`.  False if
        somebody else has changed one of these meanwhile: then the new ones go, unless they are tried again."""
        try:
            self.log.commit(new, old, since=since, reorders=not erased)
        except FilesGone:
            if is_last:
                self.storage.delete(one.path for one in new)
            return False
        return True

    def sweep(self, keep_s: float) -> int:
        """Remove what was replaced so long ago, and what nobody has finished; how many files.  Readers of the list for
        Spark are told first.  All files and the log of a day are looked through."""
        now = time.time()
        removed = self.log.removed(now - max(keep_s, KEEP_S))
        counted = {one.path for one in self.log.files()}
        gone = [
            path
            for path, modified_s in self.storage.list("")
            if path.endswith(".parquet")
            and path not in counted
            and not path.startswith("_")
            and (removed[path] <= now - keep_s if path in removed else modified_s < now - max(keep_s, UNKNOWN_S))
        ]
        if gone:
            self.publish()
            self.storage.delete(gone)
        return len(gone)

    def sweep_in_time(self) -> None:
        """Remove what may go, if nobody has looked for an hour: jobs that run for minutes share the note of when it
        was."""
        now, last = time.time(), self.storage.get(_SWEPT)
        if last is None or not 0 <= now - float(last) < SWEEP_EVERY_S:
            self.sweep(KEEP_S)
            self.storage.put(_SWEPT, str(now).encode())

    def publish(self) -> None:
        """The list by which Spark reads a folder without us.  It is made from the log, and never newer than that."""
        if self.directory is not None and self.exists():
            messages = Path(self.messages)
            with self._locked():
                self._check_old(FileList(messages))
                FileList(messages).replace(listed_of(messages, self.log.files()))

    def _check_old(self, listed: FileList) -> None:
        """A release before the Delta table may still run, and put its files into the list alone."""
        newest = listed.newest()
        if newest is not None and newest.batch != IN_LOG:
            root = Path(self.messages).absolute()
            known = {one.path for one in self.log.files()} | set(self.log.removed(0.0))
            if any(str(one.file.relative_to(root)) not in known for one in listed.load()):
                raise PipelineError(
                    f"an earlier release has written to {self.place} after this one had taken it over: stop it; its "
                    f"files are in {listed.path}"
                )

    def hold(self, owner: str) -> None:
        """Only one job writes batches: the one with this name, from the first on."""
        self.storage.put_new(_OWNER, owner.encode())
        self.storage.put_new(_PROBE, b"")
        if self.storage.put_new(_PROBE, b""):
            raise PipelineError(
                f"the store of {self.place} puts a file in the place of another though it must not (it does not honour "
                "If-None-Match): an archive there could lose messages"
            )
        known = self.storage.get(_OWNER)
        if known != owner.encode():
            raise PipelineError(
                f"{self.place} is the archive of the job {(known or b'').decode()}, and this one is {owner}: start it "
                "with the directory where that job keeps its state (--state), or begin another archive"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        assert isinstance(self.storage, Folder)
        assert self.directory is not None
        with (self.directory / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_OWNER = "_sterna/job"
_PROBE = "_sterna/put-if-absent"
_SWEPT = "_sterna/swept"
"""When somebody looked last, in seconds since 1970."""


def _offsets(batch: int) -> str:
    return f"_sterna/reached/{batch}.json"
