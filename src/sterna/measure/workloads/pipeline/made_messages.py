"""An archive of made-up messages, and two questions to it: one of an hour and one of everything.

Spark makes the messages and the archive's own code writes them, a day in a task.  How many messages there are of a
filter and an hour is known, so both answers are checked.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.memory_watch import MemoryWatch
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.pruning import FileChoice
from sterna.pipeline.jobs.archive import with_places, write_files
from sterna.pipeline.jobs.query import query
from sterna.pipeline.table import spark_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LEVELS, LINES = 10, 100
FILTER, LEVEL = "plant-3/+/state", 3
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
SECONDS_MAX = 30.0
_COLUMNS = {
    "topic": f"concat('plant-', id % {LEVELS}, '/line-', id div {LEVELS} % {LINES}, '/state')",
    "payload": """cast(concat('{"celsius": ', hash(id) % 4000 / 100, ', "count": ', id, '}') as binary)""",
    "qos": "1",
    "retain": "false",
    "publisher": f"concat('plant-', id % {LEVELS})",
    "origin": "'a'",
    "epoch": "1",
    "sequence": "id",
    "offset": "id",
}


@dataclass(frozen=True, slots=True)
class MadeMessages:
    """As many each day, at equal distances."""

    count: int
    days: int

    @property
    def step_us(self) -> int:
        return self.days * DAY_US // self.count

    @property
    def noon(self) -> datetime:
        """Of the day in the middle."""
        return BEGIN + timedelta(days=self.days // 2, hours=12)

    def of_an_hour(self) -> int:
        """Of FILTER, in the hour from noon on."""
        noon_us = (self.noon - BEGIN) // timedelta(microseconds=1)
        first, stop = (-(-at_us // self.step_us) for at_us in (noon_us, noon_us + HOUR_US))
        return len(range(first + (LEVEL - first) % LEVELS, stop, LEVELS))


class QuestionCost(NamedTuple):
    seconds: float
    files: int
    """Those that may answer it."""


class ArchiveCost(NamedTuple):
    files: int
    of_an_hour: QuestionCost
    of_all: QuestionCost
    jvm_mib: float
    python_mib: float


def make_messages(spark: SparkSession, files: ArchiveFiles, made: MadeMessages) -> None:
    instant = f"timestamp_micros({int(BEGIN.timestamp())}000000 + id * {made.step_us})"
    told = {**_COLUMNS, "ingress_time": instant}
    columns = [f"cast({told.get(name, 'null')} as {kind}) as {name}" for name, kind in spark_types().items()]
    messages = spark.range(0, made.count, 1, made.days).selectExpr(*columns)
    files.log.create()
    files.take_in(0, write_files(with_places(messages), files.storage.address))


def asked(
    spark: SparkSession, files: ArchiveFiles, expected: int, topics: Sequence[str] = (), since: datetime | None = None
) -> QuestionCost:
    until = since and since + timedelta(microseconds=HOUR_US)
    left = len(files.state(FileChoice(topics, since, until).of).files)
    begin = time.monotonic()
    words = "select count(*) as messages, avg(get_json_object(cast(payload as string), '$.celsius')) from messages"
    (row,) = query(spark, words, None, files.place, topics, since, until).collect()
    seconds = time.monotonic() - begin
    if row["messages"] != expected:
        raise MeasurementError(f"the archive holds {expected:,} such messages, and the answer is {row['messages']:,}")
    return QuestionCost(seconds, left)


def measure_archive_messages(spark: SparkSession, plan: PipelinePlan) -> FigureRow:
    made = MadeMessages(plan.archived, plan.archived_days)
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        files = ArchiveFiles(Path(directory) / "archive")
        make_messages(spark, files, made)
        with MemoryWatch() as watch:
            of_an_hour = asked(spark, files, made.of_an_hour(), [FILTER], made.noon)
            of_all = asked(spark, files, made.count)
        cost = ArchiveCost(len(files.state().files), of_an_hour, of_all, watch.jvm_mib, watch.python_mib)
    return judge_archive_messages(made.count, cost)


def judge_archive_messages(count: int, cost: ArchiveCost) -> FigureRow:
    few, all_of_them = cost.of_an_hour, cost.of_all
    is_good = few.seconds <= SECONDS_MAX and 0 < few.files < cost.files
    return FigureRow(
        name="archive-messages",
        summary=f"from a question of one hour and topic filter to its answer, beside one of everything, in an archive "
        f"of {count:,} made-up messages.",
        unit="s",
        figure=few.seconds,
        beside=all_of_them.seconds,
        ratio=few.seconds / all_of_them.seconds,
        target=f"<= {SECONDS_MAX:g}",
        verdict=verdict(is_good),
        remarks=[
            f"{few.files:,} of {cost.files:,} files {'is' if few.files == 1 else 'are'} left; the question of "
            f"everything reads {count / all_of_them.seconds:,.0f} messages a second",
            f"resident memory at its most: Spark {cost.jvm_mib:,.0f} MiB, Python {cost.python_mib:,.0f} MiB",
        ],
    )
