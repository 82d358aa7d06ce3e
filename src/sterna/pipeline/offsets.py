"""Offsets of a reader, {journal: offset}, and the ranges it reads next.  Arithmetic only: no sockets, no Spark.

A journal is called `node@identity`.  A node gets another journal when its data directory is replaced, or when it keeps
its journal in memory and is started again.  Offsets of earlier releases have the bare name of the node; such a name
stands for the journal that the node has when it is next seen, and is replaced by that journal's name then.

Spark compares offsets as JSON text and plans a batch again after a crash.  Therefore everything here is sorted, and
the ranges of a batch depend on its two ends alone.  So do its tasks: the end of a batch also says how it is cut
(`TaskCut`), under names that no journal has.  A node that a query meets for the first time is entered at its first
offset and read from the next batch on: the content of a batch never depends on when a node was found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sterna.vocabulary.errors import ConfigurationError

Offsets = dict[str, int]

EARLIEST = "earliest"
LATEST = "latest"

#: Every task costs about 12 ms: ranges shorter than this are not worth one of their own.
SPLIT_ROWS_MIN = 20_000
ROWS_PER_TASK = 100_000
"""Of a read that nobody said the number of tasks of: a write of its rows is the same one on any machine."""


BEFORE_IDENTITY = "@"
"""Between the name of a node and the identity of its journal; no name of a node has it in it."""


def node_of(journal: str) -> str:
    return journal.partition(BEFORE_IDENTITY)[0]


def identity_of(journal: str) -> str:
    """Empty in offsets of earlier releases."""
    return journal.partition(BEFORE_IDENTITY)[2]


def named_as_in(start: Mapping[str, int], journals: Iterable[str]) -> Offsets:
    """The same offsets, those under a node's bare name under the journal that the node has among `journals`."""
    names = set(journals)
    found = {node_of(one): one for one in names if identity_of(one) and one not in start}
    return {
        found.get(journal, journal) if journal not in names else journal: offset for journal, offset in start.items()
    }


class Range(NamedTuple):
    """The messages of one journal from `start` up to and without `stop`."""

    node: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def in_order(offsets: Mapping[str, int]) -> Offsets:
    return dict(sorted(offsets.items()))


def advance(start: Mapping[str, int], heads: Mapping[str, int], firsts: Mapping[str, int]) -> Offsets:
    """From `start` on to `heads`; nodes out of sight stay where they were, new ones enter at what `firsts` says."""
    ahead = {node: heads.get(node, offset) for node, offset in start.items()}
    return in_order({**{node: first for node, first in firsts.items() if node not in start}, **ahead})


