"""The files of an archive: adding, replacing and removing them.

Every change writes a new list of files (`file_list`) under the archive's lock, which ends with the process that holds
it.  A file is in its place before it is listed, and stays for a while after it was taken off the list, for readers
that still use it.  Needs no Spark.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from sterna.pipeline.archive.file_list import FileList, Listed, last_batch, listed
from sterna.pipeline.errors import PipelineError
from sterna.runtime.feed.cursors import put_in_place

KEEP_S = 24 * 3600.0
"""How long a file stays that is not listed: longer than any question to the archive takes."""


_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def check_local(directory: Path) -> None:
    """Files are locked, synced and renamed, which object stores do not do."""
    if _URI.match(str(directory)):
        raise PipelineError(
            f"{directory} is an address; archives and jobs are kept in directories: give a path, of storage that is "
            "mounted where all machines see it if Spark runs on several"
        )


class ArchiveFiles:
    def __init__(self, directory: Path) -> None:
        check_local(directory)
        self.directory = directory
        self.messages = directory / "messages"
        self.list = FileList(self.messages)
        self._making = directory / "making"

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A directory for files that are being made; what is left in it goes."""
        place = self._making / uuid4().hex
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def take_in(self, batch: int, made: Path) -> None:
        """The files below `made` are the batch's: all of them count from now on, or, if the batch is known, none."""
        with self._locked():
            files = self.list.load()
            if batch > last_batch(files):
                new = [self._place(file, made, batch) for file in sorted(made.rglob("*.parquet"))]
                if new:
                    self.list.replace([*files, *new])

    def exchange(self, old: Sequence[Listed], new: Path, made: Path) -> bool:
        """`new`, somewhere below `made`, holds what the old ones hold.  False if somebody else was quicker."""
        leaving = {one.path for one in old}
        with self._locked():
            files = self.list.load()
            if not leaving <= {one.path for one in files}:
                return False
            for one in old:
                os.utime(one.file)  # from now on `sweep` counts
            staying = [one for one in files if one.path not in leaving]
            self.list.replace([*staying, self._place(new, made, last_batch(old))])
            return True

    def sweep(self, keep_s: float) -> int:
        """Remove what is not listed and has not been touched for so long; how many files went."""
        until = time.time() - keep_s
        with self._locked():
            known = {one.file for one in self.list.load()}
            messages = self.messages.absolute()
            gone = [file for file in messages.rglob("*.parquet") if file not in known and file.stat().st_mtime < until]
            for file in gone:
                file.unlink()
        for place in self._making.iterdir() if self._making.exists() else ():
            with suppress(FileNotFoundError):  # somebody is at work there
                if max(one.stat().st_mtime for one in (place, *place.rglob("*"))) < until:
                    shutil.rmtree(place, ignore_errors=True)
        return len(gone)

    def _place(self, file: Path, made: Path, batch: int) -> Listed:
        target = self.messages / file.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        put_in_place(file, target)
        return listed(target, batch)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
