"""A node on a full disk can be started: its reserve or its retention makes the room, or it says what to do.

The disk is a small one of its own, which takes root to make.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.identity import Credentials
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import Limits
from sterna.broker.session.connection import Connection
from sterna.journal.settings import JournalSettings
from sterna.mqtt.message import Message
from sterna.node.node import Node, Saved
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.disk.session_store import SessionStore
from sterna.vocabulary.errors import JournalError

PLENTY = JournalSettings(segment_bytes=64 * 1024, retention_bytes=10_000_000, retention_age_s=1e9)
LITTLE = JournalSettings(segment_bytes=64 * 1024, retention_bytes=200_000, retention_age_s=1e9)
RESERVE = 128 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


class Started:
    """A node on its files, which is killed at the end."""

    def __init__(self, data: Path, settings: JournalSettings, reserve_bytes: int) -> None:
        self.store = FileStore(data / "journal", settings, "node")
        self.sessions: SessionStore | None = None
        try:
            self.sessions = SessionStore(data / "sessions.sqlite", reserve_bytes=reserve_bytes)
            saved = self.sessions.load()
            self.node = Node(
                limits=Limits(),
                settings=settings,
                store=self.store,
                saved=Saved(saved.position, saved.sessions, saved.retained),
                next_epoch=self.sessions.next_epoch,
                authenticator=Authenticator(),
                access=AccessList([], "allow"),
                world=self,
                rng=random.Random(1),
                now=0.0,
                wall=1.7e9,
            )
        except JournalError:
            self.kill()
            raise

    def report(self, event: str, fields: dict[str, Any]) -> None: ...

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None: ...

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        raise AssertionError("there are no functions here")

    def publish(self, size: int = 10_000) -> None:
        commitments = self.node.broker.commitments
        commitments.publication(Message(b"t", bytes(size), 1, received_at=1.7e9), None, 0)
        commit = commitments.close()
        assert commit.group is not None
        try:
            self.node.broker.committed(commit, self.store.write(commit.group))
        except JournalError as error:
            self.node.broker.commitments.failed(commit)
            raise error

    def checkpoint(self) -> None:
        changes = self.node.changes()
        assert not self.node.broker.commitments.pending
        assert self.sessions is not None
        self.sessions.checkpoint(
            changes.position, changes.sessions, changes.sessions_gone, changes.retained, changes.retained_gone
        )
        self.node.checkpointed(changes)

    def kill(self) -> None:
        self.store.close()
        if self.sessions is not None:
            self.sessions._database.close()


def fill(data: Path, reserve_bytes: int) -> int:
    """Run a node until its disk is full to the last byte, and kill it; the offset it would have given next."""
    (data / "other").write_bytes(bytes(100_000))
    started = Started(data, PLENTY, reserve_bytes)
    for _ in range(30):
        started.publish()
    started.checkpoint()
    kept = 30
    with suppress(JournalError):
        while kept < 199:
            started.publish()
            kept += 1
    assert 30 < kept < 199
    started.kill()
    use_up(data)
    return kept


def use_up(disk: Path) -> None:
    """To the last byte."""
    for size in (4096, 1):
        with (disk / "other").open("ab", buffering=0) as file, suppress(OSError):
            for _ in range(5000):
                file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0


def test_a_node_on_a_full_disk_starts_on_its_reserve(disk: Path) -> None:
    kept = fill(disk, RESERVE)
    assert (disk / "reserve").stat().st_size == RESERVE
    started = Started(disk, PLENTY, RESERVE)
    assert started.node.journal.next_offset == kept
    assert not (disk / "reserve").exists()
    started.checkpoint()
    started.publish()
    started.kill()


def test_a_node_on_a_full_disk_without_a_reserve_starts_if_retention_makes_room(disk: Path) -> None:
    kept = fill(disk, 10**9)  # more than the disk has, so there never is one
    assert not (disk / "reserve").exists()
    started = Started(disk, LITTLE, RESERVE)
    assert started.node.journal.next_offset == kept
    assert 0 < started.node.journal.first_offset <= 30, "trimmed as far as the checkpoint allows"
    started.checkpoint()
    while started.node.tidy():
        pass
    assert started.node.journal.statistics().bytes < 300_000
    started.checkpoint()
    assert (disk / "reserve").stat().st_size == RESERVE
    started.publish()
    started.kill()


def test_a_node_without_a_byte_left_says_what_to_do_and_harms_nothing(disk: Path) -> None:
    kept = fill(disk, 10**9)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"nothing is lost, .*: free some space, or lower \[journal\] retention"):
            Started(disk, PLENTY, 10**9)
    (disk / "other").unlink()
    started = Started(disk, PLENTY, 10**9)
    assert started.node.journal.next_offset == kept
    started.publish(100)
    started.kill()


def test_a_checkpoint_on_a_full_disk_gets_the_reserve_and_gives_it_back_when_there_is_room(disk: Path) -> None:
    with SessionStore(disk / "sessions.sqlite", reserve_bytes=RESERVE) as store:
        store.next_epoch()
        position = store.load().position
        assert (disk / "reserve").exists()
        use_up(disk)
        store.checkpoint(position, {"session": bytes(50_000)}, [], {}, [])
        assert not (disk / "reserve").exists()
        (disk / "other").unlink()
        store.checkpoint(position, {"session": bytes(10)}, [], {}, [])
        assert (disk / "reserve").exists()
        assert store.load().sessions == {"session": bytes(10)}
