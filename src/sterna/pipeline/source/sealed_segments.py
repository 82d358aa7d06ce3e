"""Sealed segments: Parquet files on shared storage, with messages that nodes no longer have in their journals.

A batch read with option `parquet` takes the rows before a node's journal from these files and the rest from the node,
as one table.  Files outside the offsets or instants of the read are not opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sterna.journal.filter_set import FilterSet
from sterna.journal.table import rows_between, rows_of_interest
from sterna.pipeline.conditions import AskedOfNodes, asked_of_nodes, columns_of, rows_that_hold
from sterna.pipeline.errors import DataLoss, PipelineError
from sterna.pipeline.feed.client import ParquetFile
from sterna.pipeline.offsets import EARLIEST, OffsetSpec
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.gaps import JournalGap, lose
from sterna.pipeline.source.nodes import Seen
from sterna.pipeline.table import only, with_columns

BATCH_ROWS = 8192


class SealedRange(NamedTuple):
    """The rows of one file with offsets in [start, stop) that came in from `since_us` on and before `until_us`."""

    path: str
    start: int
    stop: int
    since_us: int | None = None
    until_us: int | None = None


def before_the_journal(seen: Seen, files: Sequence[ParquetFile], stop: int, options: ReadOptions) -> list[SealedRange]:
    """Ranges of a node's files for a read that begins before the node's journal does."""
    assert options.parquet is not None
    place = options.starting.for_node(seen.journal, seen.name)
    stop = min(stop, seen.first)
    asked = asked_of_nodes(options.topics, options.conditions)
    wanted = [file for file in files if file.first < stop and _is_of_interest(file, place, asked)]
    _check_nothing_is_missing(seen, place, files, options)
    start = _start(place)
    until_us = options.ending.for_node(seen.journal, seen.name).time_us
    return [
        SealedRange(
            str(_within(Path(options.parquet), file.name, seen)),
            max(file.first, start),
            min(file.stop, stop),
            place.time_us,
            until_us,
        )
        for file in wanted
        if file.stop > start
    ]


def _within(directory: Path, name: str, seen: Seen) -> Path:
    """A node says what its files are called, and not where to look for them."""
    if name != os.path.basename(name) or "\0" in name or not name.endswith(".parquet"):
        raise PipelineError(f"node {seen.name} at {seen.address} calls a file {name!r}, which is none of its segments")
    return directory / name


def _is_of_interest(file: ParquetFile, place: OffsetSpec, asked: AskedOfNodes) -> bool:
    since = [at for at in (place.time_us, asked.since_us) if at is not None]
    return all(file.newest_us >= at for at in since) and (asked.until_us is None or file.oldest_us < asked.until_us)


def _start(place: OffsetSpec) -> int:
    """The offset to begin at; every other place is before or within the first file it is of interest to."""
    if place.offsets and isinstance(place.offsets[0][1], int):
        return place.offsets[0][1]
    return 0 if place.word in ("", EARLIEST) else 1 << 62


def _check_nothing_is_missing(
    seen: Seen, place: OffsetSpec, files: Sequence[ParquetFile], options: ReadOptions
) -> None:
    oldest = min((file.first for file in files), default=seen.first)
    start = _start(place)
    if place.offsets and start < min(oldest, seen.first):
        lose(
            JournalGap.of(seen.journal, start, oldest, oldest - start, "they are neither in its journal nor in a file"),
            options,
        )


def read_sealed(part: SealedRange, options: ReadOptions) -> Iterator[Any]:
    """The rows of a file that match, as record batches with the columns asked for."""
    needed = dict.fromkeys((*options.columns, "offset", "topic", "ingress_time", *columns_of(options.conditions)))
    interest = FilterSet(one.encode() for one in options.topics) if options.topics else None
    try:
        with pq.ParquetFile(part.path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(needed)):
                chosen = rows_that_hold(batch.filter(_wanted(batch, part, interest)), options.conditions)
                if chosen.num_rows:
                    yield only(with_columns(chosen, options.columns), options.columns)
    except FileNotFoundError:
        raise DataLoss(
            f"{part.path} is gone, or not to be seen from here: option parquet must name storage that every task sees"
        ) from None


def _wanted(batch: Any, part: SealedRange, interest: FilterSet | None) -> Any:
    offsets = batch.column("offset")
    masks = [pc.and_(pc.greater_equal(offsets, part.start), pc.less(offsets, part.stop))]
    if interest is not None:
        masks.append(rows_of_interest(batch.column("topic").cast(pa.binary()), interest))
    between = rows_between(batch.column("ingress_time"), part.since_us, part.until_us)
    masks += [] if between is None else [between]
    chosen = masks[0]
    for mask in masks[1:]:
        chosen = pc.and_(chosen, mask)
    return chosen
