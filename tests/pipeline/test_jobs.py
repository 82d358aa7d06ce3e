"""The jobs: an archive holds each message once, and questions see archive and nodes as one table."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sterna.pipeline.archive_files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs_archive import Archive, start_archive
from sterna.pipeline.jobs_query import messages, query

from .archives import keep
from .driving import Driver
from .feeding import FeedingNode, finished, numbers

SOON_S = 180
"""Spark starts, perhaps twice, on a busy machine."""
pytestmark = pytest.mark.timeout(4 * SOON_S)
StartFeeding = Callable[..., FeedingNode]


def run_archive(spark: SparkSession, archive: Archive, node: FeedingNode, **options: str) -> None:
    finished(lambda: start_archive(spark, archive, {"nodes": node.feed, **options}, available_now=True), SOON_S)


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

    for life in range(2):
        with Driver(command, tmp_path / "said") as driver:
            enough = archive.last_batch() + 2
            driver.wait_until(
                lambda enough=enough: archive.last_batch() >= enough, "two more batches are done", SOON_S, publish
            )
            if life == 1:
                node.kill()
                node.restart()
    publish()
    run_archive(spark, archive, node)
    assert numbers(messages(spark, None, archive.directory)) == list(range(sent))
    assert any(one.file.name.startswith("merged-") for one in archive.files.list.load())
