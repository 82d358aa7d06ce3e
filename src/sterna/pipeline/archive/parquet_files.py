"""Parquet files of an archive: sorted by topic, each written once under a name that nobody else has.

Tasks write them where they stay; a file counts when the log names it.  So a task that is run again, or killed, leaves
files that nobody sees.  Needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import date
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sterna.pipeline.archive.delta_log import FileFacts, NewFile
from sterna.pipeline.archive.storage import Storage
from sterna.pipeline.table import SCHEMA, with_columns

ORDER = [("topic", "ascending"), ("ingress_time", "ascending")]
GROUP_ROWS, GROUP_BYTES = 256 * 1024, 64 * 1024 * 1024
"""Rows are written in groups that have so many rows, or bytes."""
BUFFER_ROWS, BUFFER_BYTES = 8192, 1024 * 1024
"""Read at a time."""
_TEXT_MAX = 64
"""Characters of a topic that the log tells of."""
_LAST = "\U0010ffff"
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SORTED = (pq.SortingColumn(SCHEMA.get_field_index("topic")),)


def directory_of(level: str) -> str:
    """The name of the directory of a level: itself if it is plain, else a tilde and its UTF-8 in hexadecimal."""
    return level if _PLAIN.fullmatch(level) and level != _NULL else f"~{level.encode().hex()}"


class FileWriter:
    """One file, filled batch by batch; `done` says what is in it."""

    def __init__(self, storage: Storage, kind: str, day: date, level: str, *, is_sorted: bool = True) -> None:
        self._storage = storage
        self._day, self._level = day, level
        self.path = f"date={day}/first_level={directory_of(level)}/{kind}-{uuid4().hex}.zstd.parquet"
        self._sorting = _SORTED if is_sorted else None
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        self._bounds: list[tuple[Any, Any, Any, Any]] = []
        self._stack = ExitStack()
        self._file: Any = None
        self._writer: Any = None
        self.rows = 0

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            self._file = pa.PythonFile(self._stack.enter_context(self._storage.writing(self.path)), "w")
            self._writer = pq.ParquetWriter(
                self._file, SCHEMA, compression="zstd", store_schema=False, sorting_columns=self._sorting
            )
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        ends = (pc.min_max(table.column(name)) for name in ("topic", "ingress_time"))
        self._bounds.append(tuple(end[which].as_py() for end in ends for which in ("min", "max")))
        self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self.rows += table.num_rows
        self._waiting, self._rows, self._bytes = [], 0, 0

    def done(self) -> NewFile | None:
        """In its place, durably; None if nothing was added."""
        if self._waiting:
            self._write()
        if self._writer is None:
            return None
        self._writer.close()
        size = self._file.tell()
        self._stack.close()
        return NewFile(self.path, size, self._day, self._level, self._facts())

    def _facts(self) -> FileFacts:
        first, last, since, until = zip(*self._bounds, strict=True)
        times = [one for one in since if one is not None], [one for one in until if one is not None]
        return FileFacts(
            self.rows,
            min(first)[:_TEXT_MAX],
            _upper(max(last)),
            min(times[0], default=None),
            max(times[1], default=None),
        )


def _upper(text: str) -> str:
    """No text that is less comes after it."""
    end = _TEXT_MAX
    while text[end : end + 1] == _LAST:
        end += 1
    return text if len(text) <= end else text[:end] + _LAST


def write_sorted(storage: Storage, batches: Iterable[Any]) -> Iterator[NewFile]:
    """Rows with `date` and `first_level`, sorted by these and then by topic: a file for each such place."""
    place, writer = None, None
    for batch in batches:
        for day, level, rows in _runs(batch):
            if (day, level) != place or writer is None:
                if writer is not None:
                    yield from _made(writer)
                place, writer = (day, level), FileWriter(storage, "batch", day, level)
            writer.add(rows)
    if writer is not None:
        yield from _made(writer)


def _made(writer: FileWriter) -> Iterator[NewFile]:
    made = writer.done()
    if made is not None:
        yield made


def _runs(batch: Any) -> Iterator[tuple[date, str, Any]]:
    rest = batch
    messages = batch.select(SCHEMA.names)
    start = 0
    while rest.num_rows:
        day, level = rest.column("date")[0], rest.column("first_level")[0]
        same = pc.and_(pc.equal(rest.column("date"), day), pc.equal(rest.column("first_level"), level))
        length = pc.sum(same).as_py()
        yield day.as_py(), level.as_py(), messages.slice(start, length).cast(SCHEMA)
        start, rest = start + length, rest.slice(length)


@contextmanager
def opened(storage: Storage, path: str) -> Iterator[Any]:
    with closing(storage.reading(path)) as file, pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as found:
        yield found


def is_sorted(file: Any) -> bool:
    about = file.metadata
    return all(
        tuple(about.row_group(number).sorting_columns or ())[:1] == _SORTED for number in range(about.num_row_groups)
    )


def batches(file: Any, names: Sequence[str] = tuple(SCHEMA.names)) -> Iterator[Any]:
    """All rows, as the table has them today, a bounded number of bytes at a time."""
    about = file.metadata
    total = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    rows = max(1, min(BUFFER_ROWS, BUFFER_BYTES * max(1, about.num_rows) // max(1, total)))
    known = [name for name in names if name in file.schema_arrow.names]
    for batch in file.iter_batches(rows, columns=known):
        table = with_columns(pa.Table.from_batches([batch]), names).select(list(names))
        yield from table.cast(pa.schema([SCHEMA.field(name) for name in names])).to_batches()


def merged(files: Sequence[Any]) -> Iterator[Any]:
    """The rows of files that are sorted, sorted; a little of each is in memory."""
    sources = [batches(file) for file in files]
    heads: list[Any] = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        # Rows up to the least of what the buffers end with cannot be followed by a smaller one.
        bound = min(head.column("topic")[-1].as_py() for head in heads if head is not None)
        parts = []
        for number, head in enumerate(heads):
            if head is not None:
                count = pc.sum(pc.less_equal(head.column("topic"), bound)).as_py() or 0
                parts.append(head.slice(0, count))
                heads[number] = head.slice(count) if count < head.num_rows else next(sources[number], None)
        yield from pa.Table.from_batches(parts).sort_by(ORDER).combine_chunks().to_batches()
