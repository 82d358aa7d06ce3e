"""The stream of parts: one query for all expressions that nodes leave to Spark, while expressions come and go.

An offset holds how far each journal is read, the edition of the registry, and the instant that all nodes have passed.
Two offsets determine a batch: the ranges for all expressions, and for new expressions also the messages between their
subscription and the first range.  Tasks read, match and aggregate.  They emit parts, and for expressions that need
order the values or the whole messages, each for the lane that has the expression (`lane_choice`).

Expressions with a data processing function are a query of their own, so that a slow function delays no other
expression: with the option `functions` the stream has these alone, without it all others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from sterna.pipeline.expressions.batch_expressions import ExpressionChoice, LaneRow, expressions_of, of_kind
from sterna.pipeline.expressions.function_tasks import from_text
from sterna.pipeline.expressions.matching import (
    COLUMNS,
    EXTRACTED,
    LATE,
    MISSED,
    SPARK_PARTS,
    TICK,
    parts_batch,
)
from sterna.pipeline.expressions.registry import (
    Entry,
    ReadingStart,
    Registry,
    RegistryFiles,
    expression_of,
    needs_order,
)
from sterna.pipeline.expressions.trigger_pacing import TriggerPacing
from sterna.pipeline.feed.client import WantedExpressions
from sterna.pipeline.feed.errors import FeedError, FeedRefused
from sterna.pipeline.offsets import Offsets, Range, capped, named_as_in, node_of, ranges
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import Seen, open_feed
from sterna.pipeline.source.readers import StreamReader, TablePartition, read
from sterna.pipeline.source.time_alignment import came_in
from sterna.runtime.functions.settings import FunctionTable

NAME = "sterna_operators"
WAIT_MS = 200
"""How long a request for news stays at a node: so late may be what is known of the time there."""
BREATH_S = 0.05
"""Between an answer and the next request: batches are seconds apart, and a result may be that late."""
TASK_ROWS = 200_000
"""Ranges shorter than this are not worth a task of their own: by columns, that is a tenth of a second."""
ENOUGH_ROWS = 400_000
"""With so many unread a batch is worth its planning, which takes the driver as long whatever there is to read."""
HELD_ROWS_MAX = 500_000
"""While an expression needs order: messages that are read, and may have to wait, until it is later everywhere."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""The same of journals, and at most so many rows of them, while there are rules that pass messages on."""
PASSED_ROWS_MAX = 50_000
COMPUTED_ROWS_MAX = 10_000
"""Messages of a batch whose functions are called: when it is broken off, it is done again."""
AHEAD_US = 1_000_000
"""By so much a message may be newer than what its node said of the time when it was read."""
MARGIN_US = 5_000_000
"""Read from that much before a subscription: clocks are set, and messages carry their own times."""


@dataclass(frozen=True)
class PartsPartition(InputPartition):
    """The partition that one task reads, and for whom."""

    piece: TablePartition
    edition: int
    fresh_from: int = 0
    """Only for entries of this number or a greater one."""
    tick: tuple[int, int] | None = None
    """How late it is, and the edition."""
    is_missed: bool = False
    """Others have had it before these entries were known."""
    closed_us: int = 0
    """Windows that ended by then are closed: a message that came in before is late."""


@dataclass(frozen=True)
class JobOptions:
    """The options of the stream besides those of a read."""

    registry: str
    """Directory, as all machines see it."""
    owed: str
    """A file that is there while nodes have not taken all their results."""
    lanes: int = 1
    run: str = ""
    away_s: float = 60.0
    table: FunctionTable | None = None

    @classmethod
    def taken(cls, words: dict[str, str]) -> JobOptions:
        functions = words.pop("functions", None)
        registry = words.pop("registry")
        return cls(
            registry,
            words.pop("owed", str(Path(registry).with_name("owed"))),
            int(words.pop("lanes", "1")),
            words.pop("run", ""),
            float(words.pop("awayseconds", "60")),
            None if functions is None else from_text(functions),
        )


