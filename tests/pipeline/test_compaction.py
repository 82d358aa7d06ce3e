"""Compaction: fewer files, the same messages, whoever reads or is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sterna.cli.main import main
from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.archive.compaction import Compacted, FileMerge, compact, merge, small_files
from sterna.pipeline.archive.delta_log import KeptFile
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive

from .archives import LEVELS, counted, keep, kept, on_disk, rows, written

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine


@pytest.fixture
def files(tmp_path: Path) -> ArchiveFiles:
    files = ArchiveFiles(tmp_path / "archive")
    for batch in range(3):
        keep(files, batch, range(batch * 5, batch * 5 + 5))
    return files


def test_small_files_become_one_and_the_old_ones_stay_for_their_readers(files: ArchiveFiles) -> None:
    before = on_disk(files)
    assert compact(files) == Compacted(merged=6, made=2, swept=0)
    assert kept(files) == list(range(15))
    assert before < on_disk(files)
    assert compact(files) == Compacted(0, 0, 0)
    assert compact(files, keep_s=3600.0) == Compacted(0, 0, 0)
    assert compact(files, keep_s=0.0) == Compacted(0, 0, swept=6)
    assert on_disk(files) == set(counted(files))
    assert kept(files) == list(range(15))


def test_a_file_that_nobody_has_finished_goes_after_a_day_and_one_that_is_being_written_stays(
    files: ArchiveFiles,
) -> None:
    made = on_disk(files)
    new = written(files, rows("plant", range(5)).to_batches())
    (path,) = on_disk(files) - made
    assert compact(files, keep_s=0.0).swept == 6
    assert path.exists()
    os.utime(path, (0, time.time() - 25 * 3600))
    assert compact(files, keep_s=0.0).swept == 1
    assert not path.exists()
    assert len(new) == 1


def test_a_merged_file_is_the_table_sorted_by_topic_in_one_group_of_rows(files: ArchiveFiles) -> None:
    def key(row: dict[str, Any]) -> tuple[str, int]:
        return row["topic"], row["offset"]

    late = [rows("plant", range(20, 23), topic) for topic in ("plant", "plant/b", "plant/A")]
    batches = (batch for table in sorted(late, key=lambda one: one["topic"][0].as_py()) for batch in table.to_batches())
    files.take_in(3, written(files, batches))
    expected = sorted((row for path in counted(files) for row in table_of(path)), key=key)
    assert compact(files).made == 2
    found = []
    for path in counted(files):
        with pq.ParquetFile(path) as file:
            assert file.schema_arrow.equals(TABLE_SCHEMA)
            assert file.num_row_groups == 1
            part = file.read().to_pylist()
            assert [row["topic"] for row in part] == sorted(row["topic"] for row in part)
            found += part
    assert len({row["topic"] for row in found}) == 5
    assert sorted(found, key=key) == expected


def table_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return found


def test_a_batch_that_is_merged_already_is_known(files: ArchiveFiles) -> None:
    compact(files)
    keep(ArchiveFiles(files.place), 2, range(10, 15))
    assert kept(files) == list(range(15))


def kept_file(name: str, size: int, at: int = 0) -> KeptFile:
    return KeptFile(name, size, date(2026, 1, 31), name.partition("/")[0], at, None)


def test_only_small_files_of_one_directory_are_merged_and_not_into_too_large_ones() -> None:
    many = [kept_file(f"x/{number}", 40, number) for number in range(6)]
    others = [kept_file("x/large", 60), kept_file("y/1", 10), kept_file("z/1", 10), kept_file("z/2", 10)]
    groups = small_files([*others, *many], target_bytes=100, at_least=2)
    assert [[one.path for one in group] for group in groups] == [
        ["z/1", "z/2"],
        ["x/0", "x/1", "x/2"],
        ["x/3", "x/4", "x/5"],
    ]
    assert len(small_files([*others, *many], target_bytes=100, at_least=3)) == 2


def test_a_file_that_is_listed_and_gone_is_named(files: ArchiveFiles) -> None:
    one = files.state().files[0]
    counted(files)[0].unlink()
    with pytest.raises(PipelineError, match=f"{one.path} is in the archive's list, and gone"):
        merge(FileMerge(files.storage.address, (one.path,), one.day, one.level))


def test_what_somebody_else_has_merged_or_erased_meanwhile_is_left_alone(files: ArchiveFiles) -> None:
    planned = files.state()
    (new,) = written(files, rows("plant", range(5)).to_batches())
    compact(files)
    keep(files, 3, range(15, 20))
    assert not files.exchange(planned.files[:1], [new], planned.version)
    assert kept(files) == list(range(20))
    assert new.path not in {str(path.relative_to(files.storage.address)) for path in on_disk(files)}


def test_an_answer_that_was_lost_is_no_reason_to_do_it_twice(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store may be asked twice by its client, and say no to the second."""
    put_new = files.storage.put_new
    monkeypatch.setattr(files.storage, "put_new", lambda path, data: put_new(path, data) and False)
    assert compact(files).made == 2
    keep(files, 3, range(15, 20))
    assert kept(files) == list(range(20))
    assert files.last_batch() == 3


@pytest.mark.slow
def test_killed_before_any_change_to_the_disk_every_message_is_there_once(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "pipeline.killing", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=550, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    places = dict(line.split() for line in done.stdout.splitlines())
    assert int(places["compactions"]) >= 15
    assert int(places["batches"]) >= 8
    assert int(places["erasures"]) >= 10
    assert int(places["race"]) >= 1


def test_spark_sees_the_same_before_during_and_after(spark: SparkSession, files: ArchiveFiles) -> None:
    keep(files, 3, [], b'{"n": 15}')
    archive = Archive(files.place)
    early, reached = archive.table(spark)
    assert early is not None
    assert reached == {"n": 15}
    compact(files)
    late, _ = archive.table(spark)
    plain = spark.read.parquet(files.messages)
    for table in (early, late, plain):
        assert table is not None
        counted = table.where("date = '2026-01-31'").groupBy("first_level").count().collect()
        assert {tuple(row) for row in counted} == {(level, 15) for level in LEVELS}
    assert late is not None
    assert len(late.inputFiles()) == 2
    row = late.where("first_level = 'plant' and offset = 7").first()
    assert row is not None
    assert (bytes(row.payload), row.qos, row.properties, str(row.ingress_time)) == (
        b"7", 1, {"k": "v"}, "2026-01-31 00:00:00",
    )  # fmt: skip
    (office,) = [one.path for one in files.state().files if one.level == "office"]
    files.storage.delete([office])
    assert late.where("first_level = 'plant' and offset >= 0").count() == 15, "files of other levels are not opened"
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        late.where("offset >= 0").count()


def test_the_command_says_what_it_did(files: ArchiveFiles, capsys: pytest.CaptureFixture[str]) -> None:
    for directory, said in ((files.place, "6 files became 2"), (f"{files.place}/x", "x is no archive")):
        with pytest.raises(SystemExit):
            main(["pipeline", "compact", directory])
        assert said in capsys.readouterr().err
    assert kept(files) == list(range(15))
