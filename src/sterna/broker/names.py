"""A set of topic names that can be asked which of them a filter matches, and stops looking when that takes too long.

It costs a dict entry per level that names do not share: far less than a tree of objects.
"""

from __future__ import annotations

from typing import Final, Optional

#: Names below a level; None where a name ends and none goes on.
_Below = dict[bytes, Optional["_Below"]]

#: Marks, among the names below a level, that a name ends there too.  No level contains a slash.
_END: Final = b"/"


class Names:
    __slots__ = ("_top",)

    def __init__(self) -> None:
        self._top: _Below = {}

    def clear(self) -> None:
        self._top.clear()

    def add(self, name: bytes) -> None:
        levels = name.split(b"/")
        place = self._top
        for level in levels[:-1]:
            below = place.get(level)
            if below is None:
                # Whether there is nothing yet or only a name that ends here.
                below = {_END: None} if level in place else {}
                place[level] = below
            place = below
        last = place.get(levels[-1])
        if last is None:
            place[levels[-1]] = None
        else:
            last[_END] = None

    def remove(self, name: bytes) -> None:
        """A name that was added."""
        levels = name.split(b"/")
        path = [self._top]
        for level in levels[:-1]:
            below = path[-1][level]
            assert below is not None
            path.append(below)
        last = path[-1][levels[-1]]
        if last is not None:
            del last[_END]  # others go on below, or it would be None
            if last:
                return
        while path:
            place = path.pop()
            del place[levels[len(path)]]
            if place:
                return

    def match(self, topic_filter: bytes, most: int) -> tuple[list[bytes] | None, int]:
        """The names that a filter with wildcards matches (None if that takes more than `most` steps), and the steps.

        The rule that wildcards do not reach `$` topics is not applied: a few names too many do no harm here.
        """
        levels = topic_filter.split(b"/")
        found: list[bytes] = []
        steps = 0
        line: list[tuple[int, bytes, _Below]] = [(0, b"", self._top)]
        while line:
            depth, prefix, place = line.pop()
            level = levels[depth] if depth < len(levels) else b"#"
            last = depth == len(levels) - 1 and level != b"#"
            wild = level in (b"+", b"#")
            steps += len(place) if wild else 1
            if steps > most:
                return None, steps
            # A `#` that is next also matches what ends here.
            ends = level == b"#" or last or (depth == len(levels) - 2 and levels[-1] == b"#")
            for name in place if wild else (level,):
                if name not in place:
                    continue
                below = place[name]
                if name == _END:
                    if level == b"#":
                        found.append(prefix[:-1])
                elif below is None:
                    if ends:
                        found.append(prefix + name)
                elif last:
                    if _END in below:
                        found.append(prefix + name)
                else:
                    line.append((depth + 1, prefix + name + b"/", below))
        return found, steps
