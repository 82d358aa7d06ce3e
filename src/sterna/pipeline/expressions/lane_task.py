"""Takes a batch of parts in the tasks of a cluster: each lane of expressions is one task, with its state on the disk.

A task merges the parts of its lane, closes windows, puts values in order, hands the results in to their nodes, and
writes the batch down.  The driver learns how many there were, and nothing of any expression or message.  A worker keeps
a lane it has had, and goes on from there if it gets the lane again; else, or if others have had it, it reads what these
have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.lane_choice import ExpressionLane
from sterna.pipeline.expressions.lane_files import LaneFiles
from sterna.pipeline.expressions.matching import LATE, TICK, Row
from sterna.pipeline.expressions.part_merge import PartBatch, PartMerge
from sterna.pipeline.expressions.registry import RegistryFiles
from sterna.pipeline.expressions.result_delivery import OwedResults, ResultDelivery, Tell
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.worker_tuning import settle

JOBS_MAX = 4
"""Of which a worker keeps lanes; with one more it begins anew."""
LINES_MAX = 20
"""Of a lane and a batch."""
REPORTS: Any = pa.schema(
    [
        pa.field("results", pa.int64()),
        pa.field("expressions", pa.int64()),
        pa.field("owed", pa.int64()),
        pa.field("edition", pa.int64()),
        pa.field("functions", pa.bool_()),
        pa.field("late", pa.int64()),
        pa.field("lines", pa.list_(pa.string())),
    ]
)
SPARK_REPORTS = (
    "results long, expressions long, owed long, edition long, functions boolean, late long, lines array<string>"
)


class LaneJob(msgspec.Struct, frozen=True):
    """As it travels to the tasks."""

    directory: str
    """Of the lanes, as all machines see it."""
    registry: str
    lanes: int
    options: ReadOptions
    computed: bool
    """Of expressions with a data processing function, and no others."""
    run: str
    """Another one at every start: nothing is left over from the one before."""


class LaneReport(msgspec.Struct, frozen=True):
    results: int
    """Handed in or owed, of this batch."""
    expressions: int
    owed: int
    """Results that nodes have not taken yet."""
    edition: int
    """The oldest that is still needed."""
    functions: bool
    """Are there expressions with a data processing function, in any lane?"""
    lines: list[str]
    late: int = 0
    """Messages of the batch that came in before an instant up to which windows were closed; one lane tells."""


class HeldLane:
    """A lane as a worker has it."""

    def __init__(self, job: LaneJob, number: int, tell: Tell) -> None:
        self._job = job
        registries = RegistryFiles(job.registry)
        self.files = LaneFiles(Path(job.directory) / str(number), registries.load)
        self.merge = PartMerge(tell, computed=job.computed, lane=ExpressionLane(number, job.lanes))
        self.owed = OwedResults()
        self.files.load(self.merge, self.owed)

    def is_ready_for(self, batch: int) -> bool:
        """Others may have had the lane meanwhile; False if what they wrote is gone, and a snapshot stands for it."""
        try:
            self.files.catch_up(self.merge, self.owed)
        except PipelineError:
            return False
        return self.files.last_batch >= batch - 1

    def take(self, batch: PartBatch, delivery: ResultDelivery) -> int:
        """The number of results."""
        if self.files.last_batch > batch.number:
            raise PipelineError(
                f"{self._job.directory} knows of {self.files.last_batch + 1} batches, and this is batch {batch.number} "
                "again: put the right state beside the checkpoint, or start from nothing in another directory"
            )
        if self.files.last_batch == batch.number:  # Spark ended, or lost the task, before it had noted that it was done
            if self.owed:
                self.files.tell_again(batch, delivery.hand_in(self.owed))
            return 0
        before = self.merge.registry.edition

        def hand_in(results: Iterable[Any]) -> list[str]:
            self.owed.add(results)
            return delivery.hand_in(self.owed)

        # A function that timed out, or drew lots, may say something else the next time.
        results = self.files.take(self.merge, batch, hand_in, repeats=not self._job.computed)
        if self.files.is_snapshot_due:
            self.files.snapshot(self.merge, self.owed, before)
        return len(results)

    @property
    def has_functions(self) -> bool:
        return any(entry.expression.function for entry in self.merge.registry.entries)


class LaneWorker:
    """All that a process has for one run of a job."""

    def __init__(self, job: LaneJob) -> None:
        self._job = job
        self._lanes: dict[int, HeldLane] = {}
        self._lines: list[str] = []
        self._delivery = ResultDelivery(job.options, self._lines.append)

    def take(self, number: int, batch: PartBatch) -> LaneReport:
        lane = self._lanes.pop(number, None)
        if lane is None or not lane.is_ready_for(batch.number):
            if lane is not None:
                lane.files.close()
            self._lines.clear()
            lane = HeldLane(self._job, number, self._lines.append)
        with ExitStack() as failing:
            failing.callback(lane.files.close)
            made = lane.take(batch, self._delivery)
            failing.pop_all()
        self._lanes[number] = lane  # one that failed is begun anew
        lines, more = self._lines[:LINES_MAX], len(self._lines) - LINES_MAX
        self._lines.clear()
        return LaneReport(
            made,
            len(lane.merge),
            len(lane.owed),
            lane.files.edition,
            lane.has_functions,
            [*lines, f"{more} more lines"] if more > 0 else lines,
        )

    def close(self) -> None:
        self._delivery.close()
        for lane in self._lanes.values():
            lane.files.close()


_kept: dict[LaneJob, LaneWorker] = {}


def _worker_of(job: LaneJob) -> LaneWorker:
    if job not in _kept:
        if len(_kept) >= JOBS_MAX:
            leave()
        _kept[job] = LaneWorker(job)
    return _kept[job]


def leave() -> None:
    """This process keeps no lane any more."""
    while _kept:
        _kept.popitem()[1].close()


def take_lanes(job: LaneJob, number: int, batches: Iterable[Any]) -> Iterator[Any]:
    """In a task of Spark: rows (lane, entry, end of the window, part) of whole lanes."""
    worker = _worker_of(job)
    rows: dict[int, list[Row]] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("lane", "number", "end_us", "part"))
        for lane, *row in zip(*columns, strict=True):
            rows.setdefault(lane, []).append((row[0], row[1], row[2]))
    for lane in sorted(rows):
        (tick,) = (row for row in rows[lane] if row[0] == TICK)
        edition, time_us = int.from_bytes(tick[2], "big"), tick[1]
        late = sum(row[1] for row in rows[lane] if row[0] == LATE)
        parts = [row for row in rows[lane] if row[0] not in (TICK, LATE)]
        report = msgspec.structs.replace(worker.take(lane, PartBatch(number, edition, time_us, parts)), late=late)
        yield pa.RecordBatch.from_pylist([msgspec.structs.asdict(report)], schema=REPORTS)
    settle()
