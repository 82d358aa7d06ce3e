"""A Python data source that does nothing: it hands Spark Arrow batches that lie ready in a file mapped into memory.

Nothing that yields these rows through Spark's Python data sources can be faster, so it is what `format("sterna")` is
measured against: the same rows in the same batches, dealt to as many tasks, over as many micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.table import spark_schema
from sterna.pipeline.worker_tuning import settle

#: For each micro-batch and each task of it the numbers of its Arrow batches in the file: [first, stop).
Dealt = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class ReadyMadeShare(InputPartition):
    first: int
    stop: int


class ReadyMade(DataSource):
    """Options: `file`, and `dealt` as the text of a `Dealt`."""

    @classmethod
    def name(cls) -> str:
        return "sterna-ready-made"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._file = options["file"]
        self._dealt = options["dealt"]

    def schema(self) -> str:
        return spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReadyMadeReader(self._file, json.loads(self._dealt))


class ReadyMadeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, file: str, dealt: Dealt) -> None:
        self._file = file
        self._dealt = dealt

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, len(self._dealt))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[ReadyMadeShare]:
        return [ReadyMadeShare(*share) for batch in self._dealt[start["batch"] : end["batch"]] for share in batch]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadyMadeShare)
        batches = _opened(self._file)
        for number in range(partition.first, partition.stop):
            yield batches.get_batch(number)
        settle()  # so that its tasks end as quickly as ours


#: Files this worker process has mapped.
_mapped: dict[str, Any] = {}


def _opened(file: str) -> Any:
    if file not in _mapped:
        _mapped[file] = pa.ipc.open_file(pa.memory_map(file))
    return _mapped[file]


def make_ready(file: Path, micro_batches: Iterable[Sequence[Iterator[Any]]]) -> Dealt:
    """Write the Arrow batches of each task of each micro-batch; says which are whose."""
    dealt: list[list[tuple[int, int]]] = []
    written = 0
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, TABLE_SCHEMA) as writer:
        for tasks in micro_batches:
            shares = []
            for task in tasks:
                first = written
                for batch in task:
                    writer.write_batch(batch)
                    written += 1
                shares.append((first, written))
            dealt.append(shares)
    return dealt
