"""Topic names and filters: validity, matching, and containers that find by matching.

Matching follows section 4.7 of the standard and goes level by level through a tree; nothing here is a regular
expression.  Names and filters are UTF-8 bytes; comparing encoded bytes is comparing code points, which is what the
standard asks for [MQTT-4.7.3-4].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Generic, TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key")

Levels = tuple[bytes, ...]

#: The key of a branch that has one value.
_ONLY = b""

SHARE = b"$share/"


def levels_of(topic: bytes) -> Levels:
    return tuple(topic.split(b"/"))


def is_topic_name(topic: bytes, levels_max: int, bytes_max: int) -> bool:
    """May a message be published under this name?  (Valid UTF-8 is the caller's to check.)"""
    return (
        0 < len(topic) <= bytes_max
        and b"+" not in topic
        and b"#" not in topic
        and b"\0" not in topic
        and topic.count(b"/") < levels_max
    )


def is_topic_filter(topic_filter: bytes, levels_max: int, bytes_max: int) -> bool:
    if not 0 < len(topic_filter) <= bytes_max or topic_filter.count(b"/") >= levels_max:
        return False
    levels = topic_filter.split(b"/")
    if b"#" in topic_filter and (levels[-1] != b"#" or topic_filter.count(b"#") > 1):
        return False  # [MQTT-4.7.1-1]
    return all(level == b"+" or b"+" not in level for level in levels)  # [MQTT-4.7.1-2]


def split_share(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """`$share/group/filter` as (group, filter); None if it is not of that form [MQTT-4.8.2-1, -2]."""
    _, group, rest = [*topic_filter.split(b"/", 2), b"", b""][:3]
    if not group or not rest or b"+" in group or b"#" in group:
        return None
    return group, rest


def is_reserved(topic: bytes) -> bool:
    """Topics that only the broker itself writes to [MQTT-4.7.2]: `$SYS`, and results of expressions such as `$AVG`."""
    return topic[:1] == b"$" and (topic[1:2].isupper() or topic.split(b"/", 1)[0] == b"$share")


def matches(topic_filter: Sequence[bytes], topic: Sequence[bytes]) -> bool:
    """Does one filter match one name?  `#` also matches the level above it; wildcards never begin a `$` topic."""
    if topic[0][:1] == b"$" and topic_filter[0] in (b"+", b"#"):
        return False  # [MQTT-4.7.2-1]
    for place, level in enumerate(topic_filter):
        if level == b"#":
            return True
        if place == len(topic) or level not in (b"+", topic[place]):
            return False
    return len(topic_filter) == len(topic)


def covers(wide: Sequence[bytes], narrow: Sequence[bytes]) -> bool:
    """Does every topic that `narrow` matches also match `wide`?"""
    if narrow[0] == b"#":
        # `#` alone does not reach the level above it, for there is none: `+/#` says the same.
        return wide[0] == b"#" or tuple(wide) == (b"+", b"#")
    # Read as a name, a filter falls under exactly the filters that cover it, but for a `#` of its own: that one
    # reaches any depth, and only a `#` at the same place or before does too.
    if narrow[-1] == b"#" and (wide[-1] != b"#" or len(wide) > len(narrow)):
        return False
    return matches(wide, narrow)


class _Branch(Generic[Key, Value]):
    __slots__ = ("below", "values")

    def __init__(self) -> None:
        self.below: dict[bytes, _Branch[Key, Value]] = {}
        self.values: dict[Key, Value] = {}


class _Tree(Generic[Key, Value]):
    """Values under keys on branches named by levels; a branch that holds nothing is not kept."""

    __slots__ = ("_root", "size")

    def __init__(self) -> None:
        self._root: _Branch[Key, Value] = _Branch()
        #: Values held.
        self.size = 0

    def _find(self, name: bytes) -> _Branch[Key, Value] | None:
        branch = self._root
        for level in name.split(b"/"):
            found = branch.below.get(level)
            if found is None:
                return None
            branch = found
        return branch

    def _put(self, name: bytes, key: Key, value: Value) -> None:
        branch = self._root
        for level in name.split(b"/"):
            below = branch.below.get(level)
            if below is None:
                below = branch.below[level] = _Branch()
            branch = below
        if key not in branch.values:
            self.size += 1
        branch.values[key] = value

    def _take(self, name: bytes, key: Key) -> None:
        branch = self._find(name)
        if branch is None or key not in branch.values:
            return
        del branch.values[key]
        self.size -= 1
        self._prune(self._root, name.split(b"/"))

    def _prune(self, branch: _Branch[Key, Value], levels: list[bytes]) -> None:
        """Drop the branches along `levels` that hold nothing any more, the outermost first."""
        path = [branch]
        for level in levels:
            path.append(path[-1].below[level])
        for level in reversed(levels):
            last = path.pop()
            if last.values or last.below:
                return
            del path[-1].below[level]


def overlap(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """May one name match both filters?  True in doubt."""
    for first, second in zip_longest(one, other):
        if b"#" in (first, second):
            return True
        if first is None or second is None or (first != second and b"+" not in (first, second)):
            return False
    return True


class FilterTree(_Tree[Key, Value]):
    """Filters, each with values under keys: which of them match this name?

    Insertion order decides the order of results, so that it never depends on hashing.
    """

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        super().__init__()
        #: Branches that all matching so far has looked at: what it has cost.
        self.looked_at = 0

    def add(self, topic_filter: bytes, key: Key, value: Value) -> None:
        self._put(topic_filter, key, value)

    def filters(self) -> list[bytes]:
        """Every filter that has a value, once."""
        found: list[bytes] = []
        line = [(b"", self._root)]
        while line:
            name, branch = line.pop()
            if branch.values:
                found.append(name[1:])
            for level, below in branch.below.items():
                line.append((name + b"/" + level, below))
        return found

    def remove(self, topic_filter: bytes, key: Key) -> None:
        self._take(topic_filter, key)

    def match(self, topic: bytes) -> list[Value]:
        found: list[Value] = []
        levels = topic.split(b"/")
        branches = [self._root]
        # Breadth first: all branches that fit the first n levels, then n + 1.  A `#` found on the way matches the rest.
        for depth, level in enumerate(levels):
            self.looked_at += len(branches)
            wild = depth > 0 or level[:1] != b"$"
            following: list[_Branch[Key, Value]] = []
            for branch in branches:
                below = branch.below
                if wild:
                    if (rest := below.get(b"#")) is not None:
                        found.extend(rest.values.values())
                    if (single := below.get(b"+")) is not None:
                        following.append(single)
                if (exact := below.get(level)) is not None:
                    following.append(exact)
            branches = following
        self.looked_at += len(branches)
        for branch in branches:
            found.extend(branch.values.values())
            if (rest := branch.below.get(b"#")) is not None:
                found.extend(rest.values.values())
        return found


class TopicTree(_Tree[bytes, Value]):
    """Names, each with one value: which of them does this filter match?  (Retained messages.)"""

    __slots__ = ()

    def get(self, topic: bytes) -> Value | None:
        branch = self._find(topic)
        return None if branch is None else branch.values.get(_ONLY)

    def put(self, topic: bytes, value: Value) -> None:
        self._put(topic, _ONLY, value)

    def remove(self, topic: bytes) -> None:
        self._take(topic, _ONLY)

    def match(self, topic_filter: bytes) -> Iterator[Value]:
        for value in self.walk(topic_filter):
            if value is not None:
                yield value

    def walk(self, topic_filter: bytes) -> Iterator[Value | None]:
        """One step per branch: what it holds if the filter matches its name, else None.

        It may be left and gone on with later, whatever has changed: what stayed is found, what was removed is not, and
        what was put meanwhile may be found or not.
        """
        levels = topic_filter.split(b"/")
        rest = levels.index(b"#") if b"#" in levels else len(levels) + 1
        branches = [self._root]
        names: list[Iterator[bytes]] = []
        while branches:
            branch = branches[-1]
            depth = len(branches) - 1
            if len(names) < len(branches):  # just come to it
                names.append(_below(branch, levels, depth, rest))
                yield branch.values.get(_ONLY) if depth >= rest or depth == len(levels) else None
            name = next(names[-1], None)
            if name is None:
                branches.pop()
                names.pop()
            elif (below := branch.below.get(name)) is not None and (depth or name[:1] != b"$" or levels[0] == name):
                branches.append(below)

    def __iter__(self) -> Iterator[Value]:
        return self._everything(self._root)

    def _everything(self, branch: _Branch[bytes, Value]) -> Iterator[Value]:
        yield from branch.values.values()
        for below in branch.below.values():
            yield from self._everything(below)


def _below(branch: _Branch[bytes, Value], levels: list[bytes], depth: int, rest: int) -> Iterator[bytes]:
    """The names under a branch that a filter goes on with; a copy, so that branches may come and go meanwhile."""
    if depth >= rest or (depth < len(levels) and levels[depth] == b"+"):
        return iter(list(branch.below))
    return iter(levels[depth : depth + 1])
