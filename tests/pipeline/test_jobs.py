"""The jobs: an archive holds each message once, and questions see archive and nodes as one table."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from live.nodes import wait_until
from sterna.cli import pipeline
from sterna.cli.main import main
from sterna.pipeline.archive.compaction import Compacted, compact
from sterna.pipeline.archive.conversion import convert
from sterna.pipeline.archive.file_list import FileList, Listed
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.storage import check_place
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive, start_archive
from sterna.pipeline.jobs.query import messages, query

from .archives import DAY, keep, rows
from .driving import Driver
from .feeding import FeedingNode, finished, numbers

SOON_S = 180
"""Spark starts, perhaps twice, on a busy machine."""
pytestmark = pytest.mark.timeout(4 * SOON_S)
StartFeeding = Callable[..., FeedingNode]
_HIVE = "__HIVE_DEFAULT_PARTITION__"


def run_archive(spark: SparkSession, archive: Archive, node: FeedingNode, **options: str) -> None:
    finished(lambda: start_archive(spark, archive, {"nodes": node.feed, **options}, available_now=True), SOON_S)
    archive.settle()


def test_archive_and_nodes_are_one_table_with_each_message_once(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node, archive = start_feeding(), Archive(tmp_path / "archive")
    source = {"nodes": node.feed}
    node.publish("plant/a", range(20))
    node.publish("office/b", range(20, 30))
    run_archive(spark, archive, node)
    kinds = {path.name for day in archive.messages.glob("date=*") for path in day.iterdir()}
    assert kinds == {"first_level=plant", "first_level=office"}
    node.publish("plant/a", range(30, 40))
    assert numbers(messages(spark, None, archive.directory)) == list(range(30))
    assert numbers(messages(spark, source, None)) == list(range(40))
    assert numbers(messages(spark, source, archive.directory)) == list(range(40))
    run_archive(spark, archive, node)
    assert numbers(messages(spark, source, archive.directory)) == list(range(40))
    sql = "select first_level, count(*) as n from messages where date >= '2020-01-01' group by first_level order by 1"
    counted = query(spark, sql, source, archive.directory).collect()
    assert [tuple(row) for row in counted] == [("office", 10), ("plant", 30)]


ODD = ("", "x" * 80, "y" * 300, "ä" * 200, "küche", "~61", "~", _HIVE, "a=b%2F:?*", " ", "'\"\\", "\U0001f426", "1")


def test_no_topic_stops_an_archive_and_its_level_is_the_same_there_and_live(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node, archive = start_feeding(), Archive(tmp_path / "archive")
    for level in ODD:
        node.publish(f"{level}/t", [level])
    live = {row.topic: row.first_level for row in messages(spark, {"nodes": node.feed}, None).collect()}
    run_archive(spark, archive, node)
    kept = messages(spark, None, archive.directory)
    assert {row.topic: row.first_level for row in kept.collect()} == live
    for level in ODD:
        column = live[f"{level}/t"]
        assert column == level or (len(level.encode()) > 80 and column == _cut(level))
        assert kept.where(f.col("first_level") == column).count() == 1
    directories = [path.name for path in archive.messages.glob("date=*/*")]
    assert len(directories) == len(ODD)
    assert all(name.isascii() and len(name) <= 255 for name in directories)
    for path in archive.messages.glob("date=*/*/*.parquet"):
        if path.parent.name != f"first_level=~{'küche'.encode().hex()}":
            path.unlink()
    assert kept.where("first_level = 'küche'").count() == 1, "files of other levels are not opened"
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        kept.where("payload = cast('küche' as binary)").count()


def _cut(level: str) -> str:
    return f"{level[:15]}~{hashlib.sha256(level.encode()).hexdigest()[:16]}"


def test_an_archive_of_an_earlier_release_is_read_with_the_columns_and_levels_of_this_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    old_archive(tmp_path)
    files = ArchiveFiles(tmp_path)
    for state in range(3):
        found = messages(spark, None, tmp_path)
        assert sorted({row.first_level for row in found.collect()}) == ["", "küche", "plant"]
        assert found.where("user_properties is null and properties['k'] = 'v'").count() == 18
        plain = spark.read.parquet(str(tmp_path / "messages"))
        assert plain.count() == 18
        if state == 0:
            assert convert(files) == 6
            assert files.last_batch() == 4
            assert convert(files) == 0
        else:
            assert compact(files, keep_s=0) == (Compacted(6, 3, 6) if state == 1 else Compacted(0, 0, 0))


def old_archive(directory: Path) -> None:
    """As releases before the Delta table left one: files, and a list of those that count."""
    old = rows("plant", range(3)).drop_columns(["user_properties", "expiry_time"])
    listed = []
    for level in ("plant", "küche", _HIVE):
        place = directory / "messages" / f"date={DAY}" / f"first_level={level}"
        place.mkdir(parents=True)
        for number in range(2):
            path = place / f"part-{number}.parquet"
            pq.write_table(old, path)
            listed.append(Listed(path.absolute().as_uri(), path.stat().st_size, 0, number + 3))
    FileList(directory / "messages").replace(listed)
    (directory / "checkpoint" / "offsets").mkdir(parents=True)
    (directory / "checkpoint" / "offsets" / "4").write_text('v1\n{}\n{"n": 5}')


def test_what_an_earlier_release_adds_to_an_archive_that_was_taken_over_is_not_lost_silently(tmp_path: Path) -> None:
    old_archive(tmp_path)
    files = ArchiveFiles(tmp_path)
    convert(files)
    listed = FileList(tmp_path / "messages")
    late = tmp_path / "messages" / f"date={DAY}" / "first_level=plant" / "late.parquet"
    listed.replace([*listed.load(), Listed(late.absolute().as_uri(), 1, 0, 5)])
    with pytest.raises(PipelineError, match="an earlier release has written to"):
        compact(files)
    assert listed.load()[-1].file == late


def test_an_archive_without_its_checkpoint_does_not_begin_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Its batches would have the numbers of others, and be passed over."""
    keep(ArchiveFiles(tmp_path), 0, range(5))
    with pytest.raises(PipelineError, match="holds messages up to batch 0, but its checkpoint knows of 0 batches"):
        start_archive(spark, Archive(tmp_path), {"nodes": "127.0.0.1:1"}, available_now=True)


