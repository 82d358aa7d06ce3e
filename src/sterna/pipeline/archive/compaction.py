"""Compaction of an archive: small files become large ones, unnoticed by readers and beside whoever writes.

Files are merged within their directory (a day and a first topic level), sorted by topic.  The merged file is counted
and synced before it replaces the others in the log.  So each message is in the archive once, at whichever moment a
compaction is killed, and two compactions at a time do no harm.  Needs no Spark; a Spark job can lend its tasks.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sterna.pipeline.archive.delta_log import ArchiveState, Choose, KeptFile, NewFile
from sterna.pipeline.archive.files import KEEP_S, ArchiveFiles
from sterna.pipeline.archive.parquet_files import FileWriter, batches, is_sorted, merged, opened
from sterna.pipeline.archive.storage import Storage, storage_at
from sterna.pipeline.errors import PipelineError

TARGET_BYTES = 128 * 1024 * 1024
SMALL = 0.5
"""A file of less than this part of the target is small."""


CHANGES = 16
"""So many merges enter the log at once, as each looks at all changes since they were planned."""


class FileMerge(NamedTuple):
    """Files that become one: plain values, which may travel to another machine."""

    archive: str
    """The address of its messages."""
    sources: tuple[str, ...]
    day: date
    level: str


class Compacted(NamedTuple):
    merged: int
    """Files that others took the place of."""
    made: int
    swept: int
    """Files removed whose place was taken long enough ago."""


_Merged = tuple[list[KeptFile], NewFile | None]
Run = Callable[[Sequence[FileMerge]], Iterable[NewFile | None]]


def in_threads(merges: Sequence[FileMerge]) -> Iterator[NewFile | None]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(merge, merges)


def compact(
    files: ArchiveFiles,
    target_bytes: int = TARGET_BYTES,
    at_least: int = 2,
    keep_s: float = KEEP_S,
    run: Run = in_threads,
) -> Compacted:
    """Merge the small files of every directory that has `at_least` so many, remove what was replaced long ago, and
    bring the list for Spark up to date."""
    count, made = merge_small(files, files.state(small(target_bytes)), target_bytes, at_least, run)
    swept = files.sweep(keep_s)
    if not swept:
        files.publish()
    return Compacted(count, made, swept)


def small(target_bytes: int) -> Choose:
    """The entries that `merge_small` looks at."""
    return lambda listed: listed.filter(pc.less(listed["size_bytes"], target_bytes * SMALL))


def merge_small(
    files: ArchiveFiles, state: ArchiveState, target_bytes: int, at_least: int, run: Run
) -> tuple[int, int]:
    """How many files became how many.  Those that were merged stay."""
    groups = small_files(state.files, target_bytes, at_least)
    address = files.storage.address
    plans = [FileMerge(address, tuple(one.path for one in group), group[0].day, group[0].level) for group in groups]
    count = made = 0
    done = zip(groups, run(plans), strict=True)
    while some := list(islice(done, CHANGES)):
        for old, new in _exchanged(files, some, state.version):
            count, made = count + len(old), made + (new is not None)
    return count, made


def _exchanged(files: ArchiveFiles, some: Sequence[_Merged], since: int) -> Iterator[_Merged]:
    """All in one change, or one by one if somebody else was quicker with some of them."""
    gone, made = [one for old, _ in some for one in old], [new for _, new in some if new is not None]
    if files.exchange(gone, made, since, is_last=len(some) == 1):
        yield from some
    elif len(some) > 1:
        for one in some:
            yield from _exchanged(files, [one], since)


def small_files(files: Iterable[KeptFile], target_bytes: int, at_least: int) -> list[list[KeptFile]]:
    """Groups of small files of one directory, each about as large as a file should be."""
    by_place: defaultdict[tuple[date, str], list[KeptFile]] = defaultdict(list)
    for one in files:
        if one.size < target_bytes * SMALL:
            by_place[one.day, one.level].append(one)
    many = [small for small in by_place.values() if len(small) >= at_least]
    return [group for small in many for group in _cut(small, target_bytes) if len(group) > 1]


def _cut(small: list[KeptFile], target_bytes: int) -> Iterator[list[KeptFile]]:
    group: list[KeptFile] = []
    for one in sorted(small, key=lambda one: (one.modified_ms, one.path)):
        group.append(one)
        if sum(member.size for member in group) >= target_bytes:
            yield group
            group = []
    yield group


def merge(plan: FileMerge) -> NewFile | None:
    """Make the one file of the many; anything less than all rows of all of them is an error."""
    storage = storage_at(plan.archive)
    try:
        made, expected = _copy_of_all(storage, plan)
    except FileNotFoundError:
        gone = next((one for one in plan.sources if not _is_there(storage, one)), plan.sources[0])
        raise PipelineError(f"{gone} is in the archive's list, and gone") from None
    except pa.ArrowInvalid as error:
        raise PipelineError(f"a file of {plan.day} and {plan.level!r} cannot be read: {error}") from None
    found = 0 if made is None else _rows_in(storage, made.path)
    if found != expected:
        raise PipelineError(f"a merged file has {found} rows of {expected}; nothing was changed")
    return made


def _is_there(storage: Storage, path: str) -> bool:
    try:
        storage.reading(path).close()
    except FileNotFoundError:
        return False
    return True


def _rows_in(storage: Storage, path: str) -> int:
    with opened(storage, path) as file:
        return int(file.metadata.num_rows)


def _copy_of_all(storage: Storage, plan: FileMerge) -> tuple[NewFile | None, int]:
    """The file that was made, and how many rows the sources say they have.  Files of earlier releases are not sorted:
    their rows follow each other as they are."""
    with ExitStack() as stack:
        sources = [stack.enter_context(opened(storage, path)) for path in plan.sources]
        are_sorted = all(map(is_sorted, sources))
        writer = FileWriter(storage, "merged", plan.day, plan.level, is_sorted=are_sorted)
        for batch in merged(sources) if are_sorted else (one for file in sources for one in batches(file)):
            writer.add(batch)
        return writer.done(), sum(int(file.metadata.num_rows) for file in sources)
