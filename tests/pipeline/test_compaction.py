"""Compaction: fewer files, the same messages, whoever reads or is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sterna.cli.main import main
from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.archive.compaction import Compacted, FileMerge, compact, merge, small_files
from sterna.pipeline.archive.file_list import Listed
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive

from .archives import LEVELS, keep, kept, on_disk

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
    for file in before:
        os.utime(file, (0, time.time() - 25 * 3600))
    assert compact(files) == Compacted(0, 0, swept=6)
    assert on_disk(files) == {one.file for one in files.list.load()}
    assert kept(files) == list(range(15))


def test_a_merged_file_is_the_table_in_one_group_of_rows(files: ArchiveFiles) -> None:
    expected = sorted(
        (row for one in files.list.load() for row in pq.read_table(one.file, partitioning=None).to_pylist()),
        key=lambda row: (row["topic"], row["offset"]),
    )
    compact(files)
    found = []
    for one in files.list.load():
        with pq.ParquetFile(one.file) as file:
            assert file.schema_arrow.equals(TABLE_SCHEMA)
            assert file.num_row_groups == 1
            found += file.read().to_pylist()
    assert sorted(found, key=lambda row: (row["topic"], row["offset"])) == expected


def test_a_batch_that_is_merged_already_is_known(files: ArchiveFiles) -> None:
    compact(files)
    keep(files, 2, range(10, 15))
    assert kept(files) == list(range(15))


def listed(name: str, size: int, batch: int = 0) -> Listed:
    return Listed(f"file:///a/{name}", size, 0, batch)


def test_only_small_files_of_one_directory_are_merged_and_not_into_too_large_ones() -> None:
    many = [listed(f"x/{number}", 40, number) for number in range(6)]
    others = [listed("x/large", 60), listed("y/1", 10), listed("z/1", 10), listed("z/2", 10)]
    groups = small_files([*others, *many], target_bytes=100, at_least=2)
    assert [[one.path[10:] for one in group] for group in groups] == [
        ["z/1", "z/2"],
        ["x/0", "x/1", "x/2"],
        ["x/3", "x/4", "x/5"],
    ]
    assert len(small_files([*others, *many], target_bytes=100, at_least=3)) == 2


def test_a_file_that_is_listed_and_gone_is_named(files: ArchiveFiles) -> None:
    gone = files.list.load()[0].file
    gone.unlink()
    with pytest.raises(PipelineError, match=f"{gone.name}.* is in the archive's list, and gone"):
        merge(FileMerge((str(gone),), str(files.directory / "x.parquet")))


def test_what_somebody_else_has_merged_meanwhile_is_left_alone(files: ArchiveFiles) -> None:
    first = files.list.load()
    with files.workshop() as place:
        (place / "x.parquet").write_bytes(b"")
        compact(files)
        assert not files.exchange(first, place / "x.parquet", place)
    assert kept(files) == list(range(15))


def test_killed_before_any_change_to_the_disk_every_message_is_there_once(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "pipeline.killing", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    places = dict(line.split() for line in done.stdout.splitlines())
    assert int(places["compactions"]) >= 30
    assert int(places["batches"]) >= 15
    assert int(places["race"]) >= 1


def test_spark_sees_the_same_before_during_and_after(spark: SparkSession, files: ArchiveFiles) -> None:
    (files.directory / "checkpoint/offsets").mkdir(parents=True)
    (files.directory / "checkpoint/offsets/2").write_text('v1\n{}\n{"n": 15}\n')
    archive = Archive(files.directory)
    early, reached = archive.table(spark)
    assert early is not None
    assert reached == {"n": 15}
    compact(files)
    late, _ = archive.table(spark)
    plain = spark.read.parquet(str(files.messages))
    for table in (early, late, plain):
        assert table is not None
        counted = table.where("date = '2026-01-31'").groupBy("first_level").count().collect()
        assert {tuple(row) for row in counted} == {(level, 15) for level in LEVELS}
    assert late is not None
    assert len(late.inputFiles()) == 2
    assert len(late.where("first_level = 'plant'").inputFiles()) == 2
    row = late.where("first_level = 'plant' and offset = 7").first()
    assert row is not None
    assert (bytes(row.payload), row.qos, row.properties, str(row.ingress_time)) == (
        b"7", 1, {"k": "v"}, "2026-01-31 00:00:00",
    )  # fmt: skip


def test_the_command_says_what_it_did(files: ArchiveFiles, capsys: pytest.CaptureFixture[str]) -> None:
    for directory, said in ((files.directory, "6 files became 2"), (files.directory / "x", "x is no archive")):
        with pytest.raises(SystemExit):
            main(["pipeline", "compact", str(directory)])
        assert said in capsys.readouterr().err
    assert kept(files) == list(range(15))