def test_a_question_about_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="holds no messages"):
        query(spark, "select 1", None, tmp_path / "nowhere")


def sterna(*words: str, master: str = "local[2]") -> list[str]:
    return [sys.executable, "-m", "sterna", "pipeline", *words, "--master", master]


LATE = """import os, sys, time
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv and not os.path.exists({file!r}):
    open({file!r}, "w").close()
    time.sleep(12)
"""
"""What Python runs at its start: the first process of a source takes longer than Spark waits for it."""


@pytest.mark.slow
def test_the_commands_archive_and_answer(start_feeding: StartFeeding, tmp_path: Path) -> None:
    node = start_feeding()
    node.publish("plant/a", range(10))
    kept = str(tmp_path / "archive")
    (tmp_path / "sitecustomize.py").write_text(LATE.format(file=str(tmp_path / "late")))
    busy = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    words = sterna("archive", kept, "--nodes", node.feed, "--available-now")
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * SOON_S, env=busy)
    assert done.returncode == 0, done.stderr
    assert "Spark gave up waiting for a process it had started" in done.stderr
    assert "10 messages" in done.stderr
    node.publish("plant/a", ["a, b"])
    asked = sterna(
        "query", "select topic, payload from messages order by offset", "--nodes", node.feed, "--archive", kept
    )
    found = subprocess.run([*asked, "--output", "csv"], capture_output=True, text=True, timeout=SOON_S)
    assert found.returncode == 0, found.stderr
    rows = list(csv.reader(io.StringIO(found.stdout)))
    assert rows == [["topic", "payload"], *(["plant/a", str(number)] for number in range(10)), ["plant/a", "a, b"]]


