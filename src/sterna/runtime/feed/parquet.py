"""Sealed segments of the journal as Parquet files of the table, which live longer than the segments.

A file appears under its name when it is whole, and in the node's manifest after that: a reader of the manifest never
sees half a file, nor one that is about to go.  Files and manifest carry the node's name, so nodes may share a
directory.  Other files are left alone.  Spark ignores names that begin with a dot or an underscore.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sterna.journal.index import IndexedSegment
from sterna.journal.table import TABLE_SCHEMA
from sterna.node.feed_pieces import FeedQuestion, pick, table_of, unpack
from sterna.runtime.disk.private_files import create_private, make_private_directory
from sterna.runtime.feed.cursors import put_in_place, replace_file
from sterna.runtime.feed.segment_read import Store, read_bytes
from sterna.vocabulary.errors import JournalError

CHUNK_BYTES = 256 * 1024
GROUP_ROWS = 128 * 1024
GROUP_BYTES = 32 * 1024 * 1024
"""A row group ends when it has so many rows, or so many bytes."""
GRACE_S = 60.0
"""How long a file stays after it has gone from the manifest, for readers that looked just before."""
_MAKING_SUFFIX = ".making"
_EVERYTHING = FeedQuestion(0, 1 << 62)

log = logging.getLogger(__name__)


class ParquetEntry(msgspec.Struct, frozen=True):
    """One file: the rows of the offsets [first, stop)."""

    name: str
    first: int
    stop: int
    rows: int
    bytes: int
    oldest_us: int
    newest_us: int


class Manifest(msgspec.Struct):
    version: int = 1
    node: str = ""
    reached: int = 0
    """Everything below it is in a file, or was in one, or holds no message of this node's own."""
    files: list[ParquetEntry] = []


class Sealed(NamedTuple):
    """A segment that will not change any more."""

    serial: int
    first: int
    stop: int
    size: int
    starts: array[int]


class Abandoned(Exception):
    """The node stops: what is half written is thrown away."""


