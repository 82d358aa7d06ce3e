"""The registry: which expressions Spark computes for which nodes, in numbered editions.

A batch names its edition in its offset, so a batch that runs again computes the same expressions.  An edition is kept
for as long as a batch may need it.  An entry is one node's need of one expression, from its first subscription to its
last; its number is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from sterna.operators.expression import Expression
from sterna.operators.functions import NO_FUNCTIONS
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings
from sterna.operators.window_division import Division, division
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.feed.client import WantedExpressions
from sterna.runtime.feed.cursors import replace_shared_file

_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=65_536)
def expression_of(text: bytes) -> Expression:
    """Nodes know their functions; whether this job has them too shows when one is called."""
    return parse(text, NO_FUNCTIONS.assuming(text))


@lru_cache(maxsize=65_536)
def needs_order(text: bytes) -> bool:
    """Does this expression depend on which message came before which?  Else it is computed in parts."""
    return division(expression_of(text)) is not Division.BY_MESSAGE


class ReadingStart(msgspec.Struct, frozen=True):
    """The offsets from which journals are read for a new expression."""

    offsets: tuple[tuple[str, int], ...] = ()
    """Journal -> offset; what lies before holds nothing of it."""
    complete_us: int = 0
    """Of what came in before, something may be missing: retention was quicker."""


class Entry(msgspec.Struct, frozen=True):
    number: int
    node: str
    text: bytes
    told_us: int
    """The instant of subscription as the node says it."""
    since_us: int
    """The same as it was said first: a node that was killed may remember it less precisely."""
    settings: OperatorSettings
    beginning: ReadingStart

    @property
    def expression(self) -> Expression:
        return expression_of(self.text)

    @property
    def needs_order(self) -> bool:
        return needs_order(self.text)

    @property
    def rules(self) -> bytes:
        """The operators before the filter, in so many words."""
        return self.text.partition(b"/")[0]


class Registry(msgspec.Struct, frozen=True):
    edition: int = 0
    following: int = 0
    """The number of the next entry."""
    entries: tuple[Entry, ...] = ()
    nodes: dict[str, tuple[int, int]] = {}
    """Node -> its epoch and its own edition, when it was last asked."""

    def is_news(self, node: str, epoch: int, edition: int) -> bool:
        return self.nodes.get(node) != (epoch, edition)

    def fresh(self, node: str, epoch: int, wanted: WantedExpressions) -> list[tuple[bytes, int]]:
        """Expressions of a node that have no entry yet."""
        known = self._known(node, epoch, wanted)
        return [one for one in wanted.expressions if one[0] not in known]

    def told(
        self,
        node: str,
        epoch: int,
        edition: int,
        wanted: WantedExpressions,
        beginning: ReadingStart,
        near: ReadingStart | None = None,
    ) -> Registry:
        """The registry with what the node wants now; `beginning` is that of all its fresh expressions, `near` of those
        that need order: their messages are all held at once."""
        known = self._known(node, epoch, wanted)
        number, mine = self.following, []
        for text, since_us in wanted.expressions:
            entry = known.get(text)
            if entry is None:
                fresh = Entry(number, node, text, since_us, since_us, wanted.settings, beginning)
                if near is not None and fresh.needs_order:
                    fresh = msgspec.structs.replace(fresh, beginning=near)
                mine.append(fresh)
                number += 1
            else:
                mine.append(msgspec.structs.replace(entry, told_us=since_us))
        entries = (*(entry for entry in self.entries if entry.node != node), *mine)
        nodes = {**self.nodes, node: (epoch, edition)}
        changed = {entry.number for entry in entries} != {entry.number for entry in self.entries}
        return Registry(self.edition + changed, number, entries, nodes)

    def _known(self, node: str, epoch: int, wanted: WantedExpressions) -> Mapping[bytes, Entry]:
        """Entries that go on: the same subscription, or that of a node which was started again in between."""
        restarted = node in self.nodes and self.nodes[node][0] != epoch
        told = dict(wanted.expressions)
        return {
            entry.text: entry
            for entry in self.entries
            if entry.node == node
            and entry.settings == wanted.settings
            and (restarted or told.get(entry.text) == entry.told_us)
        }


class RegistryFiles:
    """Editions in a directory, one file each."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def _file(self, edition: int) -> Path:
        return self._directory / str(edition)

    def _editions(self) -> list[int]:
        names = [file.name for file in self._directory.iterdir()] if self._directory.is_dir() else []
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def newest(self) -> Registry:
        editions = self._editions()
        return self.load(editions[-1]) if editions else Registry()

    def load(self, edition: int) -> Registry:
        if edition == 0:
            return Registry()
        try:
            return msgspec.msgpack.decode(self._file(edition).read_bytes(), type=Registry)
        except (OSError, msgspec.DecodeError) as error:
            raise PipelineError(f"the expressions of edition {edition} cannot be read: {error}") from None

    def keep(self, registry: Registry) -> None:
        """On the disk when this returns."""
        replace_shared_file(self._file(registry.edition), msgspec.msgpack.encode(registry))

    def forget_before(self, edition: int) -> None:
        for one in self._editions():
            if one < edition:
                self._file(one).unlink(missing_ok=True)
