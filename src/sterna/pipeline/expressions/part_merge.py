"""Merges the parts of all expressions, batch after batch, and keeps the state on disk.

Windows get parts; expressions that need order get values (`ordered_evaluation`).  A `PartMerge` is a function of the
batches so far: `PartMergeFiles` restores it from a snapshot and the batches after it.  So a crash at any moment loses
no result and changes none.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from sterna.operators.errors import StateError
from sterna.operators.window_division import MergedWindows
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.matching import EXTRACTED, MISSED, Row
from sterna.pipeline.expressions.ordered_evaluation import OrderedExpression, ReorderBuffer, Waiting
from sterna.pipeline.expressions.registry import Entry, Registry
from sterna.pipeline.expressions.rule_forwarding import ForwardedMessage, ForwardingEntry, RuleForwarding
from sterna.runtime.feed.cursors import replace_shared_file

SNAPSHOT_BATCHES = 256
SNAPSHOT_BYTES = 16 * 1024 * 1024
"""Batches, or bytes of them, after which a snapshot takes their place."""

_HEAD_BYTES = 8
_STATE = re.compile(r"state-(\d+)")


class ExpressionResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a window or a message, and for which node."""

    node: str
    text: bytes
    number: int
    """Greater than that of the expression's result before it: the end of the window, or about when the message came."""
    payload: bytes
    topic: bytes = b""
    """Of a message that passed; what else there is of it follows."""
    qos: int = 0
    properties: bytes = b""
    expires_us: int = 0

    @property
    def size(self) -> int:
        return len(self.text) + len(self.payload) + len(self.topic) + len(self.properties)


