"""The operators job: one streaming query for every expression that nodes leave to Spark; results go back to the nodes.

Expressions with a data processing function are a second query (in `functions`, below the directory), which begins with
the first such expression: a slow function delays no other expression.

The directory holds `checkpoint` (how far it has read), `registry` (the expressions), `lanes` (open windows and other
state, see `lane_task`) and `reader` (its name at the nodes).  Tasks read and aggregate a batch.  A shuffle brings parts
and values to the task that has the expression's lane; this merges them, sends the results to their nodes, and writes
the batch down.  Killed at any moment and started again, the job continues where it was, and each result enters a node's
journal once.

The state is ours and not in Spark's state store: sums are integers of several hundred bits, so that an answer is the
node's to the last digit, and Spark's longest number has 126; its stateful operators for Python take longer for a batch
than a window's result may.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from sterna.pipeline.cluster_size import core_count
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.function_tasks import to_text
from sterna.pipeline.expressions.lane_layout import lanes_in
from sterna.pipeline.expressions.lane_task import SPARK_REPORTS, LaneJob, LaneReport, take_lanes
from sterna.pipeline.expressions.parts_source import NAME, PartsSource
from sterna.pipeline.expressions.registry import RegistryFiles
from sterna.pipeline.expressions.result_delivery import Tell
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.cursors import reader_name
from sterna.runtime.functions.settings import FunctionTable

FUNCTIONS = "functions"


class OperatorsJob:
    """`start` begins or goes on; `stop` leaves nothing behind that could be delivered."""

    def __init__(
        self,
        directory: Path,
        source: Mapping[str, str],
        tell: Tell,
        functions: FunctionTable | None = None,
        lanes: int | None = None,
    ) -> None:
        """`functions`: without them there is the bundled one; `lanes`: if the directory is new, by default one for each
        core."""
        functions = FunctionTable() if functions is None else functions
        directory = directory.absolute()  # tasks may run elsewhere
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise PipelineError(f"another job computes in {directory}") from None
        self._served = _Served(directory, source, tell, None, self._look_for_functions, lanes)
        # One task, with as many processes as there are workers; the other cores are for those who compute nothing.
        apart = {**source, "tasks": "1", "failOnDataLoss": "false", "gaps": str(directory / FUNCTIONS / "gaps")}
        # A function is called once for all that want it, so there is one lane of these.
        self._computed = _Served(directory / FUNCTIONS, apart, tell, functions, lambda: None, 1)
        self._begin: Callable[[_Served], StreamingQuery] | None = None

    def start(self, spark: SparkSession, away_s: float = 60.0) -> StreamingQuery:
        spark.dataSource.register(PartsSource)
        self._begin = lambda served: served.start(spark, away_s)
        query = self._begin(self._served)
        self._look_for_functions()
        return query

    def _look_for_functions(self) -> None:
        is_wanted = self._served.has_functions or self._computed.has_begun
        if is_wanted and not self._computed.is_running and self._begin is not None:
            self._begin(self._computed)

    def stop(self) -> None:
        self._begin = None
        # A batch that is broken off is told with all that led to it; it is done again at the next start.
        logging.getLogger("py4j.clientserver").disabled = True
        for served in (self._served, self._computed):
            served.stop()
        os.close(self._lock)


class _Served:
    """One query, and its lanes."""

    def __init__(
        self,
        directory: Path,
        source: Mapping[str, str],
        tell: Tell,
        functions: FunctionTable | None,
        changed: Callable[[], None],
        lanes: int | None,
    ) -> None:
        """`functions`: for expressions with one, and no others; `changed`: there are other expressions."""
        self._directory = directory
        self._source = {"startingOffsets": "latest", "reader": reader_name(directory, "operators"), **source}
        self._tell = tell
        self._functions = functions
        self._changed = changed
        self._lanes = lanes
        self._registry, self._owed = directory / "registry", directory / "owed"
        self._expressions = 0
        self.has_functions = False
        self._query: StreamingQuery | None = None

    @property
    def is_running(self) -> bool:
        return self._query is not None

    @property
    def has_begun(self) -> bool:
        """Before this job was started: nodes keep messages for it, and some may be owed results."""
        return (self._directory / "checkpoint").exists()

    def start(self, spark: SparkSession, away_s: float) -> StreamingQuery:
        registries = RegistryFiles(str(self._registry))
        self.has_functions = any(entry.expression.function for entry in registries.newest().entries)
        cores = self._source.get("tasks") or core_count(spark, self._tell)
        lanes = lanes_in(self._directory, self._lanes or int(cores), registries)
        run = uuid.uuid4().hex
        options = {
            **self._source,
            "registry": str(self._registry),
            "owed": str(self._owed),
            "awaySeconds": str(away_s),
            "lanes": str(lanes.among),
            "run": run,
        }
        if self._functions is not None:
            options[FUNCTIONS] = to_text(self._functions)
        read = ReadOptions.parse(self._source, streaming=True)
        computed = self._functions is not None
        job = LaneJob(str(lanes.directory), str(self._registry), lanes.among, read, computed, run)
        parts = spark.readStream.format(NAME).options(**options).load()
        self._query = (
            parts.writeStream.foreachBatch(partial(self._take, job))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .queryName("operators" if self._functions is None else "operators with functions")
            .trigger(processingTime="0 seconds")
            .start()
        )
        return self._query

    def _take(self, job: LaneJob, parts: DataFrame, number: int) -> None:
        by_lane = parts.repartitionById(job.lanes, f.col("lane"))
        told = by_lane.mapInArrow(partial(take_lanes, job, number), SPARK_REPORTS).toArrow().to_pylist()
        self._heed(number, [LaneReport(**report) for report in told])

    def _heed(self, number: int, reports: list[LaneReport]) -> None:
        for report in reports:
            for line in report.lines:
                self._tell(line)
        late = sum(one.late for one in reports)
        if late:
            self._tell(f"batch {number}: {late:,} messages came late; they count in windows that are open now")
        results, expressions = sum(one.results for one in reports), sum(one.expressions for one in reports)
        if results or expressions != self._expressions:
            self._tell(f"batch {number}: {results:,} results, {expressions:,} expressions")
        self._expressions = expressions
        if any(one.functions for one in reports) != self.has_functions:
            self.has_functions = not self.has_functions
            self._changed()
        if any(one.owed for one in reports):
            self._owed.touch()
        else:
            self._owed.unlink(missing_ok=True)
        RegistryFiles(str(self._registry)).forget_before(min(one.edition for one in reports))

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