def capped(start: Mapping[str, int], end: Mapping[str, int], most: int) -> Offsets:
    """At most about `most` messages further than `start`: every node gets its share of them, and at least one."""
    behind = {node: end[node] - start[node] for node in end if node in start}
    total = sum(behind.values())
    if total <= most:
        return in_order(end)
    steps = {node: min(lag, max(1, lag * most // total)) for node, lag in behind.items()}
    return in_order({node: start[node] + steps[node] if node in start else offset for node, offset in end.items()})


_TASKS, _ROWS = "@tasks", "@rows "
"""Names of a cut among the journals; a journal's begins with the name of its node."""


class TaskCut(NamedTuple):
    """How the ranges of a batch are cut into tasks."""

    tasks: int
    """At most, unless ranges are cut into more pieces than that; each piece is then one."""
    rows: Mapping[str, int] = {}
    """Journal -> rows of it in a task, at most."""

    def noted_in(self, end: Mapping[str, int]) -> Offsets:
        """The end of the batch with this cut."""
        return in_order({**end, _TASKS: self.tasks, **{f"{_ROWS}{name}": rows for name, rows in self.rows.items()}})

    @classmethod
    def found_in(cls, end: Mapping[str, int]) -> TaskCut | None:
        """None in the end of a batch of an earlier release."""
        if _TASKS not in end:
            return None
        return cls(end[_TASKS], {name.removeprefix(_ROWS): n for name, n in end.items() if name.startswith(_ROWS)})


def without_cut(offsets: Mapping[str, int]) -> Offsets:
    return {name: offset for name, offset in offsets.items() if not name.startswith(BEFORE_IDENTITY)}


class TaskSize(NamedTuple):
    """How large tasks should be, as a user wants it."""

    tasks: int
    """Usual number of tasks in a batch; 0: one for each `ROWS_PER_TASK`, wherever it is planned."""
    tasks_min: int = 1
    """As many even if they are short."""
    rows_max: int | None = None
    bytes_max: int = 1 << 62

    def cut(self, pieces: Sequence[Range], sizes: Mapping[str, int]) -> TaskCut:
        """`sizes`: journal -> bytes of its range, as far as it is known."""
        total = sum(piece.rows for piece in pieces)
        rows: dict[str, int] = {}
        for piece in pieces:
            parts = max(1, -(-sizes.get(piece.node, 0) // self.bytes_max), -(-piece.rows // (self.rows_max or total)))
            if self.tasks_min > 1:
                parts = max(parts, -(-piece.rows * self.tasks_min // total))
            if parts > 1:
                rows[piece.node] = -(-piece.rows // parts)
        tasks = self.tasks or max(1, -(-total // ROWS_PER_TASK))
        return TaskCut(max(tasks, self.tasks_min), rows)


def ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """Ranges in between: none for a node that only enters, nor for one whose beginning is already behind."""
    start = named_as_in(start, end)
    return [Range(node, start[node], stop) for node, stop in sorted(end.items()) if start.get(node, stop) < stop]


def packed(pieces: list[Range], how: TaskCut, split_rows_min: int = SPLIT_ROWS_MIN) -> list[list[Range]]:
    """The ranges dealt out to tasks, long ones cut: a function of its arguments alone."""
    total = sum(piece.rows for piece in pieces)
    longest = max(split_rows_min, -(-total // max(1, how.tasks)))
    full: list[Range] = []
    others: list[Range] = []
    for piece in pieces:
        most = how.rows.get(piece.node, longest)
        (full if most < longest else others).extend(_cut(piece, min(most, longest)))
    return [[part] for part in sorted(full)] + _dealt(others, how.tasks)


def _dealt(parts: list[Range], tasks: int) -> list[list[Range]]:
    loads = [0] * min(max(1, tasks), len(parts))
    dealt: list[list[Range]] = [[] for _ in loads]
    for part in sorted(parts, key=lambda part: (-part.rows, part)):
        lightest = loads.index(min(loads))
        loads[lightest] += part.rows
        dealt[lightest].append(part)
    return [sorted(parts) for parts in dealt]


def _cut(piece: Range, longest: int) -> list[Range]:
    parts = -(-piece.rows // longest)
    marks = [piece.start + piece.rows * number // parts for number in range(parts + 1)]
    return [Range(piece.node, marks[number], marks[number + 1]) for number in range(parts)]


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where to begin or end, as a user says it: the first or the last there is, an instant, or an offset per node."""

    word: str = ""
    time_us: int | None = None
    offsets: tuple[tuple[str, int | str], ...] = ()
    times: tuple[tuple[str, int], ...] = ()
    """Instants by node, in microseconds."""

    @classmethod
    def parse(cls, text: str, option: str) -> OffsetSpec:
        if text in (EARLIEST, LATEST):
            return cls(text)
        if text.lstrip().startswith("{"):
            return cls(offsets=_explicit(text, option))
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigurationError(
                f'{option}: "{text}" is no place in a journal; write earliest, latest, an instant such as '
                '2026-01-31T12:00:00Z, or offsets such as {"node-a": 120}'
            ) from None
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return cls(time_us=round(instant.timestamp() * 1_000_000))

    @classmethod
    def at_millisecond(cls, text: str, option: str) -> OffsetSpec:
        """As Spark's Kafka source has it."""
        if not text.isdecimal():
            raise ConfigurationError(f"{option}: {text!r} is no number of milliseconds since 1970")
        return cls(time_us=int(text) * 1000)

    @classmethod
    def at_milliseconds(cls, text: str, option: str) -> OffsetSpec:
        """{"node-a": milliseconds}"""
        found = _json_object(text, option)
        for node, at in found.items():
            if type(at) is not int or at < 0:
                raise ConfigurationError(f'{option}: node "{node}" has {at!r}, which is no time in milliseconds')
        return cls(times=tuple(sorted((node, at * 1000) for node, at in found.items())))

    def named(self) -> list[str]:
        return [node for node, _ in (*self.offsets, *self.times)]

    def for_node(self, *names: str) -> OffsetSpec:
        """Its meaning for the node of these names; one that is not named is read from its first message to its
        last."""
        if self.times:
            instant = next((at for name, at in self.times if name in names), None)
            return OffsetSpec(time_us=instant)
        if not self.offsets:
            return self
        node, chosen = next(((name, at) for name, at in self.offsets if name in names), ("", ""))
        return OffsetSpec(chosen) if isinstance(chosen, str) else OffsetSpec(offsets=((node, chosen),))


BEGINNING = OffsetSpec(EARLIEST)
END = OffsetSpec(LATEST)


#: Spark's Kafka source has numbers for the two words.
_KAFKAS: dict[object, object] = {-1: LATEST, -2: EARLIEST}


def _explicit(text: str, option: str) -> tuple[tuple[str, int | str], ...]:
    found: dict[str, Any] = {node: _KAFKAS.get(offset, offset) for node, offset in _json_object(text, option).items()}
    for node, offset in found.items():
        if offset not in (EARLIEST, LATEST) and (type(offset) is not int or offset < 0):
            raise ConfigurationError(f'{option}: the offset of node "{node}" is {offset!r}; write a number from 0 on')
    return tuple(sorted(found.items()))


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: the offsets are no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'{option}: "{text}" is no JSON object such as {{"node-a": 120}}')
    return found
