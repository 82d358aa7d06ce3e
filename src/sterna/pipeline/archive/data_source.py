"""`format("sterna_archive")`: an archive wherever it is, in a folder or an object store, read by Python in tasks.

Of a folder Spark reads the files itself, which is faster (`Archive.table`); it has no way into an object store without
packages of its own.  Options `topics`, `since` and `until`, and conditions of the query, leave files unread by what the
log says of them; conditions are checked again by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from sterna.pipeline.archive.delta_log import TABLE, KeptFile
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.parquet_files import batches, opened
from sterna.pipeline.archive.pruning import FileChoice, came_from, came_until, may_be, may_begin, sifted
from sterna.pipeline.archive.storage import storage_at
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.options import topic_filters
from sterna.pipeline.source.pushed_filters import are_asked_for
from sterna.pipeline.table import spark_schema

TASK_BYTES = 64 * 1024 * 1024
"""Files of so many bytes are read by one task."""


class ArchiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sterna_archive"

    def schema(self) -> str:
        return f"{spark_schema()}, `date` date, `first_level` string"

    def reader(self, schema: StructType) -> DataSourceReader:
        place = self.options.get("path")
        if not place:
            raise PipelineError('name the archive: .load("s3://bucket/archive")')
        topics = topic_filters(self.options.get("topics", ""), "topics")
        since, until = (_instant(name, self.options.get(name)) for name in ("since", "until"))
        asked = ArchiveQuestion(place, topics, since, until)
        return FilteringArchiveReader(asked) if are_asked_for() else ArchiveReader(asked)


def _instant(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(f'{name}: "{text}" is no instant; write it as in 2026-01-31T12:00:00+00:00') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ArchiveQuestion:
    place: str
    topics: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    filters: Sequence[tuple[str, str, Any]] = field(default=())
    """(column, test, value), of day, level and topic."""

    def of(self, listed: Any) -> Any:
        """Entries of the log that may hold an answer."""
        kept = FileChoice(self.topics, self.since, self.until).of(listed)
        return sifted(kept, (_TESTS[column](kept, test, value) for column, test, value in self.filters))


@dataclass
class ArchivePart(InputPartition):
    files: list[tuple[str, date, str]]

    def __init__(self, files: list[tuple[str, date, str]]) -> None:
        super().__init__(None)
        self.files = files


class ArchiveReader(DataSourceReader):
    def __init__(self, asked: ArchiveQuestion) -> None:
        self._asked = asked

    def partitions(self) -> Sequence[InputPartition]:
        files = ArchiveFiles(self._asked.place)
        files.check_exists()
        return list(_parts(files.state(self._asked.of).files)) or [ArchivePart([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ArchivePart)
        storage = storage_at(ArchiveFiles(self._asked.place).messages)
        for path, day, level in partition.files:
            with opened(storage, path) as file:
                for batch in batches(file):
                    yield _with_places(batch, day, level)


class FilteringArchiveReader(ArchiveReader):
    """One that Spark tells of conditions; all of them stay with Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        found = [told for one in filters if (told := _told(one)) is not None]
        self._asked = replace(self._asked, filters=found)
        return filters


def _parts(files: Sequence[KeptFile]) -> Iterator[ArchivePart]:
    part: list[tuple[str, date, str]] = []
    size = 0
    for one in files:
        part.append((one.path, one.day, one.level))
        size += one.size
        if size >= TASK_BYTES:
            yield ArchivePart(part)
            part, size = [], 0
    if part:
        yield ArchivePart(part)


def _with_places(batch: Any, day: date, level: str) -> Any:
    rows = batch.num_rows
    places = [pa.repeat(pa.scalar(day, pa.date32()), rows), pa.repeat(pa.scalar(level, pa.string()), rows)]
    return pa.RecordBatch.from_arrays([*batch.columns, *places], schema=TABLE)


_NAMES: dict[type[Filter], str] = {
    EqualTo: "in", In: "in", StringStartsWith: "starts", GreaterThan: "from", GreaterThanOrEqual: "from",
    LessThan: "to", LessThanOrEqual: "to",
}  # fmt: skip


def _told(pushed: Any) -> tuple[str, str, Any] | None:
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    name = _NAMES.get(type(pushed))
    if name is None or len(path) != 1 or path[0] not in _TESTS:
        return None
    value = (pushed.value,) if isinstance(pushed, EqualTo) else pushed.value
    return path[0], name, tuple(value) if name == "in" else value


def _of_day(listed: Any, test: str, value: Any) -> Any:
    day = listed["partition.date"]
    if test == "in":
        return pc.is_in(day, pa.array(value, pa.date32()))
    return pc.greater_equal(day, pa.scalar(value)) if test == "from" else pc.less_equal(day, pa.scalar(value))


def _of_level(listed: Any, test: str, value: Any) -> Any:
    if test != "in":
        return _any(listed)
    return pc.is_in(pc.fill_null(listed["partition.first_level"], ""), pa.array(value, pa.string()))


def _of_topic(listed: Any, test: str, value: Any) -> Any:
    if test == "starts":
        return may_begin(listed, value)
    topics = [one for one in value if one is not None] if test == "in" else []
    return reduce(pc.or_, (may_be(listed, one) for one in topics)) if topics else _any(listed)


def _of_time(listed: Any, test: str, value: Any) -> Any:
    if not isinstance(value, datetime) or test not in ("from", "to"):
        return _any(listed)
    instant = value if value.tzinfo else value.replace(tzinfo=UTC)
    return came_until(listed, instant) if test == "from" else came_from(listed, instant)


def _any(listed: Any) -> Any:
    return pa.repeat(pa.scalar(True), listed.num_rows)


_TESTS: dict[str, Callable[[Any, str, Any], Any]] = {
    "date": _of_day,
    "first_level": _of_level,
    "topic": _of_topic,
    "ingress_time": _of_time,
}