@pytest.mark.slow
def test_a_question_that_is_none_is_answered_in_one_line(start_feeding: StartFeeding) -> None:
    asked = sterna("query", "select colour from messages", "--nodes", start_feeding().feed)
    failed = subprocess.run(asked, capture_output=True, text=True, timeout=SOON_S)
    assert failed.returncode == 1
    log, line = failed.stderr.splitlines()
    assert log.startswith("starting Spark")
    assert line.startswith("Spark: A column, variable, or function parameter with name `colour` cannot be resolved.")


def test_what_the_job_keeps_is_in_a_directory_and_that_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("archive", "s3://bucket/kept"), ("archive", "s3://bucket/kept", "--state", "s3://bucket/job")):
        failed = subprocess.run(
            sterna(*words, "--nodes", "127.0.0.1:1"), capture_output=True, text=True, timeout=SOON_S, cwd=tmp_path
        )
        assert failed.returncode == 1
        (line,) = failed.stderr.splitlines()
        assert "is an address" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "hdfs://name/kept", "--state", "job", "--nodes", "127.0.0.1:1"),
        ("query", "select 1", "--archive", "hdfs://name/kept"),
        ("evaluate", "$SUM/t", "--archive", "hdfs://name/kept", "--from", "2026-01-31"),
        ("audit", "--nodes", "127.0.0.1:1", "--archive", "hdfs://name/kept"),
        ("compact", "hdfs://name/kept"),
        ("erase", "hdfs://name/kept", "--topics", "a"),
    ],
    ids=lambda words: str(words[0]),
)
def test_a_hadoop_file_system_is_refused_before_spark_is_started(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "spark_session", lambda *_: pytest.fail("Spark is started"))
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *words])
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 1
    assert "hdfs://name/kept is in a Hadoop file system: mount it (HDFS through its NFS gateway or FUSE)" in said


@pytest.mark.parametrize("place", ["s3://bucket/kept", "s3a://bucket/kept", "/hdfs/kept", "gs://bucket/kept"])
def test_other_places_are_not(place: str) -> None:
    check_place(place)


@pytest.mark.slow
def test_ctrl_c_ends_a_job_without_a_traceback(start_feeding: StartFeeding, tmp_path: Path) -> None:
    node = start_feeding("own", '[operators]\nengine = "spark"\n')
    words = sterna("operators", str(tmp_path / "job"), "--nodes", node.feed)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        said = []
        for line in job.stderr:
            said.append(line)
            if line.startswith("computing"):
                wait_until((tmp_path / "job" / "checkpoint" / "offsets" / "0").exists, "it computes", SOON_S)
                job.send_signal(signal.SIGINT)
    assert "ending; what is not finished is done at the next start\n" in said
    assert "Traceback" not in "".join(said)
    assert job.returncode == 0, said


@pytest.mark.slow
def test_an_archive_killed_at_any_moment_holds_each_acknowledged_message_once(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    """Driver and JVM die together; so does, in between, the node."""
    node, archive = start_feeding(), Archive(tmp_path / "archive")
    command = sterna("archive", str(archive.directory), "--nodes", node.feed, "--every", "0.1", "--at-most", "500")
    command += ["--merge-at", "2"]  # so that the end often comes in the middle of a compaction
    sent = 0

    def publish() -> None:
        nonlocal sent
        node.publish("plant/a", range(sent, sent + 200))
        sent += 200

    def has_batches(number: int) -> bool:
        return archive.last_batch() >= number

    for life in range(2):
        with Driver(command, tmp_path / "said") as driver:
            enough = archive.last_batch() + 2
            driver.wait_until(partial(has_batches, enough), "two more batches are done", SOON_S, publish)
            if life == 1:
                node.kill()
                node.restart()
    publish()
    run_archive(spark, archive, node)
    assert numbers(messages(spark, None, archive.directory)) == list(range(sent))
    assert any("/merged-" in one.path for one in archive.files.state().files)
