"""Backups of a running node: a data directory as it was at one moment after the backup began.

The journal's copy holds everything after the checkpoint's copy.  The node goes on writing meanwhile; a group that is
copied in half is cut when the copy is started, as after a crash.  A backup has another directory's name until it is
whole and synced.

The identity of the journal is left out: a node that starts from a backup has another one, so that readers of its feed
notice that offsets mean other messages now.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from sterna.runtime.disk.private_files import make_private_directory
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.disk.session_store import SessionStore
from sterna.vocabulary.errors import ConfigurationError, JournalError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
JOURNAL, SESSIONS = "journal", "sessions.sqlite"
_COPIED_AT_ONCE = 4 * 1024 * 1024


class Backup(NamedTuple):
    path: str
    segments: int
    bytes: int


def back_up(sessions: SessionStore, store: FileStore, directory: Path, name: str) -> Backup:
    """Copy all that the node needs to start into `directory/name`.  In any thread.  May raise ConfigurationError,
    JournalError or OSError; then nothing is left behind."""
    target, making = _places(directory, name)
    make_private_directory(making / JOURNAL)
    try:
        with ExitStack() as held:
            # Retention may drop a segment at any time.  One that is open stays readable, so all are opened before the
            # checkpoint is copied, and those that are begun meanwhile after it.
            journal = _open_segments(store, {}, held)
            sessions.copy_to(making / SESSIONS)
            journal = _open_segments(store, journal, held)
            size = sum(_copy(source, making / JOURNAL / name) for name, source in journal.items())
        for one in (making / JOURNAL, making):
            _sync(one)
        making.rename(target)
        _sync(directory)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return Backup(str(target), len(journal), size + (target / SESSIONS).stat().st_size)


def _places(directory: Path, name: str) -> tuple[Path, Path]:
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name for a backup: use up to 64 letters, digits, . _ -")
    target, making = directory / name, directory / f".{name}.making"
    if target.exists():
        raise ConfigurationError(f"{target} exists already; choose another name")
    if making.exists():
        raise ConfigurationError(f"{making} exists: a backup of that name is being made, or was interrupted; remove it")
    return target, making


def _open_segments(store: FileStore, known: dict[str, int], held: ExitStack) -> dict[str, int]:
    """File name -> descriptor, of those known and of all others there are now."""
    found = dict(known)
    for segment in store.segments():
        name = Path(segment.name).name
        if name not in found:
            with suppress(KeyError):  # retention has dropped it this very moment
                found[name] = store.open_apart(segment.serial)
                held.callback(os.close, found[name])
    return found


def _copy(source: int, path: Path) -> int:
    """All that is in the file by now."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        done, end = 0, os.fstat(source).st_size
        while done < end:
            copied = os.sendfile(target, source, done, min(_COPIED_AT_ONCE, end - done))
            if not copied:
                raise JournalError(f"{path}: its source ended after {done} of {end} bytes")
            done += copied
        os.fsync(target)
        return done
    finally:
        os.close(target)


def restore(backup: Path, data: Path) -> int:
    """Make `data` a data directory with the contents of a backup; how many bytes.  May raise ConfigurationError or
    OSError."""
    if not (backup / SESSIONS).is_file() or not (backup / JOURNAL).is_dir():
        raise ConfigurationError(f"{backup} is no backup: it has no {SESSIONS} and {JOURNAL}/")
    if data.exists() and any(data.iterdir()):
        raise ConfigurationError(f"{data} is not empty: move it away, or name another directory")
    make_private_directory(data / JOURNAL)
    files = [backup / SESSIONS, *sorted((backup / JOURNAL).glob("*.sterna"))]
    size = 0
    for file in files:
        source = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size += _copy(source, data / file.relative_to(backup))
        finally:
            os.close(source)
    for one in (data / JOURNAL, data, data.absolute().parent):
        _sync(one)
    return size


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
