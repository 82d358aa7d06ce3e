"""A question to an archive of a million files: what its planning takes, with a log that is made up.

There are no messages: the log has entries like those of a real archive, and names files that do not exist.  So what is
measured is all that happens before the first file is opened.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec

from sterna.measure.figures import FigureRow
from sterna.measure.harness.processes import WorkerProcess, serve
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.pipeline.archive.delta_log import FileFacts, NewFile
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.pruning import FileChoice

BEGIN = date(2026, 1, 1)
DAYS, LEVELS = 365, 28
SECONDS_MAX, MIB_MAX = 30.0, 2048.0
PLAN_S_MAX = 900.0
AT_ONCE = 50_000
FILTER, DAY = "plant-07/+/state", BEGIN + timedelta(days=200)


class PlannedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    archive: str


class PlanFigures(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    mib: float
    """Of the process, at its most."""
    files: int
    """Those that are left."""


def made_up_files() -> Iterator[NewFile]:
    """Without end: as many for each day and first level."""
    number = 0
    while True:
        day, level = BEGIN + timedelta(days=number % DAYS), f"plant-{number // DAYS % LEVELS:02}"
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        facts = FileFacts(100, f"{level}/line-000/state", f"{level}/line-999/state", begin, begin + timedelta(hours=23))
        yield NewFile(f"date={day}/first_level={level}/batch-{number:032x}.zstd.parquet", 4096, day, level, facts)
        number += 1


def make_log(files: ArchiveFiles, count: int) -> None:
    files.log.create()
    made = made_up_files()
    for number, first in enumerate(range(0, count, AT_ONCE)):
        files.take_in(number, list(islice(made, min(AT_ONCE, count - first))))
    files.log.shorten()  # as a job does now and then


def planned(question: PlannedQuestion) -> PlanFigures:
    """In a process of its own, whose memory is its own."""
    begin = time.monotonic()
    noon = datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC)
    choice = FileChoice([FILTER], noon, noon + timedelta(hours=1))
    left = len(ArchiveFiles(question.archive).state(choice.of).files)
    seconds = time.monotonic() - begin
    return PlanFigures(seconds=seconds, mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, files=left)


def measure_archive_files(plan: PipelinePlan) -> FigureRow:
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        place = str(Path(directory) / "archive")
        make_log(ArchiveFiles(place), plan.archived_files)
        worker = WorkerProcess("sterna.measure.workloads.pipeline.made_archive", PlannedQuestion(archive=place))
        try:
            found = worker.result(PlanFigures, "the question", PLAN_S_MAX)
        finally:
            worker.stop()
    return judge_archive_files(plan.archived_files, found)


def judge_archive_files(count: int, found: PlanFigures) -> FigureRow:
    is_good = 0 < found.files < count and found.seconds <= SECONDS_MAX and found.mib <= MIB_MAX
    return FigureRow(
        name="archive-files",
        summary=f"from a question of one day and topic filter to the list of files that may answer it, of {count:,} in "
        "a made-up log (no file is there).",
        unit="s",
        figure=found.seconds,
        target=f"<= {SECONDS_MAX:g}, {MIB_MAX:,.0f} MiB",
        verdict=verdict(is_good),
        remarks=[f"{found.files:,} files are left; the process had {found.mib:,.0f} MiB at its most"],
    )


if __name__ == "__main__":
    sys.exit(serve(PlannedQuestion, planned))
