"""Offsets of a reader, {journal: offset}, and the ranges it reads next.  Arithmetic only: no sockets, no Spark.

A journal is called `node@identity`.  A node gets another journal when its data directory is replaced, or when it keeps
its journal in memory and is started again.  Offsets of earlier releases have the bare name of the node; such a name
stands for the journal that the node has when it is next seen, and is replaced by that journal's name then.

Spark compares offsets as JSON text and plans a batch again after a crash.  Therefore everything here is sorted, and
the ranges of a batch depend on its two ends alone.  A node that a query meets for the first time is entered at its
first offset and read from the next batch on: the content of a batch never depends on when a node was found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from sterna.vocabulary.errors import ConfigurationError

Offsets = dict[str, int]

EARLIEST = "earliest"
LATEST = "latest"

#: Every task costs about 12 ms: ranges shorter than this are not worth one of their own.
SPLIT_ROWS_MIN = 20_000


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


def ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """Ranges in between: none for a node that only enters, nor for one whose beginning is already behind."""
    start = named_as_in(start, end)
    return [Range(node, start[node], stop) for node, stop in sorted(end.items()) if start.get(node, stop) < stop]


def packed(pieces: list[Range], tasks: int, split_rows_min: int = SPLIT_ROWS_MIN) -> list[list[Range]]:
    """The ranges dealt out to at most `tasks` tasks, long ones cut: a function of its arguments alone."""
    total = sum(piece.rows for piece in pieces)
    longest = max(split_rows_min, -(-total // max(1, tasks)))
    cut = [part for piece in pieces for part in _cut(piece, longest)]
    loads = [0] * min(max(1, tasks), len(cut))
    dealt: list[list[Range]] = [[] for _ in loads]
    for part in sorted(cut, key=lambda part: (-part.rows, part)):
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

    def named(self) -> list[str]:
        return [node for node, _ in self.offsets]

    def for_node(self, *names: str) -> OffsetSpec:
        """Its meaning for the node of these names; one that is not named is read from its first message to its
        last."""
        if not self.offsets:
            return self
        node, chosen = next(((name, at) for name, at in self.offsets if name in names), ("", ""))
        return OffsetSpec(chosen) if isinstance(chosen, str) else OffsetSpec(offsets=((node, chosen),))


BEGINNING = OffsetSpec(EARLIEST)
END = OffsetSpec(LATEST)


def _explicit(text: str, option: str) -> tuple[tuple[str, int | str], ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: the offsets are no JSON ({error})") from None
    for node, offset in found.items():
        if offset not in (EARLIEST, LATEST) and (type(offset) is not int or offset < 0):
            raise ConfigurationError(f'{option}: the offset of node "{node}" is {offset!r}; write a number from 0 on')
    return tuple(sorted(found.items()))
