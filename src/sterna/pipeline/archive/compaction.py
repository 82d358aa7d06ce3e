"""Compaction of an archive: small files become large ones, unnoticed by readers.

Files are merged within their directory (a day and a first topic level), row for row.  The merged file is counted and
synced before it replaces the others in the list.  So each message is in the archive once, at whichever moment a
compaction is killed, and two compactions at a time do no harm.  Needs no Spark; a Spark job can lend its tasks.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sterna.journal.table import TABLE_SCHEMA as SCHEMA
from sterna.pipeline.archive.file_list import Listed
from sterna.pipeline.archive.files import KEEP_S, ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.table import with_columns

TARGET_BYTES = 128 * 1024 * 1024
SMALL = 0.5
"""A file of less than this part of the target is small."""
BATCH_ROWS = 8192
GROUP_ROWS, GROUP_BYTES = 256 * 1024, 64 * 1024 * 1024
"""Rows of a merged file are written in groups that have so many rows, or bytes."""


class FileMerge(NamedTuple):
    """Files that become one: plain values, which may travel to another machine."""

    sources: tuple[str, ...]
    target: str


class Compacted(NamedTuple):
    merged: int
    """Files that others took the place of."""
    made: int
    swept: int
    """Files removed whose place was taken long enough ago."""


Run = Callable[[Sequence[FileMerge]], Iterable[object]]


def in_threads(merges: Sequence[FileMerge]) -> Iterator[object]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(merge, merges)


def compact(
    files: ArchiveFiles,
    target_bytes: int = TARGET_BYTES,
    at_least: int = 2,
    keep_s: float = KEEP_S,
    run: Run = in_threads,
) -> Compacted:
    """Merge the small files of every directory that has `at_least` so many."""
    groups = small_files(files.list.load(), target_bytes, at_least)
    merged = made = 0
    with files.workshop() as place:
        merges = [_planned(files, group, place, number) for number, group in enumerate(groups)]
        for group, plan, _ in zip(groups, merges, run(merges), strict=True):
            if files.exchange(group, Path(plan.target), place):
                merged, made = merged + len(group), made + 1
    return Compacted(merged, made, files.sweep(keep_s))


def small_files(files: Iterable[Listed], target_bytes: int, at_least: int) -> list[list[Listed]]:
    """Groups of small files of one directory, each about as large as a file should be."""
    by_directory: defaultdict[Path, list[Listed]] = defaultdict(list)
    for one in files:
        if one.size < target_bytes * SMALL:
            by_directory[one.file.parent].append(one)
    many = [small for small in by_directory.values() if len(small) >= at_least]
    return [group for small in many for group in _cut(small, target_bytes) if len(group) > 1]


def _cut(small: list[Listed], target_bytes: int) -> Iterator[list[Listed]]:
    group: list[Listed] = []
    for one in sorted(small, key=lambda one: (one.batch, one.path)):
        group.append(one)
        if sum(member.size for member in group) >= target_bytes:
            yield group
            group = []
    yield group


def _planned(files: ArchiveFiles, group: list[Listed], place: Path, number: int) -> FileMerge:
    directory = place / group[0].file.parent.relative_to(files.messages.absolute())
    target = directory / f"merged-{place.name}-{number}.zstd.parquet"
    return FileMerge(tuple(str(one.file) for one in group), str(target))


def merge(plan: FileMerge) -> None:
    """Make the one file of the many; anything less than all rows of all of them is an error."""
    target = Path(plan.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetWriter(target, SCHEMA, compression="zstd", store_schema=False) as writer:
            expected = sum(_copy_of_all(plan.sources, writer))
    except FileNotFoundError:
        gone = next((source for source in plan.sources if not Path(source).exists()), plan.target)
        raise PipelineError(f"{gone} is in the archive's list, and gone") from None
    except pa.ArrowInvalid as error:
        raise PipelineError(f"a file of {Path(plan.sources[0]).parent} cannot be read: {error}") from None
    found = pq.read_metadata(target).num_rows
    if found != expected:
        raise PipelineError(f"{target} has {found} rows of {expected}; nothing was changed")


def _copy_of_all(sources: Iterable[str], writer: Any) -> Iterator[int]:
    """Row by row, in groups of a useful size; how many rows each source says it has."""
    waiting: list[Any] = []
    for source in sources:
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
            yield file.metadata.num_rows
            for batch in file.iter_batches(BATCH_ROWS):
                table = with_columns(pa.Table.from_batches([batch]), SCHEMA.names)
                waiting.append(table.select(SCHEMA.names).cast(SCHEMA))
                if _is_group(waiting):
                    writer.write_table(pa.concat_tables(waiting))
                    waiting.clear()
    if waiting:
        writer.write_table(pa.concat_tables(waiting))


def _is_group(tables: Sequence[Any]) -> bool:
    rows, size = sum(int(one.num_rows) for one in tables), sum(int(one.nbytes) for one in tables)
    return rows >= GROUP_ROWS or size >= GROUP_BYTES
