"""The batch and stream readers behind `format("sterna")`: the messages of a network as one table.

Offsets are {journal: offset}.  The driver only asks nodes how far their journals reach; the rows go from the nodes to
the tasks.  A batch is exactly the ranges between two offsets, so a batch that runs again holds the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sterna.pipeline.conditions import are_of, asked_of_nodes, bounds
from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.feed.errors import FeedError, Unreachable
from sterna.pipeline.offsets import (
    END,
    SPLIT_ROWS_MIN,
    Offsets,
    OffsetSpec,
    Range,
    TaskCut,
    advance,
    capped,
    identity_of,
    in_order,
    named_as_in,
    node_of,
    packed,
    ranges,
    without_cut,
)
from sterna.pipeline.options import NO_LIMITS, ReadOptions, TriggerLimits
from sterna.pipeline.source.cursors import Cursors
from sterna.pipeline.source.gaps import FORGOTTEN, LATE, REPLACED, JournalGap, lose, make_room, note
from sterna.pipeline.source.journal_sizes import JournalSizes
from sterna.pipeline.source.kept_feeds import KeptFeeds
from sterna.pipeline.source.nodes import (
    BREATH_S,
    WAIT_MS,
    OffsetWatch,
    Seen,
    ask,
    by_journal,
    check_place,
    patiently,
    resolve,
    sealed_files,
    survey,
    whole_network,
)
from sterna.pipeline.source.pushed_filters import divided
from sterna.pipeline.source.range_reader import read_range
from sterna.pipeline.source.sealed_segments import SealedRange, before_the_journal, read_sealed
from sterna.pipeline.source.time_alignment import TimeAlignment
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
    pieces: list[Range], cut: TaskCut, nodes: Mapping[str, Seen], task_rows: int = SPLIT_ROWS_MIN
) -> list[TablePartition]:
    addresses = {seen.name: seen.address for seen in nodes.values()}
    return [
        TablePartition(
            tuple(parts), tuple((part.node, at) for part in parts if (at := addresses.get(node_of(part.node))))
        )
        for parts in packed(pieces, cut, task_rows)
    ]


#: A task for nothing, rather than no task: Spark then has the table's columns even if no node has a message.
NOTHING = TablePartition((), ())


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
        asked = asked_of_nodes(options.topics, options.conditions)
        if asked.is_nothing:
            return [NOTHING]
        nodes = by_journal(whole_network(options))
        check_place(options.starting, nodes, "startingOffsets")
        check_place(options.ending, nodes, "endingOffsets")
        nodes = {name: seen for name, seen in nodes.items() if are_of(seen.name, options.conditions)}
        end = {name: resolve(options.access, seen, _ending(options.ending, seen)) for name, seen in nodes.items()}
        start = {name: resolve(options.access, seen, options.starting) for name, seen in nodes.items()}
        sealed: list[TablePartition] = []
        if options.parquet is not None:
            for name, seen in nodes.items():
                files = before_the_journal(seen, sealed_files(options.access, seen), end[name], options)
                sealed += [TablePartition((), (), (file,)) for file in files]
                start[name] = max(start[name], seen.first)
        pieces = self._narrowed(ranges(start, end), nodes, asked.since_us)
        with closing(KeptFeeds(options.access)) as feeds:
            sizes = JournalSizes(feeds).of(pieces, nodes)
        return sealed + plan(pieces, options.task_size.cut(pieces, sizes), nodes) or [NOTHING]

    def _narrowed(self, pieces: list[Range], nodes: Mapping[str, Seen], since_us: int | None) -> list[Range]:
        """Without the ends of which no condition can be true."""
        first, stop = bounds(self._options.conditions)
        since = OffsetSpec(time_us=since_us)
        found = []
        for piece in pieces:
            begin = max(piece.start, first)
            if since_us is not None:
                begin = max(begin, resolve(self._options.access, nodes[piece.node], since))
            found.append(Range(piece.node, begin, min(piece.stop, stop)))
        return [piece for piece in found if piece.rows > 0]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TablePartition)
        return read(partition, self._options)


class FilteringReader(BatchReader):
    """One that Spark hands filters; see `pushed_filters`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        understood, rest = divided(filters, self._options.columns)
        self._options = replace(self._options, conditions=(*self._options.conditions, *understood))
        return rest


