"""An archive in an object store: the same promises, and readers that know nothing of Sterna."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sterna.pipeline.archive import delta_log
from sterna.pipeline.archive.compaction import Compacted, compact
from sterna.pipeline.archive.erasure import Erased, ErasureScope, erase
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive, start_archive
from sterna.pipeline.jobs.query import messages

from .archives import DAY, LEVELS, keep, rows, written
from .feeding import FeedingNode, finished, numbers
from .object_store import BUCKET, ObjectStore
from .page import FEED, snippets

pytestmark = pytest.mark.timeout(600)
SOON_S = 180


@pytest.fixture(scope="module")
def store(store_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(store_port, tmp_path_factory.mktemp("store") / "log") as store:
        yield store


@pytest.fixture
def place(store: ObjectStore, topic: str) -> str:
    return f"s3://{BUCKET}/{topic}"


def payloads(files: ArchiveFiles) -> list[int]:
    """As a reader of Delta tables has them, at one level."""
    found = DeltaTable(files.storage.address).to_pyarrow_table(filters=[("first_level", "=", "plant")])
    return sorted(int(one) for one in found.column("payload").to_pylist())


def on_store(files: ArchiveFiles) -> set[str]:
    return {path for path, _ in files.storage.list("") if path.endswith(".parquet") and not path.startswith("_")}


def test_an_archive_in_an_object_store_is_filled_merged_erased_and_swept(place: str) -> None:
    files = ArchiveFiles(place)
    for batch in range(3):
        keep(files, batch, range(batch * 5, batch * 5 + 5), json.dumps({"n": batch}).encode())
    keep(ArchiveFiles(place), 2, range(10, 15))
    assert payloads(files) == list(range(15))
    assert files.reached(2) == b'{"n": 2}'
    assert compact(files) == Compacted(6, 2, 0)
    assert payloads(files) == list(range(15))
    assert compact(files, keep_s=0.0) == Compacted(0, 0, 6)
    assert erase(files, ErasureScope("office/#")) == Erased(15, 1)
    assert payloads(files) == list(range(15))
    counted = {one.path for one in files.state().files}
    left = on_store(files) - counted
    assert len(counted) == 1
    assert len(left) == len(LEVELS), "those of the batch that was made twice: nobody knows them for a day"


def test_many_writers_at_a_time_lose_nothing_and_do_nothing_twice(place: str) -> None:
    """One keeps batches, another repeats each of them, two merge; each as a process of its own would."""
    ArchiveFiles(place).log.create()

    def batches(_number: int) -> None:
        files = ArchiveFiles(place)
        for batch in range(12):
            made = written(files, rows("plant", range(batch * 5, batch * 5 + 5)).to_batches())
            files.take_in(batch, made)

    is_over = threading.Event()

    def merges(_number: int) -> int:
        merged = 0
        while not is_over.is_set():
            merged += compact(ArchiveFiles(place)).merged
        return merged + compact(ArchiveFiles(place)).merged

    with ThreadPoolExecutor(4) as pool:
        kept = [pool.submit(batches, number) for number in range(2)]
        merged = [pool.submit(merges, number) for number in range(2)]
        try:
            for one in kept:
                one.result()
        finally:
            is_over.set()
        assert sum(one.result() for one in merged) > 0
    files = ArchiveFiles(place)
    assert files.last_batch() == 11
    assert payloads(files) == list(range(60))


@pytest.mark.parametrize("waited_s", [0.0, 3600.0])
def test_a_batch_that_another_process_kept_meanwhile_is_not_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited_s: float
) -> None:
    ours, theirs = ArchiveFiles(tmp_path), ArchiveFiles(tmp_path)
    ours.log.create()
    assert not ours.knows(0)
    keep(theirs, 0, range(5))
    ours.state()  # as the housekeeping beside the batches reads it
    monkeypatch.setattr(delta_log, "_STALE_S", delta_log._STALE_S - waited_s)
    ours.take_in(0, written(ours, rows("plant", range(5)).to_batches()))
    keep(ours, 1, range(5, 10))
    assert payloads(ours) == list(range(10))


def test_only_the_job_that_began_an_archive_goes_on_with_it(place: str, tmp_path: Path) -> None:
    Archive(place, tmp_path / "job").open()
    Archive(place, tmp_path / "job").open()
    with pytest.raises(PipelineError, match="is the archive of the job archive-"):
        Archive(place, tmp_path / "other").open()
    with pytest.raises(PipelineError, match="name a directory for what the job keeps"):
        Archive(place).open()


def test_a_store_that_puts_one_file_in_the_place_of_another_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(place, tmp_path / "job")
    storage = archive.files.storage

    def put_anyway(path: str, data: bytes) -> bool:
        storage.put(path, data)
        return True

    monkeypatch.setattr(storage, "put_new", put_anyway)
    with pytest.raises(PipelineError, match="does not honour If-None-Match"):
        archive.open()


def test_the_log_stays_short_and_forgets_neither_files_nor_batches(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path)
    for batch in range(4):
        keep(files, batch, range(batch * 5, batch * 5 + 5))
    files.log.shorten()
    entries = tmp_path / "messages" / "_delta_log"
    for entry in entries.iterdir():
        os.utime(entry, (0, time.time() - 5 * 24 * 3600))
    keep(files, 4, range(20, 25))
    files.log.shorten()
    assert {entry.name[18:20] for entry in entries.glob("*.json")} == {"05"}
    again = ArchiveFiles(tmp_path)
    assert again.last_batch() == 4
    assert payloads(again) == list(range(25))
    assert all(one.facts is not None for one in again.state().files)
    keep(again, 4, range(20, 25))
    keep(again, 5, range(25, 30))
    assert payloads(again) == list(range(30))


def test_duckdb_reads_an_archive_without_sterna(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path)
    late = rows("küche", range(5), "küche/licht")
    for batch in range(2):
        keep(files, batch, range(batch * 5, batch * 5 + 5))
    files.take_in(2, written(files, late.to_batches()))
    compact(files)
    files.log.shorten()
    erase(files, ErasureScope("office/#"))
    extension = next(Path(duckdb_extension_delta.__path__[0]).rglob("delta.duckdb_extension"))
    with duckdb.connect() as connection:
        connection.execute(f"load '{extension}'")
        asked = f"from delta_scan('{files.storage.address}')"
        counted = connection.execute(f"select first_level, topic, count(*) {asked} group by all order by 1").fetchall()
        assert counted == [("küche", "küche/licht", 5), ("plant", "plant/a", 10)]
        one = f"select payload, properties['k'], date::text, epoch_us(ingress_time) {asked} where topic = 'plant/a'"
        assert connection.execute(f'{one} and "offset" = 7').fetchall() == [
            (b"7", "v", DAY, _instant_us(late)),
        ]


def _instant_us(table: Any) -> int:
    number: int = table.column("ingress_time")[0].cast(pa.int64()).as_py()
    return number


@pytest.mark.slow
def test_spark_fills_an_archive_in_an_object_store_and_asks_it_with_the_nodes(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode], place: str, tmp_path: Path
) -> None:
    node, archive = start_feeding(), Archive(place, tmp_path / "job")
    source = {"nodes": node.feed}
    for first in (0, 20):
        node.publish("plant/a", range(first, first + 10))
        node.publish("office/b", range(first + 10, first + 20))
        finished(lambda: start_archive(spark, archive, source, available_now=True, merge_at=2), SOON_S)
        archive.settle()
    node.publish("plant/a", range(40, 50))
    assert numbers(messages(spark, None, place)) == list(range(40))
    assert numbers(messages(spark, source, place)) == list(range(50))
    assert {one.path.partition("/merged-")[0][-5:] for one in archive.files.state().files} == {"plant", "ffice"}
    table = messages(spark, None, place)
    before = on_store(archive.files)
    (gone,) = [one.path for one in archive.files.state().files if one.level == "office"]
    archive.files.storage.delete([gone])
    plain = table.where("first_level = 'plant' and topic = 'plant/a' and date > '2020-01-01'")
    assert plain.count() == 20, "files of other levels are not opened"
    assert gone in before


@pytest.mark.slow
def test_the_commands_of_the_page_fill_an_archive(
    start_feeding: Callable[..., FeedingNode], store: ObjectStore, place: str, tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("plant/a", range(10))
    (lines,) = snippets("bash", "export AWS")
    lines = lines.replace("s3://bucket/plant-archive", place).replace(FEED, node.feed).rstrip()
    question = (
        f"sterna pipeline query 'SELECT topic, count(*) AS messages FROM messages GROUP BY topic' --archive {place}"
    )
    script = f'sterna() {{ {sys.executable} -m sterna "$@"; }}\n{lines} --available-now\n{question} --output csv\n'
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=SOON_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["topic,messages", "plant/a,10"]