class PartsSource(DataSource):
    """Options are those of the source `sterna`, and `registry`, a directory, `lanes`, `run`, `owed`, `awaySeconds`, and
    `functions`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        words = {name.lower(): text for name, text in options.items()}
        self._job = JobOptions.taken(words)
        self._options = replace(ReadOptions.parse(words, streaming=True), columns=COLUMNS)

    def schema(self) -> str:
        return SPARK_PARTS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PartsReader(self._options, self._job)


@dataclass(frozen=True)
class _Kinds:
    """The demands of an edition on this stream."""

    edition: int
    entries: tuple[Entry, ...]
    is_ordered: bool
    passes: bool


_Arguments = tuple[ReadOptions, JobOptions]


class PartsReader(DataSourceStreamReader):
    """One object in one process for the life of a query; copies of it go to the tasks and only read."""

    def __init__(self, options: ReadOptions, job: JobOptions) -> None:
        self._arguments: _Arguments = (options, job)
        self._options = options
        self._job = job
        self._table = job.table
        self._away_s = job.away_s
        self._stream = StreamReader(options, WAIT_MS, TASK_ROWS, BREATH_S)
        self._pacing = TriggerPacing()
        self._files = RegistryFiles(job.registry)
        #: A batch has two editions at most; one of 10,000 expressions takes longer to read than all else of a plan.
        self._load = lru_cache(maxsize=2)(self._files.load)
        self._registry: Registry | None = None
        self._kinds = _Kinds(-1, (), is_ordered=False, passes=False)
        #: Node -> when it was last in sight, by the steady clock, and how late it was there.
        self._sights: dict[str, float] = {}
        self._times: dict[str, int] = {}
        #: Rows, and bytes of them, that may have to wait, and how late it must be for none of all rows to.
        self._held = 0
        self._held_bytes = 0
        self._waiting_us = int(time.time() * 1e6)

    def __getstate__(self) -> _Arguments:
        return self._arguments

    def __setstate__(self, arguments: _Arguments) -> None:
        self.__init__(*arguments)  # type: ignore[misc]  # a copy begins where a new one does

    # -- how far --

    def initialOffset(self) -> dict[str, Any]:
        return {"nodes": self._stream.initialOffset(), "registry": 0, "time_us": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        registry, read = self._known(), self._stream.named(start["nodes"])
        # To put messages in order, or to call a function, takes long: that is not left until a window has ended.
        enough = 1 if self._mine(registry).is_ordered else ENOUGH_ROWS
        self._pacing.rest(
            self._stream.watch(), registry, start["time_us"], lambda nodes: _unread(read, nodes) >= enough
        )
        end = self._latest(start)
        if end != start:
            self._pacing.begin()
        return end

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        nodes = self._stream.latest(start["nodes"])
        here = self._stream.in_sight()
        read = self._stream.named(start["nodes"])
        registry = self._learn(here, read)
        is_ordered = self._mine(registry).is_ordered
        sizes: dict[str, int] = {}
        if is_ordered:
            nodes, sizes = self._capped(read, nodes, here, registry)
            self._look_ahead(nodes, here)
        time_us = max(start["time_us"], self._log_time(nodes, here))
        is_waited_for = is_ordered and start["time_us"] <= self._waiting_us and time_us > start["time_us"]
        if (
            nodes == start["nodes"]
            and registry.edition == start["registry"]
            and self._pacing.next_end(registry, start["time_us"]) > time_us
            and not is_waited_for
            and not (time_us > start["time_us"] and Path(self._job.owed).exists())
        ):
            return start
        parts = ranges(read, nodes)
        self._hold(parts, sizes, time_us, is_later=time_us > start["time_us"])
        if parts:
            self._waiting_us = max((seen.time_us for seen in here.values()), default=time_us) + AHEAD_US
        return {"nodes": nodes, "registry": registry.edition, "time_us": time_us}

    def _hold(self, parts: list[Range], sizes: Mapping[str, int], time_us: int, *, is_later: bool) -> None:
        """Counts rows and bytes that wait behind this batch: few of nodes where it is that late and no later."""
        held, held_bytes = (0, 0) if is_later else (self._held, self._held_bytes)
        for part in parts:
            if not is_later or self._times.get(node_of(part.node), 0) > time_us:
                held += part.rows
                held_bytes += sizes.get(part.node, 0)
        self._held, self._held_bytes = held, held_bytes

    def _mine(self, registry: Registry) -> _Kinds:
        if registry.edition != self._kinds.edition:
            entries = of_kind(registry.entries, computed=self._table is not None)
            self._kinds = _Kinds(
                registry.edition,
                entries,
                is_ordered=any(entry.needs_order for entry in entries),
                passes=any(entry.expression.forwards for entry in entries),
            )
        return self._kinds

    def _capped(
        self, start: Offsets, end: Offsets, here: dict[str, Seen], registry: Registry
    ) -> tuple[Offsets, dict[str, int]]:
        """Not further than may be held at once; and how many bytes that is of a journal, where it matters."""
        if self._table is not None:
            return capped(start, end, COMPUTED_ROWS_MAX), {}
        if not self._mine(registry).passes:
            return capped(start, end, max(0, HELD_ROWS_MAX - self._held)), {}
        end = capped(start, end, max(0, PASSED_ROWS_MAX - self._held))
        sizes: dict[str, int] = {}
        room = max(1, HELD_BYTES_MAX - self._held_bytes) // max(1, len(here))
        for seen in here.values():
            if start.get(seen.journal, seen.next) < end.get(seen.journal, 0):
                try:
                    with open_feed(self._options.access, seen.address) as feed:
                        reached, there = feed.reach(start[seen.journal], max(1, room))
                except FeedRefused:  # a node of an earlier release: by rows alone
                    continue
                except FeedError:
                    reached, there = start[seen.journal], 0
                end[seen.journal] = min(end[seen.journal], reached)
                sizes[seen.journal] = there
        return end, sizes

    def _look_ahead(self, nodes: Offsets, here: dict[str, Seen]) -> None:
        """A node of which not everything is read: it is as late there as when the next message came in."""
        for seen in here.values():
            offset = nodes.get(seen.journal, seen.next)
            if offset < seen.next:
                with suppress(FeedError), open_feed(self._options.access, seen.address) as feed:
                    self._times[seen.name] = max(self._times.get(seen.name, 0), came_in(feed, offset))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def _log_time(self, nodes: Offsets, here: dict[str, Seen]) -> int:
        """By then everything has been read, of all nodes that are not away for too long."""
        for seen in here.values():
            if nodes.get(seen.journal, -1) >= seen.next:
                self._times[seen.name] = seen.time_us
        return min((self._times.get(name, 0) for name in self._expected(nodes, here)), default=0)

    def _expected(self, nodes: Offsets, here: Mapping[str, Seen]) -> set[str]:
        """Names of the nodes that are here or not away for too long, be they only heard of."""
        now = time.monotonic()
        self._sights.update(dict.fromkeys(here, now))
        names = {node_of(journal) for journal in nodes} | self._stream.heard_of()
        return {name for name in names if name in here or now - self._sights.setdefault(name, now) < self._away_s}

    def _learn(self, here: dict[str, Seen], start: Offsets) -> Registry:
        """Expressions that nodes want by now; a node that cannot be asked is asked the next time.  `start`: how far all
        is read.

        While a node is out of sight, no node is asked: the offset from which to read the missing node's journal for a
        new expression would be unknown, and what was read before would be missing for good.
        """
        before = registry = self._known()
        if not self._expected(start, here) <= here.keys():
            return registry
        for seen in here.values():
            if registry.is_news(seen.name, seen.epoch, seen.edition):
                try:
                    registry = self._told(registry, seen, here, start)
                except FeedError:
                    continue
        if registry.edition != before.edition:
            self._files.keep(registry)
        self._registry = registry
        return registry

    def _known(self) -> Registry:
        if self._registry is None:
            self._registry = self._files.newest()
        return self._registry

    def _told(self, registry: Registry, seen: Seen, here: dict[str, Seen], start: Offsets) -> Registry:
        with open_feed(self._options.access, seen.address) as feed:
            wanted = self._chosen(feed.expressions())
        fresh = registry.fresh(seen.name, seen.epoch, wanted)
        beginning = near = ReadingStart()
        if fresh:
            beginning = self._beginning(min(since_us for _, since_us in fresh), here)
        in_order = [since_us for text, since_us in fresh if needs_order(text)]
        passes = any(expression_of(text).forwards for text, _ in fresh)
        if in_order:
            back = HELD_ROWS_MAX // len(here)
            nearest = {one.journal: start.get(one.journal, 0) - back for one in here.values()}
            near = self._beginning(min(in_order), here, self._light(nearest, start, here) if passes else nearest)
        return registry.told(seen.name, seen.epoch, seen.edition, wanted, beginning, near)

    def _chosen(self, wanted: WantedExpressions) -> WantedExpressions:
        """The query for functions knows of no others; the other one knows of all, and leaves these to it."""
        if self._table is None:
            return wanted
        expressions = [one for one in wanted.expressions if expression_of(one[0]).function]
        return WantedExpressions(wanted.settings, expressions)

    def _light(self, nearest: Mapping[str, int], start: Offsets, here: dict[str, Seen]) -> dict[str, int]:
        """So near that what lies between there and `start` may be held at once, messages and all."""
        found, room = dict(nearest), HELD_BYTES_MAX // len(here)
        for seen in here.values():
            with open_feed(self._options.access, seen.address) as feed:
                first, upto = max(seen.first, found[seen.journal]), start.get(seen.journal, 0)
                while first < upto and feed.reach(first, room)[0] < upto:
                    first = (first + upto + 1) // 2
                found[seen.journal] = first
        return found

    def _beginning(
        self, since_us: int, here: dict[str, Seen], nearest: Mapping[str, int] | None = None
    ) -> ReadingStart:
        """`nearest`: not before these."""
        # Of a node that is away for too long nothing is made up for: it was read up to then for others.
        complete_us = max((time_us for name, time_us in self._times.items() if name not in here), default=0)
        offsets = []
        for seen in here.values():
            first = max(seen.first, (nearest or {}).get(seen.journal, 0))
            with open_feed(self._options.access, seen.address) as feed:
                offset = max(first, feed.offset_at(since_us - MARGIN_US))
                offsets.append((seen.journal, offset))
                if 0 < offset == first:  # what came before it is gone, or too much, and may have been of interest
                    complete_us = max(complete_us, came_in(feed, offset))
        return ReadingStart(tuple(sorted(offsets)), complete_us)

    # -- the rows --

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[PartsPartition]:
        edition = end["registry"]
        entries = self._mine(self._load(edition)).entries
        pieces = self._stream.partitions(start["nodes"], end["nodes"]) if entries else []
        found = [PartsPartition(one, edition, closed_us=start["time_us"]) for one in pieces]
        if start["registry"] != edition:
            following = self._load(start["registry"]).following
            fresh = tuple(entry for entry in entries if entry.number >= following)
            missed = self._stream.pieces(_missed(fresh, named_as_in(start["nodes"], end["nodes"])))
            found += [PartsPartition(one, edition, following, is_missed=True) for one in missed]
        first, *others = found or [PartsPartition(TablePartition((), ()), edition)]
        return [replace(first, tick=(end["time_us"], edition)), *others]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PartsPartition)
        if partition.tick is not None:
            time_us, edition = partition.tick
            said = (TICK, time_us, edition.to_bytes(8, "big"))
            yield parts_batch([(lane, said) for lane in range(self._job.lanes)])
        if partition.piece.parts:
            late = LateMessages(partition.closed_us)
            yield from map(parts_batch, self._rows(partition, late))
            if late.count:
                yield parts_batch([(0, (LATE, late.count, b""))])

    def _rows(self, partition: PartsPartition, late: LateMessages) -> Iterator[list[LaneRow]]:
        job = self._job
        wanted = expressions_of(
            ExpressionChoice(job.registry, job.run, partition.edition, partition.fresh_from, job.lanes, job.table)
        )
        # The matching looks at every topic, and does not need this done before.
        options = replace(self._options, topics=wanted.filters, sift=False, columns=wanted.columns)
        journals = (
            (part.node, late.counted(read(replace(partition.piece, parts=(part,)), options)))
            for part in partition.piece.parts
        )
        return wanted.rows(journals, MISSED if partition.is_missed else EXTRACTED)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end["nodes"])


class LateMessages:
    """Counts the messages of a task that came in before an instant."""

    def __init__(self, before_us: int) -> None:
        self.count = 0
        self._before = pa.scalar(before_us, pa.timestamp("us", "UTC"))

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.count += pc.sum(pc.less(batch.column("ingress_time"), self._before)).as_py() or 0
            yield batch


def _unread(read: Offsets, nodes: Mapping[str, Seen]) -> int:
    return sum(seen.next - read.get(seen.journal, seen.next) for seen in nodes.values())


def _missed(fresh: tuple[Entry, ...], start: Offsets) -> list[Range]:
    """Ranges that were read before anybody knew of these expressions."""
    first: Offsets = {}
    for entry in fresh:
        for journal, offset in entry.beginning.offsets:
            first[journal] = min(offset, first.get(journal, offset))
    return [
        Range(journal, offset, start[journal])
        for journal, offset in sorted(first.items())
        if offset < start.get(journal, 0)
    ]
