"""Topic names and filters: validity, matching, and containers that find by matching.

Matching follows section 4.7 of the standard and goes level by level through a tree; nothing here is a regular
expression.  Names and filters are UTF-8 bytes; comparing encoded bytes is comparing code points, which is what the
standard asks for [MQTT-4.7.3-4].  Loops over bytes are written out: compiled, they take a nanosecond for each, and a
slice takes twenty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import i64

Value = TypeVar("Value")
Key = TypeVar("Key")

Levels = tuple[bytes, ...]

SLASH: Final = 0x2F
PLUS: Final = 0x2B
HASH: Final = 0x23
DOLLAR: Final = 0x24

SHARE = b"$share/"

CONTROL: Final = b"$adaptation"
"""The first level of control topics: coordinators, workers and gateways speak there."""

#: Bytes of topics by which something is remembered.  Of longer ones nothing is, so that a bound on how many topics are
#: remembered is one on the memory they take.
REMEMBERED_TOPIC_BYTES: Final = 256


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


def is_plain_name(topic: bytes, levels_max: int, bytes_max: int) -> bool:
    """HOT.  Is it a valid name for certain, of ASCII alone and no `$` topic?  Others deserve a closer look."""
    size: i64 = len(topic)
    if size == 0 or size > bytes_max or topic[0] == DOLLAR:
        return False
    levels: i64 = 1
    place: i64 = 0
    while place < size:
        letter = topic[place]
        if letter <= SLASH:
            if letter == SLASH:
                levels += 1
            elif letter in (PLUS, HASH, 0):
                return False
        elif letter >= 0x80:
            return False
        place += 1
    return levels <= levels_max


def is_topic_filter(topic_filter: bytes, levels_max: int, bytes_max: int) -> bool:
    if not 0 < len(topic_filter) <= bytes_max or topic_filter.count(b"/") >= levels_max:
        return False
    levels = topic_filter.split(b"/")
    if b"#" in topic_filter and (levels[-1] != b"#" or topic_filter.count(b"#") > 1):
        return False  # [MQTT-4.7.1-1]
    return all(level == b"+" or b"+" not in level for level in levels)  # [MQTT-4.7.1-2]


def split_share(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """`$share/group/filter` as (group, filter); None if it is not of that form [MQTT-4.8.2-1, -2]."""
    share, group, rest = [*topic_filter.split(b"/", 2), b"", b""][:3]
    if share != b"$share" or not group or not rest or b"+" in group or b"#" in group:
        return None
    return group, rest


def is_reserved(topic: bytes) -> bool:
    """Topics that only the broker itself writes to [MQTT-4.7.2]: `$SYS`, and results of expressions such as `$AVG`."""
    return topic[:1] == b"$" and (topic[1:2].isupper() or topic.split(b"/", 1)[0] == b"$share")


def is_control(topic: bytes) -> bool:
    """A control topic, or a filter that matches such topics only.  No other filter matches one: wildcards never begin
    a `$` topic."""
    return topic.startswith(CONTROL) and topic[len(CONTROL) : len(CONTROL) + 1] in (b"", b"/")


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


def overlap(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """May one name match both filters?  True in doubt."""
    for first, second in zip_longest(one, other):
        if b"#" in (first, second):
            return True
        if first is None or second is None or (first != second and b"+" not in (first, second)):
            return False
    return True


class Branch(Generic[Value]):
    """A place in a tree of levels, and the levels that lead to it from the branch above: `name[start:stop]`.

    A branch is made only where something is held or where names part, so a chain of levels costs one.  It stands for
    one place as long as it lives: others may be put in above it or taken out, which moves `start` alone.
    """

    __slots__ = ("below", "name", "only", "rest", "single", "start", "stop", "value")

    def __init__(self, name: bytes, start: i64, stop: i64) -> None:
        #: Some name that goes through here; all of them are the same up to `stop`.
        self.name = name
        self.start: i64 = start
        self.stop: i64 = stop
        #: The value under the name that ends here, and the one under that name followed by `#`.
        self.value: Value | None = None
        self.rest: Value | None = None
        #: The branch that goes on with a `+`; and those that go on with other levels: one, or by that level if several.
        self.single: Branch[Value] | None = None
        self.only: Branch[Value] | None = None
        self.below: dict[bytes, Branch[Value]] | None = None

    def branches(self) -> list[Branch[Value]]:
        """Those below, as they are now, in the order they came."""
        found = [] if self.below is None else list(self.below.values())
        if self.only is not None:
            found.append(self.only)
        if self.single is not None:
            found.append(self.single)
        return found

    def toward(self, name: bytes, position: i64, end: i64) -> Branch[Value] | None:
        """The branch that goes on with the level at a place of a name; its further levels may be others."""
        level = name[position : level_end(name, position, end)]
        if level == b"+":
            return self.single
        if self.below is not None:
            return self.below.get(level)
        only = self.only
        return only if only is not None and first_level(only) == level else None

    def put_below(self, branch: Branch[Value]) -> None:
        """Add a branch, or put it in the place of the one that goes on with the same level."""
        level = first_level(branch)
        if level == b"+":
            self.single = branch
        elif self.below is not None:
            self.below[level] = branch
        elif self.only is None or first_level(self.only) == level:
            self.only = branch
        else:
            self.below = {first_level(self.only): self.only, level: branch}
            self.only = None

    def take_from_below(self, branch: Branch[Value]) -> None:
        if self.single is branch:
            self.single = None
        elif self.below is None:
            self.only = None
        else:
            del self.below[first_level(branch)]
            if len(self.below) == 1:
                (self.only,) = self.below.values()
                self.below = None


def level_end(name: bytes, position: i64, end: i64) -> i64:
    while position < end and name[position] != SLASH:
        position += 1
    return position


def first_level(branch: Branch[Value]) -> bytes:
    return branch.name[branch.start : level_end(branch.name, branch.start, branch.stop)]


def _shared(branch: Branch[Value], name: bytes, position: i64, end: i64) -> i64:
    """How far the levels of a branch are those of a name, as the first is: where in its own name that ends."""
    held = branch.name
    at: i64 = branch.start
    stop: i64 = branch.stop
    same: i64 = at
    while True:
        while at < stop and position < end and held[at] == name[position] and held[at] != SLASH:
            at += 1
            position += 1
        if (at < stop and held[at] != SLASH) or (position < end and name[position] != SLASH):
            return same
        same = at
        if at == stop or position == end:
            return same
        at += 1
        position += 1


def _passed(branch: Branch[Value], known: i64, topic: bytes, position: i64, end: i64) -> i64:
    """HOT.  Where a topic goes on after the levels of a branch, past its end if it does not; -1 if they differ.

    `known`: so many bytes, the first level, have been found to be the same; 0 if that is to be seen.
    """
    held = branch.name
    at: i64 = branch.start + known
    stop: i64 = branch.stop
    position += known
    while True:
        if known:
            known = 0
        elif at < stop and held[at] == PLUS and (at + 1 == stop or held[at + 1] == SLASH):
            at += 1
            while position < end and topic[position] != SLASH:
                position += 1
        else:
            while at < stop and held[at] != SLASH:
                if position >= end or topic[position] != held[at]:
                    return -1
                at += 1
                position += 1
            if position < end and topic[position] != SLASH:
                return -1
        if at == stop:
            return position + 1
        if position >= end:
            return -1
        at += 1
        position += 1


class LevelTree(Generic[Value]):
    """One value for each name or filter.  A `#` at the end of a filter is not a level but held beside the place."""

    __slots__ = ("_level", "_level_start", "looked_at", "one", "root", "several", "size")

    def __init__(self) -> None:
        self.root: Branch[Value] = Branch(b"", 0, -1)
        #: Values that the last search found.
        self.one: Value | None = None
        self.several: list[Value] | None = None
        # A level of the topic that is searched for, and where it begins.
        self._level = b""
        self._level_start: i64 = -1
        #: Values held.
        self.size = 0
        #: Branches that all matching so far has looked at: what it has cost.
        self.looked_at = 0

    def clear(self) -> None:
        self.root = Branch(b"", 0, -1)
        self.size = 0

    def get(self, name: bytes) -> Value | None:
        end = _levels_end(name)
        branch = self._find(name, end)
        if branch is None:
            return None
        return branch.value if end == len(name) else branch.rest

    def put(self, name: bytes, value: Value) -> None:
        end = _levels_end(name)
        branch = self._place(name, end)
        if end == len(name):
            if branch.value is None:
                self.size += 1
            branch.value = value
        else:
            if branch.rest is None:
                self.size += 1
            branch.rest = value

    def remove(self, name: bytes) -> None:
        """Of what is not held, too."""
        end: i64 = _levels_end(name)
        path = [self.root]
        position: i64 = 0
        while position <= end:
            branch = path[-1].toward(name, position, end)
            if branch is None or _shared(branch, name, position, end) != branch.stop:
                return
            position += branch.stop - branch.start + 1
            path.append(branch)
        last = path.pop()
        if end == len(name):
            if last.value is not None:
                self.size -= 1
            last.value = None
        else:
            if last.rest is not None:
                self.size -= 1
            last.rest = None
        while path and last.value is None and last.rest is None:
            above = path.pop()
            if last.below is not None or (last.only is not None and last.single is not None):
                return
            left = last.only or last.single
            if left is not None:
                # A place where nothing ends and nothing parts: its levels become part of the branch below, while it
                # still tells what is below it, for who was just looking there.
                left.start = last.start
                above.put_below(left)
                return
            above.take_from_below(last)
            last = above

    def _find(self, name: bytes, end: i64) -> Branch[Value] | None:
        branch: Branch[Value] | None = self.root
        position: i64 = 0
        while branch is not None and position <= end:
            branch = branch.toward(name, position, end)
            if branch is None or _shared(branch, name, position, end) != branch.stop:
                return None
            position += branch.stop - branch.start + 1
        return branch

    def _place(self, name: bytes, end: i64) -> Branch[Value]:
        """The branch of a place, made if need be."""
        branch = self.root
        position: i64 = 0
        while position <= end:
            below = branch.toward(name, position, end)
            if below is None:
                below = Branch(name, position, end)
                branch.put_below(below)
                return below
            same: i64 = _shared(below, name, position, end)
            position += same - below.start + 1
            if same != below.stop:
                parting: Branch[Value] = Branch(below.name, below.start, same)
                branch.put_below(parting)
                below.start = same + 1
                parting.put_below(below)
                below = parting
            branch = below
        return branch

    # -- filters: which of them match a name? --

    def matching(self, topic: bytes) -> list[Value]:
        """Values under filters that match this name."""
        self.search(topic)
        return self._all_found()

    def above(self, topic_filter: bytes) -> list[Value]:
        """Values under filters that cover this one: read as a name, it falls under exactly those, but for a `#`
        of its own, which only a `#` covers."""
        end: i64 = _levels_end(topic_filter)
        self._begin()
        self._gather(self.root, topic_filter, 0, end, end == len(topic_filter))
        return self._all_found()

    def search(self, topic: bytes) -> None:
        """HOT.  Finds values under filters that match this name: as `one`, and if it is not alone, as `several`."""
        self._begin()
        self._gather(self.root, topic, 0, len(topic), True)

    def _begin(self) -> None:
        self.one = None
        self.several = None
        self._level_start = -1

    def _all_found(self) -> list[Value]:
        if self.several is not None:
            return self.several
        return [] if self.one is None else [self.one]

    def _add_found(self, value: Value) -> None:
        if self.one is None:
            self.one = value
        elif self.several is None:
            self.several = [self.one, value]
        else:
            self.several.append(value)

    def _gather(self, branch: Branch[Value], topic: bytes, position: i64, end: i64, is_name: bool) -> None:
        """HOT.  `is_name`: what ends where the topic ends counts too, else only a `#` does."""
        looked_at: i64 = 0
        wild = position > 0 or end == 0 or topic[0] != DOLLAR  # [MQTT-4.7.2-1]
        while True:
            looked_at += 1
            if wild and branch.rest is not None:
                self._add_found(branch.rest)
            if position > end:
                if is_name and branch.value is not None:
                    self._add_found(branch.value)
                break
            below = branch.only
            known: i64 = 0
            if branch.below is not None:
                if self._level_start != position:  # else the branch beside this one has asked for the same
                    self._level_start = position
                    self._level = topic[position : level_end(topic, position, end)]
                below = branch.below.get(self._level)
                known = len(self._level)
            single = branch.single
            if wild and single is not None:
                after: i64 = _passed(single, 0, topic, position, end)
                if after >= 0:
                    if below is None:
                        branch = single
                        position = after
                        continue
                    self._gather(single, topic, after, end, is_name)
            if below is None:
                break
            position = _passed(below, known, topic, position, end)
            if position < 0:
                break
            wild = True
            branch = below
        self.looked_at += looked_at

    # -- names: which of them does a filter match? --

    def walk(self, topic_filter: bytes) -> Iterator[Value | None]:
        """One step per branch: what it holds if the filter matches its name, else None.  Among filters, it finds those
        that this one covers.

        It may be left and gone on with later, whatever has changed: what stayed is found, what was removed is not, and
        what was put meanwhile may be found or not.  For the branches below one are listed when it is come to, each
        stands for its place however the levels that lead there are divided, and one that was taken out still knows
        the one that its levels went to.
        """
        end: int = _levels_end(topic_filter)
        is_open = end < len(topic_filter)
        following = [iter([self.root])]
        # How far into the filter, and into their own names, the branches that follow have been matched.
        places = [(0, 0)]
        while following:
            branch = next(following[-1], None)
            position, at = places[-1]
            if branch is None:
                following.pop()
                places.pop()
                continue
            if branch.stop >= 0:
                if at == 0 and _is_kept_from_wildcards(branch.name, topic_filter):
                    yield None
                    continue
                position = _covered(topic_filter, position, end, is_open, branch.name, at, branch.stop)
                if position < 0:
                    yield None
                    continue
            is_under = is_open and position > end
            if is_under and branch.rest is not None:
                yield branch.rest
            yield branch.value if position > end else None
            if is_under or (position < end and topic_filter[position] == PLUS):
                following.append(iter(branch.branches()))
                places.append((position, branch.stop + 1))
            elif position <= end:
                below = branch.only
                if branch.below is not None:
                    below = branch.below.get(topic_filter[position : level_end(topic_filter, position, end)])
                if below is not None:
                    following.append(iter([below]))
                    places.append((position, branch.stop + 1))

    def items(self) -> Iterator[tuple[bytes, Value]]:
        """Everything that is held."""
        line = [self.root]
        while line:
            branch = line.pop()
            name = branch.name[: branch.stop] if branch.stop >= 0 else b""
            if branch.value is not None:
                yield name, branch.value
            if branch.rest is not None:
                yield (name + b"/#" if branch.stop >= 0 else b"#"), branch.rest
            line.extend(branch.branches())


def _levels_end(name: bytes) -> i64:
    """Where the levels of a name or filter end: a `#` at its end is none; -1 if there is nothing else."""
    size: i64 = len(name)
    if size and name[size - 1] == HASH and (size == 1 or name[size - 2] == SLASH):
        return size - 2
    return size


def _is_kept_from_wildcards(name: bytes, topic_filter: bytes) -> bool:
    """[MQTT-4.7.2-1]"""
    return name[:1] == b"$" and topic_filter[:1] in (b"+", b"#")


def _covered(topic_filter: bytes, position: i64, end: i64, is_open: bool, name: bytes, at: i64, stop: i64) -> i64:
    """Where a filter goes on after the levels `name[at:stop]`, past its end if it does not; -1 if they do not match."""
    while True:
        if position > end:
            return position if is_open else -1
        if (
            position < end
            and topic_filter[position] == PLUS
            and (position + 1 == end or topic_filter[position + 1] == SLASH)
        ):
            position += 1
            at = level_end(name, at, stop)
        else:
            while position < end and topic_filter[position] != SLASH:
                if at >= stop or name[at] != topic_filter[position]:
                    return -1
                at += 1
                position += 1
            if at < stop and name[at] != SLASH:
                return -1
        position += 1
        if at >= stop:
            return position
        at += 1


class FilterTree(Generic[Key, Value]):
    """Filters, each with values under keys: which of them match this name?

    Insertion order decides the order of results, so that it never depends on hashing.
    """

    __slots__ = ("_tree", "size")

    def __init__(self) -> None:
        self._tree: LevelTree[dict[Key, Value]] = LevelTree()
        #: Values held.
        self.size = 0

    def add(self, topic_filter: bytes, key: Key, value: Value) -> None:
        values = self._tree.get(topic_filter)
        if values is None:
            values = {}
            self._tree.put(topic_filter, values)
        if key not in values:
            self.size += 1
        values[key] = value

    def filters(self) -> list[bytes]:
        """Every filter that has a value, once."""
        return [name for name, _ in self._tree.items()]

    def remove(self, topic_filter: bytes, key: Key) -> None:
        values = self._tree.get(topic_filter)
        if values is None or key not in values:
            return
        del values[key]
        self.size -= 1
        if not values:
            self._tree.remove(topic_filter)

    def match(self, topic: bytes) -> list[Value]:
        found: list[Value] = []
        for values in self._tree.matching(topic):
            found.extend(values.values())
        return found


class TopicTree(LevelTree[Value]):
    """Names, each with one value: which of them does this filter match?  (Retained messages, remembered routes.)"""

    __slots__ = ()

    def match(self, topic_filter: bytes) -> Iterator[Value]:
        for value in self.walk(topic_filter):
            if value is not None:
                yield value

    def __iter__(self) -> Iterator[Value]:
        for _, value in self.items():
            yield value
