"""Backups of a running node: a data directory as it was at one moment after the backup began.

The journal's copy holds everything after the checkpoint's copy.  The node goes on writing meanwhile; a group that is
copied in half is cut when the copy is started, as after a crash.  A backup has another directory's name until it is
whole and synced.

The identity of the journal is left out: a node that starts from a backup has another one, so that readers of its feed
notice that offsets mean other messages now.

A node of several processes has a copy of each process, cut at moments that are close together: the group's process sees
to it that no session went from one to another between two of them (`processes/backup.py`).
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

from sterna.runtime.disk.private_files import make_private_directory
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.disk.session_store import SessionStore
from sterna.vocabulary.errors import ConfigurationError, JournalError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
JOURNAL, SESSIONS = "journal", "sessions.sqlite"
MEMBER = "process-"
"""Directories of further processes begin so, in a data directory and in a backup of it."""
_COPIED_AT_ONCE = 4 * 1024 * 1024


class Backup(NamedTuple):
    path: str
    segments: int
    bytes: int


def back_up(sessions: SessionStore, store: FileStore, directory: Path, name: str) -> Backup:
    """Copy all that the node needs to start into `directory/name`.  In any thread.  May raise ConfigurationError,
    JournalError or OSError; then nothing is left behind."""
    making = BackupInTheMaking(directory, name)
    try:
        with DataCopy(sessions, store, making.path) as copy:
            copy.open()
            copy.cut()
            return making.finish([copy.copy()])
    except BaseException:
        making.abandon()
        raise


class BackupInTheMaking:
    """A directory that gets the backup's name when the backup is whole."""

    def __init__(self, directory: Path, name: str) -> None:
        """May raise ConfigurationError or OSError."""
        check_name(name)
        self._directory = directory
        self._target, self.path = directory / name, making_of(directory, name)
        if self._target.exists():
            raise ConfigurationError(f"{self._target} exists already; choose another name")
        if self.path.exists():
            raise ConfigurationError(
                f"{self.path} exists: a backup of that name is being made, or was interrupted; remove it"
            )
        make_private_directory(self.path)

    def finish(self, copies: list[CopiedData]) -> Backup:
        _sync(self.path)
        self.path.rename(self._target)
        _sync(self._directory)
        return Backup(str(self._target), sum(one.segments for one in copies), sum(one.bytes for one in copies))

    def abandon(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name for a backup: use up to 64 letters, digits, . _ -")


def making_of(directory: Path, name: str) -> Path:
    """Where the backup of that name is made."""
    return directory / f".{name}.making"


class CopiedData(NamedTuple):
    segments: int
    bytes: int


class DataCopy:
    """A copy of a node's data as of the moment of `cut`.  `open` and `copy` take long; use them in any thread."""

    def __init__(self, sessions: SessionStore, store: FileStore, target: Path) -> None:
        self._sessions = sessions
        self._store = store
        self._target = target
        self._held = ExitStack()
        self._journal: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def open(self) -> None:
        make_private_directory(self._target / JOURNAL)
        # Retention may drop a segment at any time.  One that is open stays readable, so all are opened before the
        # checkpoint is copied, and those that are begun meanwhile after it.
        self._open_segments()
        self._sessions.copy_to(self._target / SESSIONS)

    def cut(self) -> None:
        """The copy ends here: takes as long as a look at each segment.  May be done again, for a later moment."""
        self._open_segments()
        self._sizes = {name: os.fstat(source).st_size for name, source in self._journal.items()}

    def copy(self) -> CopiedData:
        size = sum(
            _copy(source, self._target / JOURNAL / name, self._sizes[name]) for name, source in self._journal.items()
        )
        for one in (self._target / JOURNAL, self._target):
            _sync(one)
        return CopiedData(len(self._journal), size + (self._target / SESSIONS).stat().st_size)

    def _open_segments(self) -> None:
        for segment in self._store.segments():
            name = Path(segment.name).name
            if name not in self._journal:
                with suppress(KeyError):  # retention has dropped it this very moment
                    self._journal[name] = self._store.open_apart(segment.serial)
                    self._held.callback(os.close, self._journal[name])

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _copy(source: int, path: Path, end: int) -> int:
    """The beginning of the file, up to there."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < end:
            copied = os.sendfile(target, source, done, min(_COPIED_AT_ONCE, end - done))
            if not copied:
                raise JournalError(f"{path}: its source ended after {done} of {end} bytes")
            done += copied
        os.fsync(target)
        return done
    finally:
        os.close(target)


class Restored(NamedTuple):
    bytes: int
    processes: int
    """That the node had when the backup was made."""


def restore(backup: Path, data: Path) -> Restored:
    """Make `data` a data directory with the contents of a backup.  May raise ConfigurationError or OSError."""
    if not _has_data(backup):
        raise ConfigurationError(f"{backup} is no backup: it has no {SESSIONS} and {JOURNAL}/")
    if data.exists() and any(data.iterdir()):
        raise ConfigurationError(f"{data} is not empty: move it away, or name another directory")
    parts = [backup, *(part for part in sorted(backup.glob(f"{MEMBER}*")) if _has_data(part))]
    size = sum(_restore_one(part, data / part.relative_to(backup)) for part in parts)
    for one in (data, data.absolute().parent):
        _sync(one)
    return Restored(size, len(parts))


def _has_data(backup: Path) -> bool:
    return (backup / SESSIONS).is_file() and (backup / JOURNAL).is_dir()


def _restore_one(backup: Path, data: Path) -> int:
    make_private_directory(data / JOURNAL)
    size = 0
    for file in [backup / SESSIONS, *sorted((backup / JOURNAL).glob("*.sterna"))]:
        source = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size += _copy(source, data / file.relative_to(backup), os.fstat(source).st_size)
        finally:
            os.close(source)
    for one in (data / JOURNAL, data):
        _sync(one)
    return size


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
