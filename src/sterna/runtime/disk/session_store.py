"""Sessions and retained messages as of a position in the journal, in one SQLite file.

A checkpoint is one transaction: after a crash the file holds the last whole one, and the journal holds everything after
its position.  The broker encodes the values; they are opaque here.  A node with a full disk can still read the file,
and writes with the space held back by the `Reserve`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sterna.journal.store import BEGINNING, Position
from sterna.runtime.disk.disk_reserve import RESERVE_BYTES, Reserve
from sterna.runtime.disk.private_files import make_private_directory
from sterna.vocabulary import versions
from sterna.vocabulary.errors import JournalError

_TABLES = """
CREATE TABLE sessions (client_id TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE retained (topic BLOB PRIMARY KEY, message BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

#: Version -> statements that make it the next one.  The values stay as they are: their readers know both kinds.
_UPGRADES = {2: ""}

_Run = Callable[[str, Iterable[Any]], object]
"""Run one statement for each row of parameters."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    position: Position
    """Everything the journal holds before it is in this checkpoint."""
    epoch: int
    """Of the last start of the node; 0: there was none."""
    sessions: dict[str, bytes]
    retained: dict[bytes, bytes]
    meta: dict[str, str]


class SessionStore:
    """May be used from any thread; calls wait for each other."""

    def __init__(self, path: Path, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._reserve = Reserve(path.with_name("reserve"), reserve_bytes)
        self._lock = threading.Lock()
        with self._blaming_the_file():
            _create_private(path)
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._blaming_the_file():
                self._with_room(self._prepare)
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        # Nobody else has any business here; and to share the file takes an index beside it, which a full disk has no
        # room for.  It has to be said before anything is read.
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if version and version not in versions.SESSIONS:
            raise JournalError(versions.refusal(str(self._path), version, versions.SESSIONS))
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        newest = versions.SESSIONS.newest
        steps = [_UPGRADES[known] for known in range(version, newest)] if version else [_TABLES]
        if steps:
            self._database.executescript(f"BEGIN IMMEDIATE;{''.join(steps)}PRAGMA user_version = {newest};COMMIT;")

    def load(self) -> Checkpoint:
        with self._lock, self._blaming_the_file():
            meta: dict[str, str] = dict(self._database.execute("SELECT name, value FROM meta"))
            return Checkpoint(
                position=Position.parse(meta.pop("position", str(BEGINNING))),
                epoch=int(meta.pop("epoch", "0")),
                sessions=dict(self._database.execute("SELECT client_id, state FROM sessions")),
                retained=dict(self._database.execute("SELECT topic, message FROM retained")),
                meta=meta,
            )

    def checkpoint(
        self,
        position: Position,
        sessions_changed: Mapping[str, bytes],
        sessions_gone: Iterable[str],
        retained_changed: Mapping[bytes, bytes],
        retained_gone: Iterable[bytes],
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """Bring the file from its last checkpoint to `position`, wholly or not at all."""
        gone, retained = list(sessions_gone), list(retained_gone)  # should it have to be done twice

        def change(run: _Run) -> None:
            run("DELETE FROM sessions WHERE client_id = ?", ((name,) for name in gone))
            run("REPLACE INTO sessions VALUES (?, ?)", sessions_changed.items())
            run("DELETE FROM retained WHERE topic = ?", ((topic,) for topic in retained))
            run("REPLACE INTO retained VALUES (?, ?)", retained_changed.items())
            run("REPLACE INTO meta VALUES (?, ?)", {**(meta or {}), "position": str(position)}.items())

        self._transact(change)

    def next_epoch(self, after: int = 0) -> int:
        """Give this start of the node a number; it is on the disk when this returns.

        `after` is the last epoch the journal tells of, so that a lost session file does not make epochs come twice.
        """

        def count(run: _Run) -> int:
            found = self._database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            epoch = max(after, int(found[0]) if found else 0) + 1
            run("REPLACE INTO meta VALUES ('epoch', ?)", [(str(epoch),)])
            return epoch

        return self._transact(count)

    def copy_to(self, path: Path) -> None:
        """The last whole checkpoint, into a file that is not there yet."""
        _create_private(path)
        with self._lock, self._blaming_the_file(), closing(sqlite3.connect(path)) as copy:
            self._database.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._lock, self._blaming_the_file():
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transact(self, work: Callable[[_Run], T]) -> T:
        with self._lock, self._blaming_the_file():
            done = self._with_room(lambda: self._try_to_transact(work))
            self._reserve.take_back()
            return done

    def _try_to_transact(self, work: Callable[[_Run], T]) -> T:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            done = work(self._database.executemany)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        return done

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do it; if the disk is full, once more with the reserve given up."""
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not _is_full(error) or not self._reserve.give_up():
                raise
        return work()

    @contextmanager
    def _blaming_the_file(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:  # ours, not the file's
            raise
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"{self._path}: {error}; {_advice(error)}") from error


def _create_private(path: Path) -> None:
    """Make an empty file only we may read (it will hold payloads), and make its name durable."""
    make_private_directory(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_full(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", 0)
    # An I/O error may be the same thing told less clearly; there is no harm in trying again.
    return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _advice(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extension
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) == errno.ENOSPC:
        return (
            "nothing is lost, but the disk is full and the room the node holds back for itself is used up: free some "
            "space, or lower [journal] retention_bytes and start the node again"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "restore a backup, or move it away: the node then starts with the sessions its journal still tells of"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process has it open; stop that one"
    return "see that the node may read and write it and its directory"
