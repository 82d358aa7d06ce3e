"""Merges the parts of the expressions of one lane, batch after batch.

Windows get parts; expressions that need order get values (`ordered_evaluation`).  A `PartMerge` is a function of the
batches so far: `LaneFiles` restores it from a snapshot and the batches after it.  So a crash at any moment loses no
result and changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from sterna.operators.window_division import MergedWindows
from sterna.pipeline.expressions.lane_choice import ALONE, ExpressionLane
from sterna.pipeline.expressions.matching import EXTRACTED, MISSED, Row
from sterna.pipeline.expressions.ordered_evaluation import OrderedExpression, ReorderBuffer, Waiting
from sterna.pipeline.expressions.registry import Entry, Registry
from sterna.pipeline.expressions.rule_forwarding import ForwardedMessage, ForwardingEntry, RuleForwarding


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
    waiting: list[str] | None = None
    """Nodes that had not taken all results up to this batch when it was written down; None: nobody knows."""
    is_told_again: bool = False
    """It stands somewhere else with its rows."""


class PartMerge:
    def __init__(
        self, tell: Callable[[str], None] = lambda _line: None, *, computed: bool = False, lane: ExpressionLane = ALONE
    ) -> None:
        """`computed`: of expressions with a data processing function, and no others."""
        self.registry = Registry()
        self._computed = computed
        self._lane = lane
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
            if bool(entry.expression.function) != self._computed or not self._lane.has(entry):
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
            if number in self._wholes:  # else it is another lane's
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
