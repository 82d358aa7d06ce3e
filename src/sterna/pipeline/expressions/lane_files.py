"""The state of a lane on the disk, and what it takes to go on from it in another process.

`state-N` holds everything up to batch N; the batches after it stand in `batches-N-X`, one file for each process X that
has had the lane since.  Nobody writes into the file of another, so a process that was taken for dead and writes one
more batch does no harm: it is the same batch.  A process that gets the lane reads what others have written since it had
it last.  A file goes when two snapshots have made it needless: until then such a process may still go by it.
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from sterna.operators.errors import StateError
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.ordered_evaluation import Waiting
from sterna.pipeline.expressions.part_merge import ExpressionResult, PartBatch, PartMerge
from sterna.pipeline.expressions.registry import Registry
from sterna.pipeline.expressions.result_delivery import OwedResults
from sterna.runtime.feed.cursors import replace_shared_file

SNAPSHOT_BATCHES = 256
SNAPSHOT_BYTES = 16 * 1024 * 1024
"""Batches, or bytes of them, after which a snapshot takes their place."""

_HEAD_BYTES = 8
_STATE = re.compile(r"state-(\d+)")
_BATCHES = re.compile(r"batches-(-?\d+)(-[0-9a-f]+)?")

HandIn = Callable[[Sequence[ExpressionResult]], list[str]]
"""Tells which nodes have not taken all that they are owed."""


class LaneSnapshot(msgspec.Struct, array_like=True):
    batch: int
    registry: Registry
    wholes: list[tuple[int, bytes]]
    owed: list[ExpressionResult]
    waiting: list[Waiting] = []


class LaneFiles:
    def __init__(self, directory: Path, registries: Callable[[int], Registry]) -> None:
        self._directory = directory
        self._registries = registries
        self._log: BinaryIO | None = None
        #: How far the files of others are read.
        self._places: dict[Path, int] = {}
        self._base = -1
        self._snapshot_bytes = 0
        self._begin()
        self.last_batch = -1
        #: The oldest edition that somebody needs who goes on from these files.
        self.edition = 0

    def load(self, merge: PartMerge, owed: OwedResults) -> None:
        """Brings back what was; results since the last snapshot may have been delivered or not."""
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._base = self._newest()
            if self._base >= 0:
                content = (self._directory / f"state-{self._base}").read_bytes()
                kept = msgspec.msgpack.decode(content, type=LaneSnapshot)
                merge.restore(kept.registry, kept.wholes, kept.waiting)
                owed.add(kept.owed)
                self._snapshot_bytes = len(content)
                self.last_batch, self.edition = kept.batch, kept.registry.edition
        except (OSError, msgspec.DecodeError, StateError) as error:
            raise self._damaged(error) from None
        self.catch_up(merge, owed)

    def _damaged(self, error: Exception) -> PipelineError:
        return PipelineError(f"{self._directory} cannot be gone on from: {error}")

    def _newest(self) -> int:
        found = (_STATE.fullmatch(file.name) for file in self._directory.iterdir())
        return max((int(one[1]) for one in found if one), default=-1)

    def catch_up(self, merge: PartMerge, owed: OwedResults) -> None:
        """Takes the batches that others have taken since."""
        try:
            newest = self._newest()
            if newest > self._base:  # files of before will go
                self._base = newest
                self._begin()
            for batch in sorted(self._news(), key=lambda one: (one.number, one.is_told_again)):
                if batch.number == self.last_batch + 1 and not batch.is_told_again:
                    self._apply(merge, batch, owed.add)
                if batch.number == self.last_batch:
                    owed.keep(batch.waiting)
        except (OSError, msgspec.DecodeError, StateError) as error:
            raise self._damaged(error) from None

    def _news(self) -> Iterator[PartBatch]:
        for file in self._directory.iterdir():
            if file != self._own and _BATCHES.fullmatch(file.name):
                with file.open("rb") as log:
                    log.seek(self._places.get(file, 0))
                    for batch, size in _read(log.read()):
                        self._places[file] = self._places.get(file, 0) + size
                        self._count(size)
                        yield batch

    def take(
        self, merge: PartMerge, batch: PartBatch, hand_in: HandIn, *, repeats: bool = True
    ) -> list[ExpressionResult]:
        """The batch is on the disk when this returns what came of it.

        Results are handed in before: if it does not come to the disk any more, the batch is run again, from the same
        offsets, and its results are the same.  If that is not so (`repeats`), they are handed in after.
        """
        if batch.number != self.last_batch + 1:
            raise PipelineError(
                f"{self._directory} knows of {self.last_batch + 1} batches, and this is batch {batch.number}: "
                "put the right state beside the checkpoint, or start from nothing in another directory"
            )
        if not repeats:
            self._keep(batch)
        waiting: list[str] = []
        results = self._apply(merge, batch, lambda made: waiting.extend(hand_in(made)))
        if repeats:
            self._keep(msgspec.structs.replace(batch, waiting=waiting))
        else:
            self.tell_again(batch, waiting)
        return results

    def tell_again(self, batch: PartBatch, waiting: list[str]) -> None:
        """The batch is on the disk already; who still waits was not known then."""
        self._keep(msgspec.structs.replace(batch, rows=[], waiting=waiting, is_told_again=True))

    def _apply(
        self, merge: PartMerge, batch: PartBatch, hand_in: Callable[[list[ExpressionResult]], None]
    ) -> list[ExpressionResult]:
        """Windows that are still open can wait until the results of others have left."""
        registry = merge.registry
        if batch.edition != registry.edition:
            registry = self._registries(batch.edition)
        results = merge.close(registry, batch.time_us, (row for row in batch.rows if row[1] <= batch.time_us))
        hand_in(results)
        merge.merge(row for row in batch.rows if row[1] > batch.time_us)
        self.last_batch = batch.number
        return results

    def _keep(self, batch: PartBatch) -> None:
        if self._log is None:
            self._log = self._own.open("ab")
            _sync_directory(self._directory)
        body = msgspec.msgpack.encode(batch)
        self._log.write(len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body)
        self._log.flush()
        os.fsync(self._log.fileno())
        self._count(len(body))

    def _count(self, size: int) -> None:
        self._written += size
        self._batches += 1

    @property
    def is_snapshot_due(self) -> bool:
        # A great state is not written again and again for a little more.
        return self._batches >= SNAPSHOT_BATCHES or self._written >= max(SNAPSHOT_BYTES, 2 * self._snapshot_bytes)

    def snapshot(self, merge: PartMerge, owed: OwedResults, edition: int | None = None) -> None:
        """Everything so far, `owed` with it: results that nobody is known to have.  `edition`: the one before the last
        batch, which may be run again."""
        kept = LaneSnapshot(self.last_batch, merge.registry, merge.snapshot(), owed.all(), merge.buffer.waiting)
        content = msgspec.msgpack.encode(kept)
        replace_shared_file(self._directory / f"state-{self.last_batch}", content)
        self._snapshot_bytes = len(content)
        self.edition = merge.registry.edition if edition is None else edition
        for file in list(self._directory.iterdir()):
            state, batches = _STATE.fullmatch(file.name), _BATCHES.fullmatch(file.name)
            if (state and int(state[1]) < self.last_batch) or (batches and int(batches[1]) < self._base):
                file.unlink(missing_ok=True)
                self._places.pop(file, None)
        self._base = self.last_batch
        self._begin()

    def _begin(self) -> None:
        """The following batches go into another file."""
        self.close()
        self._own = self._directory / f"batches-{self._base}-{secrets.token_hex(4)}"
        self._written = self._batches = 0

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(log: bytes) -> Iterable[tuple[PartBatch, int]]:
    """Batches that are there wholly, each with its size; what follows may be torn, or on its way."""
    place = 0
    while place + _HEAD_BYTES <= len(log):
        size = int.from_bytes(log[place : place + 4], "big")
        body = log[place + _HEAD_BYTES : place + _HEAD_BYTES + size]
        if len(body) < size or zlib.crc32(body).to_bytes(4, "big") != log[place + 4 : place + _HEAD_BYTES]:
            return
        place += _HEAD_BYTES + size
        yield msgspec.msgpack.decode(body, type=PartBatch), _HEAD_BYTES + size
