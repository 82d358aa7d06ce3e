"""The batch and stream readers behind `format("sterna")`: the messages of a network as one table.

Offsets are {journal: offset}.  The driver only asks nodes how far their journals reach; the rows go from the nodes to
the tasks.  A batch is exactly the ranges between two offsets, so a batch that runs again holds the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.feed.errors import FeedError, Unreachable
from sterna.pipeline.offsets import (
    END,
    SPLIT_ROWS_MIN,
    Offsets,
    OffsetSpec,
    Range,
    advance,
    capped,
    identity_of,
    in_order,
    named_as_in,
    node_of,
    packed,
    ranges,
)
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.cursors import Cursors
from sterna.pipeline.source.gaps import FORGOTTEN, REPLACED, JournalGap, lose, make_room
from sterna.pipeline.source.nodes import (
    WAIT_MS,
    Seen,
    Watch,
    ask,
    by_journal,
    check_place,
    patiently,
    resolve,
    sealed_files,
    survey,
    whole_network,
)
from sterna.pipeline.source.range_reader import read_range
from sterna.pipeline.source.sealed_segments import SealedRange, before_the_journal, read_sealed
from sterna.pipeline.worker_tuning import settle

NEWS_S = 0.25
"""How long `latestOffset` waits for something new: Spark asks again at once."""


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """The part that one task reads: ranges, and where their nodes were last seen."""

    parts: tuple[Range, ...]
    addresses: tuple[tuple[str, str], ...]
    sealed: tuple[SealedRange, ...] = ()


def plan(
    start: Offsets, end: Offsets, options: ReadOptions, nodes: Mapping[str, Seen], task_rows: int = SPLIT_ROWS_MIN
) -> list[TablePartition]:
    addresses = {seen.name: seen.address for seen in nodes.values()}
    return [
        TablePartition(
            tuple(parts), tuple((part.node, at) for part in parts if (at := addresses.get(node_of(part.node))))
        )
        for parts in packed(ranges(start, end), options.tasks, task_rows)
    ]


def read(piece: TablePartition, options: ReadOptions) -> Iterator[Any]:
    for file in piece.sealed:
        yield from read_sealed(file, options)
    addresses = dict(piece.addresses)
    for part in piece.parts:
        yield from read_range(part, addresses.get(part.node), options)
    settle()


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[TablePartition]:
        make_room(self._options)
        return patiently(self._options, self._plan)

    def _plan(self) -> list[TablePartition]:
        options = self._options
        nodes = by_journal(whole_network(options))
        check_place(options.starting, nodes, "startingOffsets")
        check_place(options.ending, nodes, "endingOffsets")
        end = {name: resolve(options.access, seen, _ending(options.ending, seen)) for name, seen in nodes.items()}
        start = {name: resolve(options.access, seen, options.starting) for name, seen in nodes.items()}
        sealed: list[TablePartition] = []
        if options.parquet is not None:
            for name, seen in nodes.items():
                files = before_the_journal(seen, sealed_files(options.access, seen), end[name], options)
                sealed += [TablePartition((), (), (file,)) for file in files]
                start[name] = max(start[name], seen.first)
        # A task for nothing, rather than no task: Spark then has the table's columns even if no node has a message.
        return sealed + plan(start, end, options, nodes) or [TablePartition((), ())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TablePartition)
        return read(partition, self._options)


def _ending(place: OffsetSpec, seen: Seen) -> OffsetSpec:
    """A node that the explicit offsets do not name is read to its end."""
    return END if place.offsets and not {seen.journal, seen.name} & set(place.named()) else place


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object in one process for the life of a query; copies of it go to the tasks and only read."""

    def __init__(self, options: ReadOptions, wait_ms: int = WAIT_MS, task_rows: int = SPLIT_ROWS_MIN) -> None:
        self._options = options
        self._wait_ms = wait_ms
        self._task_rows = task_rows
        self._cursors = Cursors(options.access)
        self._watch: Watch | None = None
        self._initial: Offsets | None = None
        self._entered: Offsets = {}
        self._nodes: dict[str, Seen] = {}
        """As they were last seen."""
        self._last: Offsets | None = None
        """Where a query ends that takes only what is there now."""

    def __getstate__(self) -> ReadOptions:
        return self._options

    def __setstate__(self, options: ReadOptions) -> None:
        self.__init__(options)  # type: ignore[misc]  # a copy begins where a new one does: with its options alone

    # -- how far --

    def initialOffset(self) -> dict[str, int]:
        """Asked for again until the first batch is done: the nodes remember what a named reader was told first."""
        if self._initial is None:
            make_room(self._options)
            self._initial = patiently(self._options, self._begin)
        return dict(self._initial)

    def _begin(self) -> Offsets:
        access, place = self._options.access, self._options.starting
        self._nodes = by_journal(survey(access, self._options.nodes, all_of_them=True))
        check_place(place, self._nodes, "startingOffsets")
        begun = {name: self._cursors.begin(seen, resolve(access, seen, place)) for name, seen in self._nodes.items()}
        return in_order(begun)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """It holds what all nodes have now: as of a batch read, none may be missing."""
        self._nodes = by_journal(patiently(self._options, lambda: whole_network(self._options)))
        self._last = {name: seen.next for name, seen in self._nodes.items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        heads = self._last if self._last is not None else self._news(start)
        start = self.named(start)
        heads = {name: self._checked(name, start.get(name, 0), head) for name, head in heads.items()}
        new = [name for name in heads if name not in start]
        self._check_forgotten(new, start)
        self._enter(new)
        end = advance(start, heads, self._entered)
        return capped(start, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return in_order({name: seen.next for name, seen in self._nodes.items()})

    def named(self, offsets: Offsets) -> Offsets:
        """Under the names that the journals in sight have."""
        return named_as_in(offsets, [journal for journal, seen in self._nodes.items() if seen.durable])

    def watch(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._options.access, self._options.nodes, self._wait_ms)
        return self._watch

    def in_sight(self) -> dict[str, Seen]:
        """Nodes that are there, by name, as the last offset was made of them."""
        here = set(self._watch.nodes()) if self._watch is not None else set()
        return {seen.name: seen for seen in self._nodes.values() if seen.name in here}

    def heard_of(self) -> set[str]:
        """Names of nodes that others say there are, whether they were ever in sight or not."""
        return self._watch.heard_of() if self._watch is not None else set()

    def _news(self, start: Offsets) -> Offsets:
        """How far the nodes in sight are; waits a little while that is where the query is already."""
        watch = self.watch()
        watch.wait_for(lambda nodes: any(seen.next > start.get(seen.journal, -1) for seen in nodes.values()), NEWS_S)
        in_sight = by_journal(watch.nodes())
        names = {seen.name for seen in in_sight.values()}
        others = {journal: seen for journal, seen in self._nodes.items() if seen.name not in names}
        self._nodes = {**others, **in_sight}
        return {journal: seen.next for journal, seen in in_sight.items()}

    def _enter(self, names: Iterable[str]) -> None:
        """Nodes met now: all they keep is new to this query.  A node that has left again is met another time."""
        for name in names:
            if name not in self._entered:
                seen = self._nodes[name]
                with suppress(Unreachable):
                    self._entered[name] = self._cursors.begin(seen, seen.first)

    def _checked(self, name: str, start: int, head: int) -> int:
        """A node that has fewer messages than were read from it has lost its journal; asked again, to be sure."""
        if head >= start:
            return head
        try:
            seen, _ = ask(self._options.access, self._nodes[name].address)
        except Unreachable:
            return start
        if seen.next >= start or seen.journal != name:
            return start
        cause = f"{REPLACED}; its new journal, with {seen.next}, is read from its beginning"
        lose(JournalGap.of(name, start, start, None, cause), self._options)
        return seen.first

    def _check_forgotten(self, new: Iterable[str], start: Offsets) -> None:
        """A new journal of a node that is known: what was not read of the one before is gone."""
        for journal in new:
            known = [one for one in start if node_of(one) == node_of(journal)]
            if known and journal not in self._entered:
                before = max(known, key=lambda one: (len(identity_of(one)), identity_of(one)))
                is_on_disk = self._nodes[journal].durable
                cause = f"{REPLACED}; its new journal is read from its beginning" if is_on_disk else FORGOTTEN
                lose(JournalGap.of(before, start[before], start[before], None, cause), self._options)

    # -- the rows --

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[TablePartition]:
        if not {part.node for part in ranges(start, end)} <= set(self._nodes):
            with suppress(NodesMissing, FeedError):  # tasks have patience, and look for nodes themselves
                self._nodes.update(by_journal(survey(self._options.access, self._options.nodes, all_of_them=False)))
        return plan(start, end, self._options, self._nodes, self._task_rows)

    def pieces(self, parts: Sequence[Range]) -> list[TablePartition]:
        """Other ranges, dealt out to tasks."""
        start = {part.node: part.start for part in parts}
        return plan(start, {part.node: part.stop for part in parts}, self._options, self._nodes, self._task_rows)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TablePartition)
        return read(partition, self._options)

    def commit(self, end: dict[str, int]) -> None:
        self._cursors.commit(self._nodes, end, at_once=self._last is not None)