class PartBatch(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a batch."""

    number: int
    edition: int
    time_us: int
    """Windows that ended by then are closed, and what came in before is put in order."""
    rows: list[Row]


class _MergeSnapshot(msgspec.Struct, array_like=True):
    batch: int
    registry: Registry
    wholes: list[tuple[int, bytes]]
    owed: list[ExpressionResult]
    waiting: list[Waiting] = []


class PartMerge:
    def __init__(self, tell: Callable[[str], None] = lambda _line: None, *, computed: bool = False) -> None:
        """`computed`: of expressions with a data processing function, and no others."""
        self.registry = Registry()
        self._computed = computed
        self._tell = tell
        self._wholes: dict[int, tuple[Entry, _Kept]] = {}
        self._forwarding: dict[tuple[str, bytes], RuleForwarding] = {}
        self._left_out: set[str] = set()
        self.buffer = ReorderBuffer()

    def __len__(self) -> int:
        return len(self._wholes)

    def close(self, registry: Registry, time_us: int, rows: Iterable[Row]) -> list[ExpressionResult]:
        """Ends a batch: which expressions there are, how late it is everywhere, and parts of what is over."""
        known = self.registry.following
        if registry.edition != self.registry.edition:
            self._go_by(registry)
        self.merge(rows, known)
        self._tell_left_out()
        self.buffer.release(time_us)
        return [result for entry, whole in self._wholes.values() for result in self._closed(entry, whole, time_us)]

    def _tell_left_out(self) -> None:
        """Each reason once: what comes later is the same."""
        for reason in self.buffer.left_out.keys() - self._left_out:
            self._left_out.add(reason)
            self._tell(f"messages are left out: {reason} (more of them are not told)")

    def merge(self, rows: Iterable[Row], known: int = 0) -> None:
        """Entries with numbers below `known` were there before the batch: they have had what others had missed."""
        for number, end_us, part in rows:
            if number in (EXTRACTED, MISSED):
                self.buffer.join(part, 0 if number == EXTRACTED else known, self.registry.following)
                continue
            found = self._wholes.get(number)
            if found is not None:
                assert isinstance(found[1], MergedWindows)
                found[1].merge(end_us, part)

    def _go_by(self, registry: Registry) -> None:
        before, self._wholes = self._wholes, {}
        for entry in registry.entries:
            if bool(entry.expression.function) != self._computed:
                continue
            known = before.get(entry.number)
            self._wholes[entry.number] = (entry, self._begun(entry) if known is None else known[1])
        self._forwarding = {
            (entry.node, entry.rules): one.forwarding
            for entry, one in self._wholes.values()
            if isinstance(one, ForwardingEntry)
        }
        found = ((number, one) for number, (_, one) in self._wholes.items())
        self.buffer.go_by(
            (number, one) for number, one in found if isinstance(one, OrderedExpression | ForwardingEntry)
        )
        self.registry = registry

    def _begun(self, entry: Entry) -> _Kept:
        if not entry.needs_order:
            return MergedWindows(entry.expression, entry.settings, entry.since_us)
        if entry.expression.periodic is None and entry.beginning.complete_us > entry.since_us:
            self._tell(f"{_named(entry)}: its first messages are no longer kept; it begins with those that are")
        if not entry.expression.forwards:
            return OrderedExpression(entry)
        return ForwardingEntry(entry, self._forwarding.setdefault((entry.node, entry.rules), RuleForwarding()))

    def _closed(self, entry: Entry, whole: _Kept, time_us: int) -> Iterable[ExpressionResult]:
        if isinstance(whole, ForwardingEntry):
            for text, number, topic, message in whole.forwarding.take():
                yield _passed_on(entry.node, text, number, topic, message)
            return
        running = not whole.engine.stopped
        for number, payload in whole.advance(time_us):
            if is_complete(entry, number):
                yield ExpressionResult(entry.node, entry.text, number, payload)
            else:
                self._tell(f"{_named(entry)}: messages of its first window are no longer kept; it is left out")
        if running and whole.engine.stopped:
            self._tell(f"{_named(entry)} has stopped: {whole.engine.stopped}")

    def snapshot(self) -> list[tuple[int, bytes]]:
        return [(number, whole.snapshot()) for number, (_, whole) in self._wholes.items()]

    def restore(self, registry: Registry, wholes: Iterable[tuple[int, bytes]], waiting: list[Waiting]) -> None:
        """May raise StateError."""
        self._go_by(registry)
        self.buffer.waiting = waiting
        for number, state in wholes:
            self._wholes[number][1].restore(state)


_Kept = MergedWindows | OrderedExpression | ForwardingEntry
"""The state of one expression, by its kind."""


def _passed_on(node: str, text: bytes, number: int, topic: bytes, message: ForwardedMessage) -> ExpressionResult:
    return ExpressionResult(
        node, text, number, message.payload, topic, message.qos, message.properties, message.expires_us
    )  # fmt: skip


def is_complete(entry: Entry, end_us: int) -> bool:
    """Was everything there that is part of the window, if it is one?"""
    periodic = entry.expression.periodic
    if periodic is None:
        return True
    begin_us = end_us - entry.settings.period_us(periodic.period)
    return max(begin_us, entry.since_us) >= entry.beginning.complete_us


def _named(entry: Entry) -> str:
    return f"{entry.text.decode()} of node {entry.node}"


class PartMergeFiles:
    """`state-N` holds everything up to batch N, `batches-N` what came after it."""

    def __init__(self, directory: Path, registries: Callable[[int], Registry]) -> None:
        self._directory = directory
        self._registries = registries
        self._log: BinaryIO | None = None
        self._written = self._batches = self._snapshot_bytes = 0
        self.last_batch = -1

    def load(self, merge: PartMerge) -> list[ExpressionResult]:
        """Bring back what was; results since the last snapshot may have been delivered or not."""
        self._directory.mkdir(parents=True, exist_ok=True)
        owed: list[ExpressionResult] = []
        try:
            state = self._newest()
            if state >= 0:
                content = (self._directory / f"state-{state}").read_bytes()
                kept = msgspec.msgpack.decode(content, type=_MergeSnapshot)
                merge.restore(kept.registry, kept.wholes, kept.waiting)
                self._snapshot_bytes = len(content)
                self.last_batch, owed = kept.batch, kept.owed
            log = self._directory / f"batches-{state}"
            read = list(_read(log.read_bytes() if log.exists() else b""))
            for batch, _ in read:
                self._apply(merge, batch, owed.extend)
        except (OSError, msgspec.DecodeError, StateError) as error:
            raise PipelineError(f"{self._directory} cannot be gone on from: {error}") from None
        self._open(state, read[-1][1] if read else 0)
        return owed

    def take(
        self,
        merge: PartMerge,
        batch: PartBatch,
        hand_in: Callable[[list[ExpressionResult]], None],
        *,
        repeats: bool = True,
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
        results = self._apply(merge, batch, hand_in)
        if repeats:
            self._keep(batch)
        return results

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
        assert self._log is not None
        body = msgspec.msgpack.encode(batch)
        self._log.write(len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body)
        self._log.flush()
        os.fsync(self._log.fileno())
        self._written += len(body)
        self._batches += 1

    @property
    def is_snapshot_due(self) -> bool:
        # A great state is not written again and again for a little more.
        return self._batches >= SNAPSHOT_BATCHES or self._written >= max(SNAPSHOT_BYTES, 2 * self._snapshot_bytes)

    def snapshot(self, merge: PartMerge, owed: list[ExpressionResult]) -> None:
        """Everything so far, `owed` with it: results that nobody is known to have."""
        batch = self.last_batch
        kept = _MergeSnapshot(batch, merge.registry, merge.snapshot(), owed, merge.buffer.waiting)
        content = msgspec.msgpack.encode(kept)
        replace_shared_file(self._directory / f"state-{batch}", content)
        self._snapshot_bytes = len(content)
        self._open(batch, 0)
        for file in self._directory.iterdir():
            name, _, number = file.name.partition("-")
            if name in ("state", "batches") and number.isdigit() and int(number) < batch:
                file.unlink()
        (self._directory / "batches--1").unlink(missing_ok=True)

    def _newest(self) -> int:
        found = (_STATE.fullmatch(file.name) for file in self._directory.iterdir())
        return max((int(one[1]) for one in found if one), default=-1)

    def _open(self, state: int, size: int) -> None:
        """Go on with the batches after a snapshot; what is torn at the end is cut."""
        self.close()
        self._log = (self._directory / f"batches-{state}").open("ab")
        self._log.truncate(size)
        self._written, self._batches = size, 0

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _read(log: bytes) -> Iterable[tuple[PartBatch, int]]:
    """Batches that are there wholly, each with where it ends."""
    place = 0
    while place + _HEAD_BYTES <= len(log):
        size = int.from_bytes(log[place : place + 4], "big")
        body = log[place + _HEAD_BYTES : place + _HEAD_BYTES + size]
        if len(body) < size or zlib.crc32(body).to_bytes(4, "big") != log[place + 4 : place + _HEAD_BYTES]:
            return
        place += _HEAD_BYTES + size
        yield msgspec.msgpack.decode(body, type=PartBatch), place
