"""Checkpoints of sessions: whole or not at all, counted starts, honest errors."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sterna.journal.store import BEGINNING, Position
from sterna.node.node import epoch_before
from sterna.runtime.disk.session_store import SessionStore
from sterna.vocabulary import versions
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.versions import Versions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.sqlite"


def test_a_new_store_is_empty_and_private(path: Path) -> None:
    with SessionStore(path) as store:
        found = store.load()
    assert (found.position, found.epoch, found.sessions, found.retained, found.meta) == (BEGINNING, 0, {}, {}, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_checkpoint_brings_changes_and_takes_what_is_gone(path: Path) -> None:
    with SessionStore(path) as store:
        store.checkpoint(Position(1, 300, 5), {"a": b"1", "b": b"2"}, [], {b"t/\xff": b"m", b"u": b"n"}, [])
        store.checkpoint(Position(2, 400, 9), {"b": b"3", "ü": b""}, ["a", "never"], {b"v": b"o"}, [b"u"], {"k": "v"})
    with SessionStore(path) as store:
        found = store.load()
    assert found.position == Position(2, 400, 9)
    assert found.sessions == {"b": b"3", "ü": b""}
    assert found.retained == {b"t/\xff": b"m", b"v": b"o"}
    assert found.meta == {"k": "v"}


def test_a_session_that_went_and_came_back_is_there(path: Path) -> None:
    with SessionStore(path) as store:
        store.checkpoint(Position(1, 300, 5), {"a": b"new"}, ["a"], {}, [])
        assert store.load().sessions == {"a": b"new"}


def test_a_checkpoint_that_fails_half_way_changes_nothing(path: Path) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"t"
        raise RuntimeError("half way")

    with SessionStore(path) as store:
        store.checkpoint(Position(1, 300, 5), {"a": b"1"}, [], {b"t": b"m"}, [])
        with pytest.raises(RuntimeError, match="half way"):
            store.checkpoint(Position(2, 0, 9), {"a": b"2"}, [], {}, interrupted())
        found = store.load()
        assert (found.position, found.sessions, found.retained) == (Position(1, 300, 5), {"a": b"1"}, {b"t": b"m"})
        store.checkpoint(Position(3, 0, 9), {"a": b"3"}, [], {}, [])
        assert store.load().position == Position(3, 0, 9)


def test_starts_are_counted_durably_and_never_fall_behind_the_journal(path: Path) -> None:
    with SessionStore(path) as store:
        assert store.next_epoch() == 1
    with SessionStore(path) as store:
        assert store.next_epoch() == 2
        assert store.next_epoch(after=7) == 8
        assert store.next_epoch(after=3) == 9
        assert store.load().epoch == 9


def test_a_start_is_numbered_by_the_clock_and_is_newer_than_all_before_also_if_that_was_set_back(path: Path) -> None:
    with SessionStore(path) as store:
        assert store.next_epoch(epoch_before(0, 1000.7)) == 1000
        assert store.next_epoch(epoch_before(1000, 1000.9)) == 1001
        assert store.next_epoch(epoch_before(1001, 400.0)) == 1002
        assert store.next_epoch(epoch_before(0, 400.0)) == 1003, "the journal is gone, too"
        assert store.next_epoch(epoch_before(1003, 2000.0)) == 2000


def test_checkpoint_and_epoch_survive_a_kill(path: Path) -> None:
    script = (
        "import os, pathlib, signal, sys; from sterna.runtime.disk.session_store import SessionStore;"
        "from sterna.journal.store import Position; store = SessionStore(pathlib.Path(sys.argv[1]));"
        "store.next_epoch(); store.checkpoint(Position(1, 2, 3), {'a': b'1'}, [], {}, []);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=120).returncode == -9
    with SessionStore(path) as store:
        found = store.load()
    assert (found.epoch, found.position, found.sessions) == (1, Position(1, 2, 3), {"a": b"1"})


def test_other_threads_may_checkpoint(path: Path) -> None:
    with SessionStore(path) as store:
        threads = [
            threading.Thread(target=store.checkpoint, args=(BEGINNING, {f"c{number}": b"s"}, [], {}, []))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
        assert sorted(store.load().sessions) == [f"c{number}" for number in range(8)]


def test_commits_wait_for_the_disk(path: Path) -> None:
    with SessionStore(path) as store:
        mode = store._database.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous = store._database.execute("PRAGMA synchronous").fetchone()[0]
    assert (mode, synchronous) == ("wal", 2)


@pytest.mark.parametrize(
    ("schema", "remedy"), [(1, "upgrade by way of the releases"), (12, "a newer release wrote it")]
)
def test_a_schema_of_the_past_or_the_future_is_refused_by_name(path: Path, schema: int, remedy: str) -> None:
    SessionStore(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {schema}")
    database.close()
    with pytest.raises(
        JournalError, match=f"{path} is of version {schema}, this release understands {versions.SESSIONS}; {remedy}"
    ):
        SessionStore(path)


def test_a_schema_of_the_release_before_is_brought_up_to_date_and_keeps_its_contents(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SessionStore(path) as store:
        store.checkpoint(Position(1, 2, 3), {"a": b"one"}, [], {b"t": b"kept"}, [])
    newest = versions.SESSIONS.newest
    monkeypatch.setattr("sterna.vocabulary.versions.SESSIONS", Versions(newest, newest + 1))
    monkeypatch.setattr("sterna.runtime.disk.session_store._UPGRADES", {newest: "CREATE TABLE more (name TEXT);"})
    for _ in range(2):
        with SessionStore(path) as store:
            assert store.load().sessions == {"a": b"one"}
            assert store.load().retained == {b"t": b"kept"}
            assert store._database.execute("SELECT * FROM more").fetchall() == []
    monkeypatch.undo()
    with pytest.raises(JournalError, match="a newer release wrote it"):
        SessionStore(path)


def test_a_file_that_is_no_database_is_refused_with_what_to_do(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, certainly" * 100)
    with pytest.raises(JournalError, match=f"{path}: file is not a database; restore a backup, or move it away"):
        SessionStore(path)


def test_a_damaged_page_is_reported_with_what_to_do(path: Path) -> None:
    with SessionStore(path) as store:
        store.checkpoint(BEGINNING, {f"client {number}": bytes(500) for number in range(100)}, [], {}, [])
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xee" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(JournalError, match=f"{path}: .*malformed; restore a backup"), SessionStore(path) as store:
        store.load()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"file/sessions.sqlite: .*see that the node may read and write it"):
        SessionStore(tmp_path / "file" / "sessions.sqlite")
