"""Many runs at a time: on Spark, a task each, or in processes of this machine where Spark is not installed.

With a directory for records, each run leaves a file there when it ends, and a run that has one is not done again: a
sweep that was broken off goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import partial
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sterna import __version__
from sterna.measure.harness.comparison import Say
from sterna.simulation.papers.radio_run import CONFIGURATIONS, RunFigures, RunPlan, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "sterna-mobile"
_COST = {"aodv": 5}
"""Of a run, beside those of other protocols: the longest begin first."""


class MobileSample(msgspec.Struct, frozen=True, kw_only=True):
    figures: RunFigures
    cpu_s: float


def measured(plan: RunPlan, records: Path | None) -> MobileSample:
    file = None if records is None else records / f"{_key(plan)}.json"
    if file is not None and file.exists():
        return msgspec.json.decode(file.read_bytes(), type=MobileSample)
    begun = time.process_time()
    figures = run(plan)
    sample = MobileSample(figures=figures, cpu_s=time.process_time() - begun)
    if file is not None:
        whole = file.with_suffix(f".{os.getpid()}")
        whole.write_bytes(msgspec.json.encode(sample))
        whole.replace(file)
    return sample


def _key(plan: RunPlan) -> str:
    told = msgspec.json.encode((__version__, plan))
    return f"{plan.protocol}-{plan.configuration}-{plan.seed}-{blake2b(told, digest_size=6).hexdigest()}"


def longest_first(plans: Sequence[RunPlan]) -> list[RunPlan]:
    return sorted(
        plans, key=lambda plan: -_COST.get(plan.protocol, 1) * CONFIGURATIONS[plan.configuration].stations ** 2
    )


def on_spark(
    plans: Sequence[RunPlan],
    spark: Callable[[], AbstractContextManager[SparkSession]],
    records: Path | None,
    say: Say,
) -> list[MobileSample]:
    """One task per run; plans and figures travel as JSON, so that workers need nothing but Sterna."""
    encoded = [msgspec.json.encode(plan) for plan in longest_first(plans)]
    with spark() as session, ThreadPoolExecutor(1) as waiting:
        context = session.sparkContext

        def collect() -> list[bytes]:
            context.setJobGroup(GROUP, "runs of the experiment")
            return context.parallelize(encoded, len(encoded)).map(partial(measured_encoded, records)).collect()

        result = waiting.submit(collect)
        _tell_progress(result, lambda: _tasks_done(session), len(encoded), say)
        return [msgspec.json.decode(one, type=MobileSample) for one in result.result()]


def measured_encoded(records: Path | None, plan: bytes) -> bytes:
    """On a worker."""
    return msgspec.json.encode(measured(msgspec.json.decode(plan, type=RunPlan), records))


def _tasks_done(session: SparkSession) -> int:
    tracker = session.sparkContext.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(GROUP):
        told = tracker.getJobInfo(job)
        for stage in told.stageIds if told is not None else ():
            info = tracker.getStageInfo(stage)
            done += info.numCompletedTasks if info is not None else 0
    return done


def _tell_progress(result: Future[list[bytes]], done: Callable[[], int], total: int, say: Say) -> None:
    last = -1
    while not result.done():
        time.sleep(0.2)
        now = done()
        if now >= last + max(1, total // 20):
            last = now
            say(f"[{now}/{total}] runs")


def in_processes(plans: Sequence[RunPlan], records: Path | None, say: Say) -> list[MobileSample]:
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        due = [pool.submit(measured, plan, records) for plan in longest_first(plans)]
        found = []
        for one in as_completed(due):
            found.append(one.result())
            if len(found) % max(1, len(due) // 20) == 0:
                say(f"[{len(found)}/{len(due)}] runs")
        return found