def _ending(place: OffsetSpec, seen: Seen) -> OffsetSpec:
    """A node that the explicit offsets do not name is read to its end."""
    is_named = bool({seen.journal, seen.name} & set(place.named()))
    return place if is_named or not place.named() else END


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object in one process for the life of a query; copies of it go to the tasks and only read."""

    def __init__(
        self,
        options: ReadOptions,
        wait_ms: int = WAIT_MS,
        task_rows: int = SPLIT_ROWS_MIN,
        breath_s: float = BREATH_S,
    ) -> None:
        self._options = options
        self._wait_ms, self._breath_s = wait_ms, breath_s
        self._task_rows = task_rows
        self._cursors = Cursors(options.access)
        self._watch: OffsetWatch | None = None
        self._initial: Offsets | None = None
        self._entered: Offsets = {}
        self._nodes: dict[str, Seen] = {}
        """As they were last seen."""
        self._feeds = KeptFeeds(options.access)
        self._sizes = JournalSizes(self._feeds)
        self._alignment: TimeAlignment | None = None
        if options.align is not None:
            self._alignment = TimeAlignment(self._feeds, *options.align, self._note_late)
        self._began_at = time.monotonic()
        """The last batch, by the steady clock."""
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
        """Spark knows one limit at a time; this tells it that there is one, and the options say which."""
        limits = self._options.limits
        return ReadMaxRows(limits.rows_max or 1 << 62) if limits.are_any else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """It holds what all nodes have now: as of a batch read, none may be missing."""
        self._nodes = by_journal(patiently(self._options, lambda: whole_network(self._options)))
        self._last = {name: seen.next for name, seen in self._nodes.items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next batch ends, and how it is cut; `start` itself if there is nothing for a batch yet."""
        begin = without_cut(start)
        limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
        end = self.latest(begin, limits.rows_min or 1)
        if self._alignment is not None:
            end = self._alignment.aligned(
                self.named(begin), end, self._here(), round(time.time() * 1e6), time.monotonic()
            )
        if end == begin:
            return start
        pieces = ranges(self.named(begin), end)
        if not self._is_due(sum(piece.rows for piece in pieces), limits):
            return start
        end = self._limited(self.named(begin), end, limits)
        pieces = ranges(self.named(begin), end)
        self._began_at = time.monotonic()
        return self._options.task_size.cut(pieces, self._sizes.of(pieces, self._nodes)).noted_in(end)

    def _note_late(self, journal: str, start: int, stop: int) -> None:
        note(JournalGap.of(journal, start, stop, stop - start, LATE), self._options)

    def _is_due(self, rows: int, limits: TriggerLimits) -> bool:
        """Few rows wait for others, but not for ever; a batch that only enters nodes does not."""
        if not rows or limits.rows_min is None or self._last is not None or rows >= limits.rows_min:
            return True
        return time.monotonic() - self._began_at >= limits.delay_s

    def _limited(self, start: Offsets, end: Offsets, limits: TriggerLimits) -> Offsets:
        if limits.rows_max is not None:
            end = capped(start, end, limits.rows_max)
        if limits.bytes_max is not None:
            end = self._sizes.capped(ranges(start, end), end, self._nodes, limits.bytes_max)
        return end

    def latest(self, start: Offsets, rows_min: int = 1) -> Offsets:
        """From `start` on as far as nodes in sight go.  Waits a little for as many rows."""
        heads = self._last if self._last is not None else self._news(start, rows_min)
        start = self.named(start)
        heads = {name: self._checked(name, start.get(name, 0), head) for name, head in heads.items()}
        new = [name for name in heads if name not in start]
        self._check_forgotten(new, start)
        self._enter(new)
        return advance(start, heads, self._entered)

    def reportLatestOffset(self) -> dict[str, int] | None:
        return in_order({name: seen.next for name, seen in self._nodes.items()})

    def named(self, offsets: Offsets) -> Offsets:
        """Under the names that the journals in sight have."""
        return named_as_in(offsets, [journal for journal, seen in self._nodes.items() if seen.durable])

    def watch(self) -> OffsetWatch:
        if self._watch is None:
            self._watch = OffsetWatch(self._options.access, self._options.nodes, self._wait_ms, self._breath_s)
        return self._watch

    def in_sight(self) -> dict[str, Seen]:
        """Nodes that are there, by name, as the last offset was made of them."""
        here = set(self._watch.nodes()) if self._watch is not None else set()
        return {seen.name: seen for seen in self._nodes.values() if seen.name in here}

    def _here(self) -> dict[str, Seen]:
        """Journals that can be read now; where only what was there is taken, they were all found."""
        return dict(self._nodes) if self._last is not None else by_journal(self.in_sight())

    def heard_of(self) -> set[str]:
        """Names of nodes that others say there are, whether they were ever in sight or not."""
        return self._watch.heard_of() if self._watch is not None else set()

    def _news(self, start: Offsets, rows_min: int) -> Offsets:
        """How far the nodes in sight are; waits a little while that is where the query is already."""
        watch = self.watch()

        def are_new(nodes: Mapping[str, Seen]) -> bool:
            steps = [seen.next - start.get(seen.journal, -1) for seen in nodes.values()]
            return sum(step for step in steps if step > 0) >= rows_min

        watch.wait_for(are_new, NEWS_S)
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
        pieces = ranges(without_cut(start), without_cut(end))
        if not {part.node for part in pieces} <= set(self._nodes):
            with suppress(NodesMissing, FeedError):  # tasks have patience, and look for nodes themselves
                self._nodes.update(by_journal(survey(self._options.access, self._options.nodes, all_of_them=False)))
        return plan(pieces, TaskCut.found_in(end) or self._usual_cut, self._nodes, self._task_rows)

    def pieces(self, parts: Sequence[Range]) -> list[TablePartition]:
        """Other ranges, dealt out to tasks."""
        return plan(list(parts), self._usual_cut, self._nodes, self._task_rows)

    @property
    def _usual_cut(self) -> TaskCut:
        return TaskCut(self._options.task_size.tasks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TablePartition)
        return read(partition, self._options)

    def commit(self, end: dict[str, int]) -> None:
        self._cursors.commit(self._nodes, without_cut(end), at_once=self._last is not None)

    def stop(self) -> None:
        self._feeds.close()
