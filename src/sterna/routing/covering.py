"""Filters in a tree, asked what lies above, below and beside one of them: who covers it, whom it covers, who overlaps.

One filter covers another if it matches every topic the other matches; two overlap if some topic matches both.  Each
question walks only branches that can answer it, and yields in an order that hangs on insertion alone, never on hashing.
Filters are kept in `canonical` form, so that two of them that cover each other are the same.  The tree is that of
subscriptions: a chain of levels where no other filter branches off takes one entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sterna.mqtt.topics import Branch, LevelTree

Value = TypeVar("Value")


def canonical(topic_filter: bytes) -> bytes:
    """`+/#` says what `#` says (`#` reaches the level above it); no other two filters are equal in meaning."""
    return b"#" if topic_filter == b"+/#" else topic_filter


#: In place of a number of levels: a `#` reaches whatever is below.
_EVERYTHING = -1


def _toward(branch: Branch[bytes], level: bytes, wild: bool) -> list[Branch[bytes]]:
    """The branches below this one with whose first level a level of a filter may overlap."""
    if level in (b"+", b"#"):
        return branch.branches()
    exact = branch.only if branch.below is None else branch.below.get(level)
    found = [] if exact is None else [exact]
    if wild and branch.single is not None:
        found.append(branch.single)
    return found


def _overlap(levels: list[bytes], depth: int, branch: Branch[bytes]) -> int | None:
    """Levels of a filter that lead to a branch from the one above it, which `depth` of them lead to; None if they lead
    elsewhere."""
    for name in branch.name[branch.start : branch.stop].split(b"/"):
        if depth == len(levels):
            return None
        level = levels[depth]
        if depth == 0 and level in (b"+", b"#") and name[:1] == b"$":
            return None
        if level == b"#":
            return _EVERYTHING
        if level != name and b"+" not in (level, name):
            return None
        depth += 1
    return depth


def _everything(branch: Branch[bytes]) -> Iterator[bytes]:
    pending = [branch]
    while pending:
        branch = pending.pop()
        if branch.value is not None:
            yield branch.value
        if branch.rest is not None:
            yield branch.rest
        pending.extend(branch.branches())


class FilterTable(Generic[Value]):
    """One value per filter."""

    __slots__ = ("_tree", "_values")

    def __init__(self) -> None:
        self._tree: LevelTree[bytes] = LevelTree()
        self._values: dict[bytes, Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._values

    def __getitem__(self, topic_filter: bytes) -> Value:
        return self._values[topic_filter]

    def get(self, topic_filter: bytes) -> Value | None:
        return self._values.get(topic_filter)

    def put(self, topic_filter: bytes, value: Value) -> None:
        if topic_filter not in self._values:
            self._tree.put(topic_filter, topic_filter)
        self._values[topic_filter] = value

    def remove(self, topic_filter: bytes) -> None:
        del self._values[topic_filter]
        self._tree.remove(topic_filter)

    def matching(self, topic: bytes) -> list[bytes]:
        """The filters that match this name."""
        return self._tree.matching(topic)

    def coverers(self, topic_filter: bytes) -> Iterator[bytes]:
        """The other filters that cover this one."""
        return (wide for wide in self._tree.above(topic_filter) if wide != topic_filter)

    def covered(self, topic_filter: bytes) -> Iterator[bytes]:
        """The other filters that this one covers."""
        for narrow in self._tree.walk(topic_filter):
            if narrow is not None and narrow != topic_filter:
                yield narrow

    def overlapping(self, topic_filter: bytes) -> Iterator[bytes]:
        """The filters, this one included, that some topic matches together with this one."""
        levels = topic_filter.split(b"/")
        # Branches to look at, and how many levels of the filter lead there.
        pending = [(self._tree.root, 0)]
        while pending:
            branch, depth = pending.pop()
            wild = depth > 0 or topic_filter[:1] != b"$"  # [MQTT-4.7.2-1]
            if wild and branch.rest is not None:
                yield branch.rest
            if depth == len(levels):
                if branch.value is not None:
                    yield branch.value
                continue
            if levels[depth] == b"#" and branch.value is not None:
                yield branch.value
            for below in _toward(branch, levels[depth], wild):
                passed = _overlap(levels, depth, below)
                if passed == _EVERYTHING:
                    yield from _everything(below)
                elif passed is not None:
                    pending.append((below, passed))
