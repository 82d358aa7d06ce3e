"""Erasure from an archive: exactly the messages that are meant go, for good, whatever else the files hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sterna.pipeline.archive.compaction import compact
from sterna.pipeline.archive.delta_log import ArchiveState, Choose
from sterna.pipeline.archive.erasure import Erased, ErasureScope, erase
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.table import SCHEMA

from .archives import counted, on_disk, written

DAYS = (date(2026, 1, 30), date(2026, 1, 31))


def archive(directory: Path) -> ArchiveFiles:
    """Two days of two first levels; each file has two topics of two publishers, four messages."""
    files = ArchiveFiles(directory)
    files.log.create()
    for batch, day in enumerate(DAYS):
        rows = [
            {
                "topic": f"{level}/{topic}",
                "payload": f"{day} {level} {topic} {who}".encode(),
                "publisher": who,
                "offset": 0,
                "ingress_time": datetime(day.year, day.month, day.day, tzinfo=UTC),
            }
            for level in ("office", "plant")
            for topic in ("a", "b")
            for who in ("anna", "ben")
        ]
        files.take_in(batch, written(files, pa.Table.from_pylist(rows, SCHEMA).to_batches()))
    return files


def payloads(files: ArchiveFiles) -> set[str]:
    found = [pq.read_table(path, partitioning=None).column("payload").to_pylist() for path in counted(files)]
    return {bytes(one).decode() for some in found for one in some}


@pytest.mark.parametrize(
    ("scope", "is_meant", "erased"),
    [
        (ErasureScope("plant/#"), lambda text: " plant " in text, Erased(8, 2)),
        (ErasureScope("+/a"), lambda text: " a " in text, Erased(8, 4)),
        (ErasureScope(publisher="anna"), lambda text: text.endswith("anna"), Erased(8, 4)),
        (ErasureScope(before=DAYS[1]), lambda text: text.startswith("2026-01-30"), Erased(8, 2)),
        (
            ErasureScope("plant/a", "ben", DAYS[1]),
            lambda text: text == "2026-01-30 plant a ben",
            Erased(1, 1),
        ),
        (ErasureScope("nowhere/#"), lambda _text: False, Erased(0, 0)),
    ],
)
def test_what_is_meant_goes_and_the_rest_stays(
    tmp_path: Path, scope: ErasureScope, is_meant: Callable[[str], bool], erased: Erased
) -> None:
    files = archive(tmp_path)
    before = payloads(files)
    assert len(before) == 16
    assert erase(files, scope) == erased
    assert payloads(files) == {text for text in before if not is_meant(text)}
    assert on_disk(files) == set(counted(files)), "nothing of it is left on the disk"
    assert erase(files, scope) == Erased(0, 0)


def test_an_archive_whose_messages_are_all_erased_is_still_one(tmp_path: Path) -> None:
    """Its newest batch stays known: else the next start would take its batches for old ones."""
    files = archive(tmp_path)
    erase(files, ErasureScope("#"))
    assert payloads(files) == set()
    assert files.last_batch() == 1
    assert erase(files, ErasureScope("#")) == Erased(0, 0)


@pytest.mark.parametrize("scope", [ErasureScope(), ErasureScope("a/#/b")])
def test_an_erasure_without_bounds_is_refused(tmp_path: Path, scope: ErasureScope) -> None:
    with pytest.raises(PipelineError):
        erase(archive(tmp_path), scope)


def test_an_erasure_is_one_change_and_reads_no_file_that_the_log_rules_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path)
    read: list[str] = []
    reading = files.storage.reading

    def watched(path: str) -> Any:
        read.append(path)
        return reading(path)

    monkeypatch.setattr(files.storage, "reading", watched)
    before = files.state().version
    assert erase(files, ErasureScope("plant/a")) == Erased(4, 2)
    assert files.state().version == before + 1
    assert len(read) == 2
    assert all("first_level=plant" in path for path in read)
    read.clear()
    assert erase(files, ErasureScope(before=DAYS[1])) == Erased(6, 2)
    assert not read, "whole days go unread"


def test_an_erasure_is_tried_again_if_files_were_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path)
    files.take_in(2, written(files, _more()))
    state = files.state

    def overtaken(choose: Choose) -> ArchiveState:
        found = state(choose)
        monkeypatch.setattr(files, "state", state)
        assert compact(ArchiveFiles(files.place)).merged == 4
        return found

    monkeypatch.setattr(files, "state", overtaken)
    assert erase(files, ErasureScope(publisher="anna")) == Erased(9, 4)
    assert not any("anna" in text for text in payloads(files))
    assert on_disk(files) == set(counted(files))


def _more() -> list[pa.RecordBatch]:
    day = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [
        {"topic": f"{level}/c", "payload": level.encode(), "publisher": who, "offset": 1, "ingress_time": day}
        for level, who in (("office", "ben"), ("plant", "anna"))
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows, SCHEMA).to_batches()
    return batches
