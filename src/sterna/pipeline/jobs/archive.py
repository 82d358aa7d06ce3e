"""The archive job: stores every message of a network once, as Parquet by day and first topic level.

The directory of an archive holds `messages` (the Parquet files and the list of those that count), `checkpoint` (how
far it has read), `gaps` (messages that nodes had lost), `making` (unfinished files) and `reader` (its name at the
nodes).  Killed at any moment and started again, it continues where it was: a batch is in the list, or it is made
again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from sterna.pipeline.archive.compaction import TARGET_BYTES, FileMerge, Run, compact, merge, small_files
from sterna.pipeline.archive.file_list import last_batch
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.topic_levels import directory_of, first_level, level_of
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.offsets import Offsets
from sterna.pipeline.source.cursors import reader_name
from sterna.pipeline.table import spark_schema

MERGE_AT = 100
"""So many small files of a day and a first level are merged while the archive runs."""

_BY = ("date", "first_level")
_NUMBER = re.compile(r"\d+")


class Archive:
    """A directory, as the one who writes it and those who read it see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = ArchiveFiles(directory)
        self.messages = self.files.messages
        self.checkpoint = directory / "checkpoint"
        self.gaps = directory / "gaps"

    def reader(self) -> str:
        """The archive's name at the nodes: made up once, and kept with it."""
        return reader_name(self.directory, "archive")

    def last_batch(self) -> int:
        """The newest batch that is in the archive, be it an empty one; -1 if there is none."""
        return max(last_batch(self.files.list.load()), self._newest("commits"))

    def _newest(self, kind: str) -> int:
        notes = self.checkpoint / kind
        names = [note.name for note in notes.iterdir()] if notes.is_dir() else []
        return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=-1)

    def check_checkpoint(self) -> None:
        """A new checkpoint counts batches from 0: they would be taken for batches that are here already."""
        here, known = last_batch(self.files.list.load()), self._newest("offsets")
        if here > known:
            raise PipelineError(
                f"{self.directory} holds messages up to batch {here}, but its checkpoint knows of {known + 1} batches "
                "only: put the right checkpoint back, or begin another archive"
            )

    def reached(self, batch: int) -> Offsets:
        """Where the batch ended."""
        try:
            text = (self.checkpoint / "offsets" / str(batch)).read_text()
            reached: Offsets = json.loads(text.splitlines()[2])
        except (OSError, ValueError, IndexError) as error:
            raise PipelineError(f"{self.checkpoint} does not say how far batch {batch} goes: {error}") from None
        return reached

    def table(self, spark: SparkSession) -> tuple[DataFrame | None, Offsets]:
        """The messages in the archive and how far they go, even while it grows."""
        while True:
            batch = self.last_batch()
            if batch < 0 or not self.files.list.path.exists():
                return None, {} if batch < 0 else self.reached(batch)
            schema = f"{spark_schema()}, `date` date, `first_level` string"
            found = spark.read.schema(schema).parquet(str(self.messages))
            found = found.withColumn("first_level", level_of(f.col("first_level")))
            if self.last_batch() == batch:
                return found, self.reached(batch)


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
    are not too small; small files of a directory are merged when there are `merge_at` of them (0: never)."""
    archive.check_checkpoint()
    options = {"startingOffsets": "earliest", "reader": archive.reader(), "gaps": str(archive.gaps), **source}
    messages = with_places(spark.readStream.format("sterna").options(**options).load())
    writer = (
        messages.writeStream.foreachBatch(_keeper(archive.files, merge_at, target_bytes))
        .option("checkpointLocation", str(archive.checkpoint))
        .queryName("archive")
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def _keeper(files: ArchiveFiles, merge_at: int, target_bytes: int) -> Callable[[DataFrame, int], None]:
    """The fate of a batch."""

    def keep(messages: DataFrame, batch: int) -> None:
        if batch <= last_batch(files.list.load()):
            return  # Spark ended before it had noted that this one was done
        with files.workshop() as place:
            made = place / "batch"
            placed = messages.withColumn("first_level", directory_of(f.col("first_level")))
            placed.write.option("compression", "zstd").partitionBy(*_BY).parquet(str(made))
            files.take_in(batch, made)
        if merge_at and small_files(files.list.load(), target_bytes, merge_at):
            compact(files, target_bytes, merge_at, run=_in_tasks(messages.sparkSession))

    return keep


def _in_tasks(spark: SparkSession) -> Run:
    def run(merges: Sequence[FileMerge]) -> Sequence[object]:
        return spark.sparkContext.parallelize(merges, max(1, len(merges))).map(merge).collect()

    return run
