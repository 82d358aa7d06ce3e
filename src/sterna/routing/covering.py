"""Filters in a tree, asked what lies above, below and beside one of them: who covers it, whom it covers, who overlaps.

One filter covers another if it matches every topic the other matches; two overlap if some topic matches both.  Each
question walks only branches that can answer it, and yields in an order that hangs on insertion alone, never on hashing.
Filters are kept in `canonical` form, so that two of them that cover each other are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


def canonical(topic_filter: bytes) -> bytes:
    """`+/#` says what `#` says (`#` reaches the level above it); no other two filters are equal in meaning."""
    return b"#" if topic_filter == b"+/#" else topic_filter


class _Place:
    __slots__ = ("below", "topic_filter")

    def __init__(self) -> None:
        self.below: dict[bytes, _Place] = {}
        #: The filter that ends here, if one does.
        self.topic_filter: bytes | None = None


class FilterTable(Generic[Value]):
    """One value per filter."""

    __slots__ = ("_root", "_values")

    def __init__(self) -> None:
        self._root = _Place()
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
            place = self._root
            for level in topic_filter.split(b"/"):
                below = place.below.get(level)
                if below is None:
                    below = place.below[level] = _Place()
                place = below
            place.topic_filter = topic_filter
        self._values[topic_filter] = value

    def remove(self, topic_filter: bytes) -> None:
        del self._values[topic_filter]
        levels = topic_filter.split(b"/")
        path = [self._root]
        for level in levels:
            path.append(path[-1].below[level])
        path[-1].topic_filter = None
        for level in reversed(levels):  # a branch that holds nothing is not kept
            last = path.pop()
            if last.below or last.topic_filter is not None:
                return
            del path[-1].below[level]

    def matching(self, topic: bytes) -> Iterator[bytes]:
        """The filters that match this name."""
        return self._above(topic)

    def coverers(self, topic_filter: bytes) -> Iterator[bytes]:
        """The other filters that cover this one."""
        return (wide for wide in self._above(topic_filter) if wide != topic_filter)

    def _above(self, name: bytes) -> Iterator[bytes]:
        """Read as a name, a filter falls under exactly the filters that cover it: `+` as well as any other level, `#`
        only under a `#`."""
        levels = name.split(b"/")
        pending = [(self._root, 0)]
        while pending:
            place, depth = pending.pop()
            level = levels[depth] if depth < len(levels) else None
            wild = depth > 0 or name[:1] != b"$"  # [MQTT-4.7.2-1]
            if wild and (rest := place.below.get(b"#")) is not None and rest.topic_filter is not None:
                yield rest.topic_filter
            if level is None:
                if place.topic_filter is not None:
                    yield place.topic_filter
            elif level != b"#":
                if wild and (single := place.below.get(b"+")) is not None:
                    pending.append((single, depth + 1))
                if level != b"+" and (exact := place.below.get(level)) is not None:
                    pending.append((exact, depth + 1))

    def covered(self, topic_filter: bytes) -> Iterator[bytes]:
        """The other filters that this one covers."""
        levels = topic_filter.split(b"/")
        pending = [(self._root, 0)]
        while pending:
            place, depth = pending.pop()
            if depth == len(levels):
                if place.topic_filter is not None and place.topic_filter != topic_filter:
                    yield place.topic_filter
            elif levels[depth] == b"#":
                yield from (found for found in _everything(place, depth) if found != topic_filter)
            else:
                pending.extend((below, depth + 1) for below in _under(place, levels[depth], depth))

    def overlapping(self, topic_filter: bytes) -> Iterator[bytes]:
        """The filters, this one included, that some topic matches together with this one."""
        levels = topic_filter.split(b"/")
        pending = [(self._root, 0)]
        while pending:
            place, depth = pending.pop()
            level = levels[depth] if depth < len(levels) else None
            if level == b"#":
                yield from _everything(place, depth)
                continue
            wild = depth > 0 or topic_filter[:1] != b"$"
            if wild and (rest := place.below.get(b"#")) is not None and rest.topic_filter is not None:
                yield rest.topic_filter
            if level is None:
                if place.topic_filter is not None:
                    yield place.topic_filter
                continue
            pending.extend((below, depth + 1) for below in _under(place, level, depth))
            if wild and level != b"+" and (single := place.below.get(b"+")) is not None:
                pending.append((single, depth + 1))


def _under(place: _Place, level: bytes, depth: int) -> list[_Place]:
    """The branches that one level of a filter, not a `#`, covers."""
    if level == b"+":
        return [below for name, below in place.below.items() if name != b"#" and (depth or name[:1] != b"$")]
    exact = place.below.get(level)
    return [] if exact is None else [exact]


def _everything(place: _Place, depth: int) -> Iterator[bytes]:
    """Every filter that a `#` below this place reaches: also the one that ends here, never one that begins with `$`."""
    pending = [place]
    if depth == 0:
        pending = [below for name, below in place.below.items() if name[:1] != b"$"]
    while pending:
        place = pending.pop()
        if place.topic_filter is not None:
            yield place.topic_filter
        pending.extend(place.below.values())
