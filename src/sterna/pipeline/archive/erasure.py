"""Erasure from an archive: messages of a topic, of a publisher, or older than a day go, and the rest stays as it is.

Files that can hold no such message by what the log says of them are not read.  Of the others a copy without those rows
is made, and all copies take their place in one change: readers see the archive as it was or without those messages,
and an erasure that is killed has changed nothing.  The files themselves are removed at the end, without the day of
grace that compaction gives: erased is erased.  Nodes keep their own journals, which their retention empties.  Needs no
Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sterna.journal.filter_set import FilterSet
from sterna.journal.table import rows_of_interest
from sterna.mqtt.topics import is_topic_filter
from sterna.pipeline.archive.delta_log import KeptFile, NewFile
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.parquet_files import FileWriter, batches, is_sorted, opened
from sterna.pipeline.archive.pruning import FileChoice
from sterna.pipeline.errors import PipelineError

_LEVELS_MAX, _BYTES_MAX = 128, 65535
TRIES = 20
"""Somebody who compacts all the time could be quicker for ever."""


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """Messages of which all that is given here is true."""

    topic_filter: str | None = None
    publisher: str | None = None
    before: date | None = None
    """Of days before this one, in UTC."""

    def check(self) -> None:
        if self == ErasureScope():
            raise PipelineError("say which messages: of a topic filter, of a publisher, or from before a day")
        if self.topic_filter is not None and not is_topic_filter(self.topic_filter.encode(), _LEVELS_MAX, _BYTES_MAX):
            raise PipelineError(f'"{self.topic_filter}" is no topic filter; + stands for one level, # for the rest')

    def choice(self) -> FileChoice:
        """Files that may hold some of these, by what the log says of them alone."""
        return FileChoice(() if self.topic_filter is None else (self.topic_filter,), before=self.before)

    def is_all_of(self, file: KeptFile) -> bool:
        """Nothing else is in the file, which need not be read."""
        is_any = self.topic_filter in (None, "#") and self.publisher is None
        return is_any and file.facts is not None and not (self.topic_filter == "#" and file.level.startswith("$"))

    def rows(self, batch: Any) -> Any:
        """Which rows are meant: a mask."""
        mask = pa.array([True] * batch.num_rows, pa.bool_())
        if self.topic_filter is not None:
            interest = FilterSet([self.topic_filter.encode()])
            mask = pc.and_(mask, rows_of_interest(batch.column("topic").cast(pa.binary()), interest))
        if self.publisher is not None:
            mask = pc.and_(mask, pc.equal(batch.column("publisher"), self.publisher).fill_null(False))
        return mask


class Erased(NamedTuple):
    messages: int
    files: int
    """That held some of them, and are gone."""


def erase(files: ArchiveFiles, scope: ErasureScope) -> Erased:
    """Comes back when no file holds such a message that was in the archive when it began."""
    scope.check()
    for _ in range(TRIES):
        done = _tried(files, scope)
        if done is not None:
            if not files.sweep(0.0):  # those that were merged before, too, which may hold what is meant
                files.publish()
            return done
    raise PipelineError("files were merged all the time; run the erasure again, and compactions later")


def _tried(files: ArchiveFiles, scope: ErasureScope) -> Erased | None:
    """None if files were merged meanwhile."""
    state = files.state(scope.choice().of)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rest = list(pool.map(lambda one: _rest(files, one, scope), state.files))
    old = [one for one, (gone, _) in zip(state.files, rest, strict=True) if gone]
    new = [copy for gone, copy in rest if gone and copy is not None]
    if old and not files.exchange(old, new, state.version, erased=True):
        return None
    return Erased(sum(gone for gone, _ in rest), len(old))


def _rest(files: ArchiveFiles, one: KeptFile, scope: ErasureScope) -> tuple[int, NewFile | None]:
    """How many rows of the file are meant, and a copy without them; none if nothing is left."""
    if one.facts is not None and scope.is_all_of(one):
        return one.facts.rows, None
    try:
        with opened(files.storage, one.path) as file:
            # Most files that may hold such messages hold none: two columns tell.
            gone = sum(int(pc.sum(scope.rows(batch)).as_py() or 0) for batch in batches(file, ("topic", "publisher")))
            return gone, _copy(files, one, file, scope.rows) if gone else None
    except FileNotFoundError:
        raise PipelineError(f"{one.path} is in the archive's list, and gone; run the erasure again") from None


def _copy(files: ArchiveFiles, one: KeptFile, file: Any, meant: Callable[[Any], Any]) -> NewFile | None:
    writer = FileWriter(files.storage, "kept", one.day, one.level, is_sorted=is_sorted(file))
    for batch in batches(file):
        writer.add(batch.filter(pc.invert(meant(batch))))
    return writer.done()
