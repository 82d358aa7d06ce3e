"""A TOML file that remembers where its keys stand.

`tomllib` forgets line numbers; an operator needs them.  A *place* is the path to a value, such as
("listener", 0, "bind"); `TomlSource.line_of` finds its line, or that of the nearest thing around it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_SYNTAX_LINE = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


class BadSyntax(ValueError):
    """Not TOML.  `line` is where reading stopped."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class TomlSource:
    """The tree of one file and the lines of its keys."""

    def __init__(self, text: str) -> None:
        try:
            self.tree: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = _SYNTAX_LINE.search(str(error))
            line = found and found["line"]
            last = max(1, len(text.splitlines()))
            raise BadSyntax(_SYNTAX_LINE.sub("", str(error)), int(line) if line else last) from None
        self._lines: dict[Place, int] = {}
        for place, number in _places(text):
            self._lines.setdefault(place, number)

    def line_of(self, place: Place) -> int | None:
        for end in range(len(place), 0, -1):
            if place[:end] in self._lines:
                return self._lines[place[:end]]
        return None


def _places(text: str) -> Iterator[tuple[Place, int]]:
    table: Place = ()
    counts: dict[Place, int] = {}
    for number, line in _lines_outside_long_strings(text):
        if header := _HEADER.match(line):
            table = _table_place(header[2], is_array=header[1] == "[[", counts=counts)
            yield from ((table[:end], number) for end in range(1, len(table) + 1))
        elif key := _KEY.match(line):
            place = table
            for part in _parts(key[1]):
                place = (*place, part)
                yield place, number


def _table_place(name: str, *, is_array: bool, counts: dict[Place, int]) -> Place:
    """`[[a]]` is the next a; `[a.b]` after it lies in that a."""
    place: Place = ()
    parts = _parts(name)
    for position, part in enumerate(parts):
        place = (*place, part)
        if is_array and position == len(parts) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


def _lines_outside_long_strings(text: str) -> Iterator[tuple[int, str]]:
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not quote:
            yield number, line
        for mark in re.findall(r'"""|\'\'\'', line):
            quote = "" if quote == mark else quote or mark


def write_toml(tree: dict[str, Any], prefix: str = "") -> str:
    """The tree as TOML: tables, arrays of tables, text, numbers, truth values and lists of those."""
    simple = [f"{key} = {_literal(value)}" for key, value in tree.items() if not _is_nested(value)]
    blocks = ["\n".join(simple)] if simple else []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            blocks.append(f"[{name}]\n{write_toml(value, f'{name}.')}")
        elif _is_nested(value):
            blocks.extend(f"[[{name}]]\n{write_toml(item, f'{name}.')}" for item in value)
    return "\n".join(block if block.endswith("\n") else f"{block}\n" for block in blocks)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
    return repr(value)
