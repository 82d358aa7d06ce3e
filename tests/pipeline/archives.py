"""Archives without Spark: batches of numbered messages as the files of an archive, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.archive.delta_log import NewFile
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.parquet_files import write_sorted

LEVELS = ("plant", "office")
DAY = "2026-01-31"


def rows(level: str, numbers: Iterable[int], topic: str | None = None) -> pa.Table:
    instant = datetime.fromisoformat(DAY).replace(tzinfo=UTC)
    messages = [
        {
            "topic": topic or f"{level}/a", "payload": str(number).encode(), "qos": 1, "retain": False, "origin": "n",
            "epoch": 1, "sequence": number, "offset": number, "ingress_time": instant, "properties": [("k", "v")],
        }
        for number in numbers
    ]  # fmt: skip
    return pa.Table.from_pylist(messages, TABLE_SCHEMA)


def keep(files: ArchiveFiles, batch: int, numbers: Iterable[int], offsets: bytes = b"{}") -> None:
    """A batch as a job keeps one; the numbers, at every level."""
    numbers = list(numbers)
    files.log.create()
    made = written(files, (row for level in LEVELS for row in rows(level, numbers).to_batches()))
    files.take_in(batch, made, offsets)


def written(files: ArchiveFiles, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """Files with these rows, in their places."""
    return list(write_sorted(files.storage, map(with_places, batches)))


def with_places(batch: pa.RecordBatch) -> pa.RecordBatch:
    days = batch.column("ingress_time").cast(pa.date32())
    levels = [topic.partition("/")[0] for topic in batch.column("topic").to_pylist()]
    return batch.append_column("date", days).append_column("first_level", pa.array(levels))


def kept(files: ArchiveFiles) -> list[int]:
    """The numbers of one level, sorted; both levels must have the same."""
    found: dict[str, list[int]] = {level: [] for level in LEVELS}
    for path in counted(files):
        for row in pq.read_table(path, partitioning=None, columns=["topic", "payload"]).to_pylist():
            found[row["topic"].partition("/")[0]].append(int(row["payload"]))
    plant, office = (sorted(numbers) for numbers in found.values())
    assert plant == office
    return plant


def counted(files: ArchiveFiles) -> list[Path]:
    """The files that the log names, which must be as large as it says."""
    root = Path(files.storage.address)
    state = files.state()
    for one in state.files:
        assert one.size == (root / one.path).stat().st_size
    return [root / one.path for one in state.files]


def on_disk(files: ArchiveFiles) -> set[Path]:
    return {path for path in Path(files.place).absolute().rglob("*.parquet") if "_delta_log" not in path.parts}
