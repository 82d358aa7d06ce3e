"""The driver of a query on a cluster, a process of its own: so its CPU time is its own."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.processes import serve
from sterna.measure.workloads.pipeline.memory_watch import MemoryWatch
from sterna.measure.workloads.pipeline.queries import QUERY_S_MAX, run_to_its_end, stream
from sterna.pipeline.job_settings import SMALL_BATCHES
from sterna.pipeline.jobs.archive import Archive, start_archive
from sterna.pipeline.jobs.operators import OperatorsJob
from sterna.pipeline.offsets import without_cut
from sterna.pipeline.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.2
PACE_S, CATCHING_UP = 5.0, 1.3
"""A query that reads so many times what comes in, in so many seconds, is behind."""


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    master: str
    workers: list[int]
    """Their process ids: executors are their children."""
    feed: str
    kind: str
    rows: int
    """In the journal, or each second."""
    rows_per_batch: int
    warm_up_s: float = 0.0
    measure_s: float = 0.0


class ClusterFigures(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    seconds: float
    driver_cpu_s: float
    executors_cpu_s: float
    driver_mib: float
    executors_mib: float
    batches: int = 0
    """Where they were counted."""


class _Meter:
    """CPU time and memory of driver and executors while a block runs."""

    def __init__(self, workers: list[int]) -> None:
        self._workers = workers

    def _cpu_ns(self) -> tuple[int, int]:
        """Spark plans in processes that end with their query: what these took counts as well."""
        executors = sum(meter.spent_ns(pid) - meter.own_cpu_ns(pid) for pid in self._workers)
        return meter.spent_ns(os.getpid()), executors

    @contextmanager
    def measuring(self) -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        with MemoryWatch() as driver, MemoryWatch(*self._workers) as executors:
            begin, before = time.monotonic(), self._cpu_ns()
            yield found
            after = self._cpu_ns()
            found["seconds"] = time.monotonic() - begin
        watching = driver.own_ns + executors.own_ns
        found |= {
            "driver_cpu_s": (after[0] - before[0] - watching) / 1e9,
            "executors_cpu_s": (after[1] - before[1]) / 1e9,
            "driver_mib": driver.jvm_mib + driver.python_mib,
            "executors_mib": executors.jvm_mib + executors.python_mib,
        }


def _source(spark: SparkSession, job: ClusterJob, measured: _Meter) -> dict[str, float]:
    """Once to start the workers of all executors, and once that counts."""
    options = {"nodes": job.feed, "startingOffsets": "earliest", "tasks": len(job.workers)}
    options |= {"maxOffsetsPerTrigger": job.rows_per_batch}
    run_to_its_end(stream(spark, "sterna", options))
    with measured.measuring() as found:
        found["rows"] = sum(batch.rows for batch in run_to_its_end(stream(spark, "sterna", options)))
    return found


def _operators(spark: SparkSession, job: ClusterJob, measured: _Meter) -> dict[str, float]:
    """From the start of the query on: what starts is in it."""
    source = {"nodes": job.feed, "startingOffsets": "earliest", "tasks": str(len(job.workers))}
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        operators = OperatorsJob(Path(directory) / "job", source, lambda line: print(line, file=sys.stderr))
        try:
            with measured.measuring() as found:
                query = operators.start(spark)
                _wait_for(query, job.rows)
                found["rows"] = job.rows
        finally:
            operators.stop()
    return found


def _at_rate(spark: SparkSession, job: ClusterJob, measured: _Meter) -> dict[str, float]:
    """Messages that come in from now on, for so many seconds after so many others."""
    source = {"nodes": job.feed, "tasks": str(len(job.workers))}
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        operators = OperatorsJob(Path(directory) / "job", source, lambda line: print(line, file=sys.stderr))
        try:
            query = operators.start(spark)
            _wait_for(query, 1)
            _wait_for_pace(query, job.rows)
            time.sleep(job.warm_up_s)
            before, first = _after_a_batch(query), _last_batch(query)
            with measured.measuring() as found:
                time.sleep(job.measure_s)
                found["rows"] = _after_a_batch(query) - before
                found["batches"] = _last_batch(query) - first
            if not query.isActive:
                raise MeasurementError(f"the job has ended: {query.exception()}")
        finally:
            operators.stop()
    return found


def _archive(spark: SparkSession, job: ClusterJob, measured: _Meter) -> dict[str, float]:
    """From the start of the query on to its end, merging included."""
    source = {"nodes": job.feed, "tasks": str(len(job.workers)), "maxOffsetsPerTrigger": str(job.rows_per_batch)}
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
        kept = Archive(Path(directory) / "archive")
        with measured.measuring() as found:
            query = start_archive(spark, kept, source, available_now=True)
            if not query.awaitTermination(int(QUERY_S_MAX)):
                raise MeasurementError(f"the archive job did not end in {QUERY_S_MAX:g} s")
            kept.settle()
        facts = [one.facts for one in kept.files.state().files]
        found["rows"] = sum(one.rows for one in facts if one is not None)
    if found["rows"] != job.rows:
        raise MeasurementError(f"{found['rows']:,} of {job.rows:,} messages are in the archive")
    return found


def _wait_for(query: Any, rows: int) -> int:
    deadline = time.monotonic() + QUERY_S_MAX
    while True:
        read = _reached(query)
        if read >= rows:
            return read
        if time.monotonic() > deadline or not query.isActive:
            raise MeasurementError(f"{read:,} of {rows:,} messages were read: {query.exception()}")
        time.sleep(LOOK_S)


def _after_a_batch(query: Any) -> int:
    """How far the next batch to end has read: batches have seconds of messages, and are counted as a whole."""
    return _wait_for(query, _reached(query) + 1)


def _last_batch(query: Any) -> int:
    return int(query.lastProgress.batchId)


def _wait_for_pace(query: Any, rate: int) -> None:
    """Expressions get all that came in since they were subscribed to: that is read faster than messages come in."""
    deadline = time.monotonic() + QUERY_S_MAX
    before, begin = _after_a_batch(query), time.monotonic()
    while time.monotonic() < deadline and query.isActive:
        time.sleep(PACE_S)
        now, end = _after_a_batch(query), time.monotonic()
        if now - before <= CATCHING_UP * rate * (end - begin):
            return
        before, begin = now, end


def _reached(query: Any) -> int:
    last = query.lastProgress
    end = last.sources[0].endOffset if last is not None else None
    return sum(without_cut(msgspec.json.decode(end)["nodes"]).values()) if end else 0


class ClusterKind(NamedTuple):
    run: Callable[[SparkSession, ClusterJob, _Meter], dict[str, float]]
    settings: Mapping[str, str] = {}
    """As the command has them."""


KINDS = {
    "source": ClusterKind(_source),
    "operators": ClusterKind(_operators, SMALL_BATCHES),
    "operators-at-rate": ClusterKind(_at_rate, SMALL_BATCHES),
    "archive": ClusterKind(_archive),
}


def drive(job: ClusterJob) -> ClusterFigures:
    kind = KINDS[job.kind]
    spark = open_session(f"bench {job.kind}", job.master, {"spark.executor.memory": "600m", **kind.settings})
    found = kind.run(spark, job, _Meter(job.workers))
    spark.stop()
    return msgspec.convert(found, ClusterFigures, strict=False)


if __name__ == "__main__":
    sys.exit(serve(ClusterJob, drive))
