"""The archive job: stores every message of a network once, as Parquet by day and first topic level, in a Delta table.

An archive has `messages` (the files and their log); the job has a directory of its own with `checkpoint` (how far it
has read), `gaps` (messages that nodes had lost) and `reader` (its name at the nodes), which is the archive's unless
that lies in an object store.  Killed at any moment and started again, it continues where it was: a batch is in the
log, or it is made again.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from sterna.pipeline.archive.compaction import TARGET_BYTES, FileMerge, Run, merge, merge_small, small
from sterna.pipeline.archive.conversion import convert
from sterna.pipeline.archive.delta_log import KeptFile, NewFile
from sterna.pipeline.archive.file_list import FileList, listed_of
from sterna.pipeline.archive.file_list import last_batch as last_listed
from sterna.pipeline.archive.files import SWEEP_EVERY_S, ArchiveFiles
from sterna.pipeline.archive.parquet_files import write_sorted
from sterna.pipeline.archive.pruning import FileChoice
from sterna.pipeline.archive.storage import check_local, storage_at
from sterna.pipeline.archive.topic_levels import first_level, level_of
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.offsets import Offsets
from sterna.pipeline.source.cursors import reader_name
from sterna.pipeline.table import COLUMNS, spark_schema

MERGE_AT = 100
"""So many small files of a day and a first level are merged while the archive runs."""

WRITERS_MAX = 8
"""If more tasks than that write, each would make a small file in each directory: rows are dealt out by directory first,
and Spark cuts those that are too long for a task."""

SHORTEN_AFTER = 50
"""Changes after which the log is made quick to read."""

HOUSE_SHARE = 20
"""Each of what grows with the archive (the list for Spark, looking for small files, shortening the log) is done for one
part in so many of the time."""

_BY = ("date", "first_level")
_ORDER = (*_BY, "topic", "ingress_time")
_SCHEMA = f"{spark_schema()}, `date` date, `first_level` string"
_NUMBER = re.compile(r"\d+")

log = logging.getLogger(__name__)


class Archive:
    """As the one who writes it and those who read it see it."""

    def __init__(self, place: str | Path, state: Path | None = None) -> None:
        self.files = ArchiveFiles(place)
        self._state = state or self.files.directory
        if self._state is not None:
            check_local(self._state)
        self._housekeeping: ArchiveHousekeeping | None = None

    @property
    def messages(self) -> Path:
        return Path(self.files.messages)

    @property
    def directory(self) -> Path:
        """Of the job."""
        if self._state is None:
            raise PipelineError(f"{self.files.place} is an address: name a directory for what the job keeps (--state)")
        return self._state

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def gaps(self) -> Path:
        return self.directory / "gaps"

    def reader(self) -> str:
        """The archive's name at the nodes: made up once, and kept with it."""
        return reader_name(self.directory, "archive")

    def last_batch(self) -> int:
        """The newest batch that is in the archive, be it an empty one; -1 if there is none."""
        return self.files.last_batch()

    def _newest(self, kind: str) -> int:
        notes = self.checkpoint / kind
        names = [note.name for note in notes.iterdir()] if notes.is_dir() else []
        return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=-1)

    def open(self) -> int:
        """Make it, or take it over from an earlier release; how many files came from there."""
        taken = convert(self.files)
        self.check_checkpoint()
        self.files.log.create()
        self.files.log.add_columns()
        self.files.hold(self.reader())
        return taken

    def check_checkpoint(self) -> None:
        """A new checkpoint counts batches from 0: they would be taken for batches that are here already."""
        here, known = self.last_batch(), self._newest("offsets")
        if here > known:
            raise PipelineError(
                f"{self.files.place} holds messages up to batch {here}, but its checkpoint knows of {known + 1} "
                "batches only: put the right checkpoint back, or begin another archive"
            )

    def offsets(self, batch: int) -> Offsets:
        """Where the batch ends, as Spark has noted before it began."""
        try:
            text = (self.checkpoint / "offsets" / str(batch)).read_text()
            reached: Offsets = json.loads(text.splitlines()[2])
        except (OSError, ValueError, IndexError) as error:
            raise PipelineError(f"{self.checkpoint} does not say how far batch {batch} goes: {error}") from None
        return reached

    def table(
        self,
        spark: SparkSession,
        topics: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[DataFrame | None, Offsets]:
        """The messages in the archive and how far they go, even while it grows.  Files that can hold nothing of these
        topic filters and of this time are left out; others still have more than that."""
        if not self.files.exists():
            return self._table_of_earlier_release(spark)
        state = self.files.state(FileChoice(topics, since, until).of)
        if state.batch < 0:
            return None, {}
        reached: Offsets = json.loads(self.files.reached(state.batch) or b"{}")
        if self.files.directory is None:
            return self._table_of_address(spark, topics, since, until), reached
        return _read(spark, self.messages, state.files), reached

    def _table_of_address(
        self, spark: SparkSession, topics: Sequence[str], since: datetime | None, until: datetime | None
    ) -> DataFrame:
        asked = {
            "topics": json.dumps(list(topics)) if topics else "",
            "since": since and since.isoformat(),
            "until": until and until.isoformat(),
        }
        options = {name: value for name, value in asked.items() if value}
        return spark.read.format("sterna_archive").options(**options).load(self.files.place)

    def _table_of_earlier_release(self, spark: SparkSession) -> tuple[DataFrame | None, Offsets]:
        if self.files.directory is None or not FileList(self.messages).path.exists():
            return None, {}
        while True:
            batch = last_listed(FileList(self.messages).load())
            found = spark.read.schema(_SCHEMA).parquet(str(self.messages))
            if last_listed(FileList(self.messages).load()) == batch:
                return found.withColumn("first_level", level_of(f.col("first_level"))), self.offsets(batch)

    def settle(self) -> None:
        """Come back when nothing is at work in the background."""
        if self._housekeeping is not None:
            self._housekeeping.join()

    def keep_house(self, query: StreamingQuery, housekeeping: ArchiveHousekeeping) -> None:
        self._housekeeping = housekeeping
        housekeeping.begin(query)


def _read(spark: SparkSession, messages: Path, files: Sequence[KeptFile]) -> DataFrame:
    """These files and no others, as Spark reads the output of a stream: by a list, which it loads at once."""
    with tempfile.TemporaryDirectory(prefix="sterna-archive-") as place:
        FileList(Path(place)).replace(listed_of(messages, files))
        found = spark.read.schema(_SCHEMA).parquet(place)
    # Spark takes a directory above the archive that is called a=b for one more column.
    return found.select(*COLUMNS, *_BY).withColumn("first_level", level_of(f.col("first_level")))


def with_places(messages: DataFrame) -> DataFrame:
    """The table with the columns an archive is partitioned by."""
    return messages.withColumn("date", f.to_date("ingress_time")).withColumn("first_level", first_level("topic"))


def start_archive(
    spark: SparkSession,
    archive: Archive,
    source: Mapping[str, str],
    *,
    available_now: bool,
    every_s: float = 10.0,
    merge_at: int = MERGE_AT,
    target_bytes: int = TARGET_BYTES,
) -> StreamingQuery:
    """Begin or go on.  `source` are options of the source; `every_s` seconds pass between two batches, so that files
    are not too small; small files of a directory are merged, beside the batches, when there are `merge_at` of them (0:
    never)."""
    archive.open()
    options = {"startingOffsets": "earliest", "reader": archive.reader(), "gaps": str(archive.gaps), **source}
    messages = with_places(spark.readStream.format("sterna").options(**options).load())
    house = ArchiveHousekeeping(archive.files, merge_at, target_bytes, _in_tasks(spark), every_s)
    writer = (
        messages.writeStream.foreachBatch(_keeper(archive, house))
        .option("checkpointLocation", str(archive.checkpoint))
        .queryName("archive")
    )
    if available_now:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{every_s} seconds").start()
    archive.keep_house(query, house)
    return query


def _keeper(archive: Archive, house: ArchiveHousekeeping) -> Callable[[DataFrame, int], None]:
    """The fate of a batch: tasks write its files, and the driver writes their names into the log."""
    files = archive.files

    def keep(messages: DataFrame, batch: int) -> None:
        if files.knows(batch):
            return  # Spark ended before it had noted that this one was done
        if messages.sparkSession.sparkContext.defaultParallelism > WRITERS_MAX:
            messages = messages.hint("rebalance", *_BY)
        new = write_files(messages, files.storage.address)
        files.take_in(batch, new, json.dumps(archive.offsets(batch)).encode())
        house.tell(len(new))

    return keep


def write_files(messages: DataFrame, address: str) -> list[NewFile]:
    """Each task writes its rows, which have their places; the files count when the log names them."""
    made = messages.sortWithinPartitions(*_ORDER).mapInArrow(_in_files(address), "made binary").collect()
    return [pickle.loads(row.made) for row in made]


def _in_files(address: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        for made in write_sorted(storage_at(address), batches):
            yield pa.RecordBatch.from_pydict({"made": [pickle.dumps(made)]})

    return write


class _Turn:
    """Work whose length grows with the archive: it comes again after many times as long as it took."""

    def __init__(self) -> None:
        self._at = 0.0

    def has_come(self) -> bool:
        return time.monotonic() >= self._at

    @contextmanager
    def taken(self) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self._at = time.monotonic() + HOUSE_SHARE * (time.monotonic() - begin)


class ArchiveHousekeeping:
    """Beside the batches of one query: merges small files, keeps the log short and the list for Spark up to date."""

    def __init__(self, files: ArchiveFiles, merge_at: int, target_bytes: int, run: Run, every_s: float) -> None:
        self._files, self._merge_at, self._target_bytes = files, merge_at, target_bytes
        self._run, self._every_s = run, max(1, round(every_s))
        # Files that were there before are looked at once.
        self._new_files, self._changes = merge_at, 0
        self._published = self._shortened = 0
        self._publishing, self._merging, self._shortening = _Turn(), _Turn(), _Turn()
        self._sweep_at = 0.0
        self._thread = threading.Thread(target=self._work, name="archive housekeeping", daemon=True)
        self._query: StreamingQuery | None = None

    def begin(self, query: StreamingQuery) -> None:
        self._query = query
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def tell(self, new_files: int) -> None:
        self._new_files, self._changes = self._new_files + new_files, self._changes + 1

    def _work(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over()
            for work in (self._merge, self._publish, self._shorten, self._sweep):
                try:
                    work(is_over)
                except Exception as error:
                    # No message is lost by it, and it comes again.
                    (log.debug if self._is_over(0) else log.warning)("the archive is not tidied up: %s", error)

    def _merge(self, is_over: bool) -> None:
        if self._merge_at and self._new_files >= self._merge_at and (is_over or self._merging.has_come()):
            self._new_files = 0
            with self._merging.taken():
                state = self._files.state(small(self._target_bytes))
            merged, _ = merge_small(self._files, state, self._target_bytes, self._merge_at, self._run)
            if merged:
                self._published = -1

    def _publish(self, is_over: bool) -> None:
        changes = self._changes
        if is_over or (changes > self._published and self._publishing.has_come()):
            with self._publishing.taken():
                self._files.publish()
            self._published = changes

    def _shorten(self, is_over: bool) -> None:
        changes = self._changes
        if changes - self._shortened >= SHORTEN_AFTER and (is_over or self._shortening.has_come()):
            with self._shortening.taken():
                self._files.log.shorten()
            self._shortened = changes

    def _sweep(self, _is_over: bool) -> None:
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_EVERY_S
            self._files.sweep_in_time()

    def _is_over(self, within_s: int | None = None) -> bool:
        assert self._query is not None
        try:
            return bool(self._query.awaitTermination(self._every_s if within_s is None else within_s))
        except PySparkException:
            return True


def _in_tasks(spark: SparkSession) -> Run:
    """Half of the cluster at a time, so that batches are never kept waiting."""

    def run(merges: Sequence[FileMerge]) -> Iterator[NewFile | None]:
        at_once = max(1, spark.sparkContext.defaultParallelism // 2)
        for start in range(0, len(merges), at_once):
            some = merges[start : start + at_once]
            yield from spark.sparkContext.parallelize(some, len(some)).map(merge).collect()

    return run
