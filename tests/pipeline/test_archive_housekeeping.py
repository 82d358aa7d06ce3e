"""Beside its batches an archive is tidied up, and that costs little however large it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sterna.pipeline.archive import files as archive_files
from sterna.pipeline.archive import storage
from sterna.pipeline.archive.compaction import in_threads
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.storage import Stored
from sterna.pipeline.jobs.archive import ArchiveHousekeeping

from .archives import keep as keep_batch
from .archives import kept, on_disk

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ROUNDS, ROWS = 6, 5
MERGE_AT = 2


class RunningQuery:
    """A batch each time that somebody asks whether it is over, until it is."""

    def __init__(self, batches: int, begin: Callable[[int], None]) -> None:
        self._left, self._batches, self._begin = batches, batches, begin

    def awaitTermination(self, _within_s: int) -> bool:
        if self._left:
            self._begin(self._batches - self._left)
            self._left -= 1
        return not self._left


def tidied(files: ArchiveFiles, batches: int, first: int = 0) -> None:
    """As many batches, each of which is a reason to merge."""
    house = ArchiveHousekeeping(files, MERGE_AT, 1 << 20, in_threads, every_s=1)

    def begin(number: int) -> None:
        batch = first + number
        keep_batch(files, batch, range(batch * ROWS, (batch + 1) * ROWS))
        house.tell(MERGE_AT)

    house.begin(cast("StreamingQuery", RunningQuery(batches, begin)))
    house.join()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Through all files."""
    found: list[str] = []
    listing = storage.Folder.list

    def listed(self: storage.Folder, prefix: str) -> Iterator[Stored]:
        if not prefix:
            found.append(prefix)
        return listing(self, prefix)

    monkeypatch.setattr(storage.Folder, "list", listed)
    return found


def test_all_files_are_looked_through_once_an_hour_however_many_batches_there_are(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ArchiveFiles(tmp_path / "archive")
    tidied(files, ROUNDS)
    tidied(ArchiveFiles(files.place), ROUNDS, first=ROUNDS)  # another process, which begins with what is there
    assert len(looks) == 1
    assert kept(files) == list(range(2 * ROUNDS * ROWS))
    assert any("/merged-" in one.path for one in files.state().files)
    monkeypatch.setattr(archive_files, "SWEEP_EVERY_S", 0.0)
    tidied(ArchiveFiles(files.place), 1, first=2 * ROUNDS)
    assert len(looks) == 2


def test_a_job_removes_what_was_left_a_day_ago_and_tells_readers_of_the_list_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ArchiveFiles(tmp_path / "archive")
    keep_batch(files, 0, range(ROWS))
    (one, *_) = on_disk(files)
    left = one.with_name("left.parquet")
    left.write_bytes(one.read_bytes())
    told: list[bool] = []
    publish = ArchiveFiles.publish

    def published(self: ArchiveFiles) -> None:
        told.append(left.exists())
        publish(self)

    monkeypatch.setattr(ArchiveFiles, "publish", published)
    assert files.sweep(0.0) == 0
    assert told == []
    os.utime(left, (0, time.time() - 25 * 3600))
    assert files.sweep(0.0) == 1
    assert told == [True]
    assert not left.exists()
    assert kept(files) == list(range(ROWS))
