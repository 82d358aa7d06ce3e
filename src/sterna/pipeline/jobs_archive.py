"""The archive: every message of a network, once, as Parquet by day and first topic level.

A directory of an archive holds `messages` (the Parquet files and Spark's list of those that count), `checkpoint` (how
far it has read) and `reader` (its name at the nodes).  Killed at any moment and started again, it goes on where it was;
files of a batch that was not finished are not in the list and nobody reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.offsets import Offsets
from sterna.pipeline.table import spark_schema

_BY = "`date` date, `first_level` string"
_LIST_OF_FILES = "_spark_metadata"
_NUMBERED = re.compile(r"(\d+)(?:\.compact)?")


class Archive:
    """A directory, as the one who writes it and those who read it see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.messages = directory / "messages"
        self.checkpoint = directory / "checkpoint"

    def reader(self) -> str:
        """The archive's name at the nodes: made up once, and kept with it."""
        file = self.directory / "reader"
        if not file.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            whole = file.with_suffix(".new")
            whole.write_text(f"archive-{uuid4().hex}")
            whole.rename(file)
        return file.read_text()

    def last_batch(self) -> int:
        """The newest batch whose files count; -1 if there is none."""
        listed = self.messages / _LIST_OF_FILES
        numbers = [_NUMBERED.fullmatch(file.name) for file in listed.iterdir()] if listed.is_dir() else []
        return max((int(number[1]) for number in numbers if number), default=-1)

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
            if batch < 0:
                return None, {}
            found = spark.read.schema(f"{spark_schema()}, {_BY}").parquet(str(self.messages))
            if self.last_batch() == batch:
                return found, self.reached(batch)


def with_places(messages: DataFrame) -> DataFrame:
    """The table with the columns an archive is partitioned by."""
    return messages.withColumn("date", f.to_date("ingress_time")).withColumn(
        "first_level", f.split_part("topic", f.lit("/"), f.lit(1))
    )


def start_archive(
    spark: SparkSession, archive: Archive, source: Mapping[str, str], *, available_now: bool, every_s: float = 10.0
) -> StreamingQuery:
    """Begin or go on.  `source` are options of the source; `every_s` seconds pass between two batches, so that files
    are not too small."""
    options = {"startingOffsets": "earliest", "reader": archive.reader(), **source}
    messages = with_places(spark.readStream.format("sterna").options(**options).load())
    writer = (
        messages.writeStream.format("parquet")
        .option("path", str(archive.messages))
        .option("checkpointLocation", str(archive.checkpoint))
        .option("compression", "zstd")
        .partitionBy("date", "first_level")
        .queryName("archive")
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()
