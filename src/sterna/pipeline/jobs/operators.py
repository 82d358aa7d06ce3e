"""The operators job: one streaming query for every expression that nodes leave to Spark; results go back to the nodes.

Expressions with a data processing function are a second query (in `functions`, below the directory), which begins with
the first such expression: a slow function delays no other expression.

The directory holds `checkpoint` (how far it has read), `registry` (the expressions), `state` (open windows and other
state, see `part_merge`) and `reader` (its name at the nodes).  Tasks read and aggregate a batch.  The driver merges
the parts or puts the values in order, sends the results to their nodes, and writes the batch down.  Killed at any
moment and started again, the job continues where it was, and each result enters a node's journal once.

Parts are merged here and not by Spark's own aggregates: sums are integers of several hundred bits, so that an answer
is the node's to the last digit, and Spark's longest number has 126.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.function_tasks import to_text
from sterna.pipeline.expressions.matching import TICK
from sterna.pipeline.expressions.part_merge import PartBatch, PartMerge, PartMergeFiles
from sterna.pipeline.expressions.parts_source import NAME, PartsSource
from sterna.pipeline.expressions.registry import RegistryFiles
from sterna.pipeline.expressions.result_delivery import ResultDelivery, Tell
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.cursors import reader_name
from sterna.runtime.functions.settings import FunctionTable

LAST_WORDS_S = 5.0
FUNCTIONS = "functions"


class OperatorsJob:
    """`start` begins or goes on; `stop` leaves nothing behind that could be delivered."""

    def __init__(
        self, directory: Path, source: Mapping[str, str], tell: Tell, functions: FunctionTable | None = None
    ) -> None:
        """`functions`: without them there is the bundled one."""
        functions = FunctionTable() if functions is None else functions
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise PipelineError(f"another job computes in {directory}") from None
        self._served = _Served(directory, source, tell, None, self._look_for_functions)
        # One task, with as many processes as there are workers; the other cores are for those who compute nothing.
        apart = {**source, "tasks": "1", "failOnDataLoss": "false", "gaps": str(directory / FUNCTIONS / "gaps")}
        self._computed = _Served(directory / FUNCTIONS, apart, tell, functions, lambda: None)
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
    """One query, its merged state, and the delivery of its results."""

    def __init__(
        self,
        directory: Path,
        source: Mapping[str, str],
        tell: Tell,
        functions: FunctionTable | None,
        changed: Callable[[], None],
    ) -> None:
        """`functions`: for expressions with one, and no others; `changed`: there are other expressions."""
        self._directory = directory
        self._source = {"startingOffsets": "latest", "reader": reader_name(directory, "operators"), **source}
        self._tell = tell
        self._functions = functions
        self._changed = changed
        self._registries = RegistryFiles(str(directory / "registry"))
        self._files = PartMergeFiles(directory / "state", self._registries.load)
        self._merge = PartMerge(tell, computed=functions is not None)
        self._delivery = ResultDelivery(ReadOptions.parse(self._source, streaming=True), tell)
        self._query: StreamingQuery | None = None

    @property
    def is_running(self) -> bool:
        return self._query is not None

    @property
    def has_begun(self) -> bool:
        """Before this job was started: nodes keep messages for it, and some may be owed results."""
        return (self._directory / "checkpoint").exists()

    @property
    def has_functions(self) -> bool:
        return any(entry.expression.function for entry in self._merge.registry.entries)

    def start(self, spark: SparkSession, away_s: float) -> StreamingQuery:
        self._delivery.add(self._files.load(self._merge))
        options = {**self._source, "registry": str(self._directory / "registry"), "awaySeconds": str(away_s)}
        if self._functions is not None:
            options[FUNCTIONS] = to_text(self._functions)
        parts = spark.readStream.format(NAME).options(**options).load()
        self._query = (
            parts.writeStream.foreachBatch(self._taker())
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .queryName("operators" if self._functions is None else "operators with functions")
            .trigger(processingTime="0 seconds")
            .start()
        )
        return self._query

    def _taker(self) -> Callable[[DataFrame, int], None]:
        def take(parts: DataFrame, number: int) -> None:
            if number > self._files.last_batch:  # else Spark ended before it had noted that this one was done
                self._take(_batch(parts, number))

        return take

    def _take(self, batch: PartBatch) -> None:
        edition, expressions = self._merge.registry.edition, len(self._merge)
        # A function that timed out, or drew lots, may say something else the next time.
        repeats = self._functions is None
        results = self._files.take(self._merge, batch, self._delivery.add, repeats=repeats)
        if results or len(self._merge) != expressions:
            self._tell(f"batch {batch.number}: {len(results):,} results, {len(self._merge):,} expressions")
        if self._merge.registry.edition != edition:
            self._changed()
        self._delivery.make_room()
        if self._files.is_snapshot_due:
            self._files.snapshot(self._merge, self._delivery.owed())
            self._registries.forget_before(edition)  # which the batch began with, and may begin with again

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        if not self._delivery.wait_empty(LAST_WORDS_S):
            self._tell("some results could not be handed in; they are at the next start")
        self._files.close()


def _batch(parts: DataFrame, number: int) -> PartBatch:
    table = parts.toArrow()
    rows = list(zip(*(table.column(name).to_pylist() for name in ("number", "end_us", "part")), strict=True))
    ((_, time_us, edition),) = (row for row in rows if row[0] == TICK)
    return PartBatch(number, int.from_bytes(edition, "big"), time_us, [row for row in rows if row[0] != TICK])