class ParquetShelf:
    """`due` and `outdated` are asked by the loop; what they return is done in a thread, one thing at a time."""

    def __init__(self, directory: Path, node: str, *, age_s: float, bytes_max: int) -> None:
        self.directory = directory
        self._node = node
        self._age_s = age_s
        self._bytes_max = bytes_max
        self._path = directory / f"_{node}.manifest.json"
        self.manifest = self._load()
        self.stopping = False
        #: name -> since when nobody is told of it any more.
        self._leaving: dict[str, float] = {}

    def _load(self) -> Manifest:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest(node=self._node, files=[])
        except (OSError, msgspec.MsgspecError) as error:
            raise JournalError(
                f"{self._path} cannot be read ({error}); restore it, or give [feed] parquet another directory"
            ) from error
        if found.version != 1:
            raise JournalError(f"{self._path} is of version {found.version}; this Sterna knows version 1")
        return found

    @property
    def files(self) -> list[ParquetEntry]:
        return self.manifest.files

    def due(self, segments: list[IndexedSegment]) -> Sealed | None:
        """The oldest sealed segment that is in no file yet."""
        for segment, following in pairwise(segments):
            if following.first_offset > max(self.manifest.reached, segment.first_offset):
                size, starts = segment.size, segment.starts
                return Sealed(segment.serial, segment.first_offset, following.first_offset, size, starts)
        return None

    def write(self, sealed: Sealed, store: Store) -> ParquetEntry | None:
        """Write a segment's file and enter it; None if it holds nothing of our own.  Raises JournalError, KeyError."""
        path = self.directory / f"{self._node}-{sealed.first:020d}.parquet"
        making = self.directory / f".{path.name}{_MAKING_SUFFIX}"
        try:
            make_private_directory(self.directory)
            try:
                entry = self._write_rows(making, path.name, sealed, store)
                if entry is not None:
                    _sync(making)
                    put_in_place(making, path)
            finally:
                making.unlink(missing_ok=True)
            files = [*self.files, entry] if entry else self.files
            self._enter(Manifest(1, self._node, sealed.stop, list(files)))
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror or error}; the segment is written again later") from error
        return entry

    def _write_rows(self, making: Path, name: str, sealed: Sealed, store: Store) -> ParquetEntry | None:
        import pyarrow.parquet as pq  # takes a moment to load, and most nodes never need it

        rows, oldest, newest = 0, 1 << 62, 0
        writer = None
        try:
            for table in _row_groups(sealed, store, self._node):
                if self.stopping:
                    raise Abandoned
                if writer is None:
                    create_private(making)
                    writer = pq.ParquetWriter(making, TABLE_SCHEMA, compression="zstd")
                writer.write_table(table, row_group_size=table.num_rows)
                rows += table.num_rows
                first, last = _extent(table)
                oldest, newest = min(oldest, first), max(newest, last)
        finally:
            if writer is not None:
                writer.close()
        if not rows:
            return None
        return ParquetEntry(name, sealed.first, sealed.stop, rows, making.stat().st_size, oldest, newest)

    def _enter(self, manifest: Manifest) -> None:
        replace_file(self._path, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self.manifest = manifest

    def outdated(self, now: float) -> list[ParquetEntry]:
        """Files that are to go, oldest first."""
        size = sum(entry.bytes for entry in self.files)
        oldest_us = (now - self._age_s) * 1e6 if self._age_s else 0
        gone = []
        for entry in self.files:
            if not ((self._bytes_max and size > self._bytes_max) or entry.newest_us < oldest_us):
                break
            gone.append(entry)
            size -= entry.bytes
        return gone

    def withdraw(self, entries: list[ParquetEntry], now: float) -> None:
        """Tell nobody of these any more; their files follow after a while."""
        names = {entry.name for entry in entries}
        left = [entry for entry in self.files if entry.name not in names]
        try:
            self._enter(Manifest(1, self._node, self.manifest.reached, left))
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror or error}") from error
        self._leaving |= dict.fromkeys(names, now)

    def sweep(self, now: float) -> None:
        """Remove files that left the manifest long enough ago."""
        for name, since in list(self._leaving.items()):
            if now - since >= GRACE_S:
                (self.directory / name).unlink(missing_ok=True)
                del self._leaving[name]

    def clear_leftovers(self) -> None:
        """Removes what a crash left: halves, and files that were on their way out."""
        listed = {entry.name for entry in self.files}
        for path in self.directory.glob(f".{self._node}-*{_MAKING_SUFFIX}"):
            path.unlink(missing_ok=True)
        for path in self.directory.glob(f"{self._node}-{'[0-9]' * 20}.parquet"):
            if path.name not in listed:
                path.unlink(missing_ok=True)


def _row_groups(sealed: Sealed, store: Store, node: str) -> Iterator[Any]:
    import pyarrow as pa

    gathered: list[Any] = []
    rows = size = 0
    for batch in _batches(sealed, store, node):
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(sealed: Sealed, store: Store, node: str) -> Iterator[Any]:
    starts = sealed.starts
    number = 0
    while number < len(starts):
        first = number
        while number < len(starts) and starts[number] - starts[first] < CHUNK_BYTES:
            number += 1
        stop = starts[number] if number < len(starts) else sealed.size
        picked = pick(read_bytes(store, sealed.serial, starts[first], stop), _EVERYTHING)
        for rot in picked.rot:
            fields = {"segment": sealed.serial, "byte": starts[first] + rot.byte}
            log.error("a frame is missing from a Parquet file: its checksum does not hold", extra=fields)
        for kind, buffers in picked.pieces:
            for rows in unpack(memoryview(b"".join((bytes((kind,)), *buffers))), GROUP_ROWS):
                batch = table_of(rows, _EVERYTHING, node)
                if batch is not None:
                    yield batch
            time.sleep(0)  # the loop may be waiting for the interpreter


def _extent(table: Any) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.min_max(table.column("ingress_time").cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
