"""All that a task has to know of the expressions of a batch, prepared once for an edition of the registry.

The driver sends the number of the edition; tasks read it where all machines see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sterna.mqtt.topics import covers, levels_of
from sterna.pipeline.expressions import rule_forwarding
from sterna.pipeline.expressions.lane_choice import lane_of
from sterna.pipeline.expressions.matching import COLUMNS, Matcher, Row
from sterna.pipeline.expressions.registry import Entry, RegistryFiles
from sterna.pipeline.expressions.value_extraction import ORDER_COLUMNS, ValueExtractor
from sterna.runtime.feed.requests import FILTERS_MAX
from sterna.runtime.functions.settings import FunctionTable

LaneRow = tuple[int, Row]


@dataclass(frozen=True)
class ExpressionChoice:
    """Which expressions of an edition."""

    registry: str
    run: str
    """Of the job: a worker may outlive a registry, and another begin in the same place."""
    edition: int
    fresh_from: int
    """Those with smaller numbers have had the messages in question."""
    lanes: int
    table: FunctionTable | None = None
    """Those with a data processing function, and no others; None: all others."""


class BatchExpressions:
    def __init__(self, entries: tuple[Entry, ...], lanes: int, table: FunctionTable | None) -> None:
        self._lanes = lanes
        self._matcher = Matcher([entry for entry in entries if not entry.needs_order])
        in_order = [entry for entry in entries if entry.needs_order]
        by_lane: dict[int, list[Entry]] = {}
        for entry in in_order:
            by_lane.setdefault(lane_of(entry, lanes), []).append(entry)
        self._extractors = [(lane, ValueExtractor(mine, table)) for lane, mine in sorted(by_lane.items())]
        passes = any(entry.expression.forwards for entry in in_order)
        #: Columns of the feed; None: those of a message's parts.
        self.columns: tuple[str, ...] = COLUMNS
        if in_order:
            self.columns = (*ORDER_COLUMNS, *rule_forwarding.COLUMNS) if passes else ORDER_COLUMNS
        self.filters = filters_of(entries)
        self.is_empty = not entries

    def rows(self, journals: Iterator[tuple[str, Iterator[Any]]], kind: int) -> Iterator[list[LaneRow]]:
        """Of the batches of messages of journals; `kind`: of what messages say in order."""
        extracted: list[LaneRow] = []

        def batches() -> Iterator[Any]:
            for journal, some in journals:
                for batch in some:
                    for lane, extractor in self._extractors:
                        extracted.extend((lane, (kind, 0, values)) for values in extractor.extract(journal, batch))
                    yield batch

        for rows in self._matcher.parts(batches()):
            yield [(row[0] % self._lanes, row) for row in rows] + extracted
            extracted.clear()


def filters_of(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """Nodes leave out the rest, if the filters are few enough to be told; one that is contained in another is not."""
    filters = {levels_of(entry.expression.topic_filter) for entry in entries}
    if len(filters) > FILTERS_MAX:
        return ()
    widest = [one for one in filters if not any(covers(other, one) for other in filters if other != one)]
    return tuple(sorted(b"/".join(levels).decode() for levels in widest))


def of_kind(entries: tuple[Entry, ...], *, computed: bool) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if bool(entry.expression.function) == computed)


@lru_cache(maxsize=8)
def expressions_of(choice: ExpressionChoice) -> BatchExpressions:
    """A worker keeps what it has prepared for an edition."""
    registry = RegistryFiles(choice.registry).load(choice.edition)
    mine = of_kind(registry.entries, computed=choice.table is not None)
    fresh = tuple(entry for entry in mine if entry.number >= choice.fresh_from)
    return BatchExpressions(fresh, choice.lanes, choice.table)
