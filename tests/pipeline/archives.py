"""Archives without Spark: batches of numbered messages as the files of an archive, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.archive.files import ArchiveFiles

LEVELS = ("plant", "office")
DAY = "2026-01-31"


def rows(level: str, numbers: Iterable[int]) -> pa.Table:
    instant = datetime.fromisoformat(DAY).replace(tzinfo=UTC)
    messages = [
        {
            "topic": f"{level}/a", "payload": str(number).encode(), "qos": 1, "retain": False, "origin": "n",
            "epoch": 1, "sequence": number, "offset": number, "ingress_time": instant, "properties": [("k", "v")],
        }
        for number in numbers
    ]  # fmt: skip
    return pa.Table.from_pylist(messages, TABLE_SCHEMA)


def keep(files: ArchiveFiles, batch: int, numbers: Iterable[int]) -> None:
    """A batch as a job keeps one; the numbers, at every level."""
    numbers = list(numbers)
    with files.workshop() as place:
        for level in LEVELS:
            directory = place / f"date={DAY}" / f"first_level={level}"
            directory.mkdir(parents=True)
            pq.write_table(rows(level, numbers), directory / f"part-{place.name}.parquet")
        files.take_in(batch, place)


def kept(files: ArchiveFiles) -> list[int]:
    """The numbers of one level, sorted; both levels must have the same."""
    found: dict[str, list[int]] = {level: [] for level in LEVELS}
    for one in files.list.load():
        assert one.size == one.file.stat().st_size
        for row in pq.read_table(one.file, partitioning=None, columns=["topic", "payload"]).to_pylist():
            found[row["topic"].partition("/")[0]].append(int(row["payload"]))
    plant, office = (sorted(numbers) for numbers in found.values())
    assert plant == office
    return plant


def on_disk(files: ArchiveFiles) -> set[Path]:
    return set(files.directory.absolute().rglob("*.parquet"))
