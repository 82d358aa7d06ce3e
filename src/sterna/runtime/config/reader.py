"""Reads a configuration from a TOML file and the environment, or gives every reason why not.

The environment wins over the file, the file over the defaults.  Nothing is guessed and nothing is skipped: an unknown
name, a wrong type and a rule broken are all reported in one go, each with its place and its fix.
A relative path in the file is taken from the file's directory, one in the environment from the current directory.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec

from sterna.runtime.config.problems import InvalidConfiguration, Problem, ProblemReport
from sterna.runtime.config.schema import Bind, Key, Table, Unusable, as_plain, is_table, keys_of, table_in_list
from sterna.runtime.config.toml_source import BadSyntax, Place, TomlSource, write_toml

_PREFIX = "STERNA_"
_RESERVED = re.compile(r"STERNA_PEER|STERNA_INTERPRETED|STERNA_KILL_.*|STERNA_TEST_.*")
_INDEX = re.compile(r"(?<=_)\d{1,2}(?=_)")
_UNUSABLE = object()
_KINDS = {
    str: ("text", "put it in quotes"),
    int: ("a whole number", "write it like 10, without quotes"),
    float: ("a number", "write it like 2.5, without quotes"),
    bool: ("true or false", "write true or false, without quotes"),
}


#: Other brokers' names for `bind`.
_NAMES_OF_BIND = frozenset({"port", "address", "host", "listen", "socket", "bind_address"})

T = TypeVar("T", bound=Table)
Rules = Callable[[T, dict[str, Any], ProblemReport], T]


def load_as(kind: type[T], rules: Rules[T], path: Path | None, environ: Mapping[str, str]) -> T:
    """A configuration of this kind, read, checked and complete; InvalidConfiguration with everything that is wrong."""
    source = _read(path)
    report = ProblemReport(str(path or ""), source)
    tree = source.tree
    for name, place in _from_environment(kind, environ, report):
        report.environment[place] = name
        _lay_over(tree, place, environ[name])
    reader = _TreeReader(report, path.absolute().parent if path else Path.cwd())
    configuration: T = reader.table(kind, tree, ())
    configuration = rules(configuration, tree, report)
    report.raise_if_any()
    return configuration


def as_toml(configuration: Table) -> str:
    """The effective configuration, readable by `load`."""
    return write_toml(as_plain(configuration))


def _read(path: Path | None) -> TomlSource:
    if path is None:
        return TomlSource("")
    try:
        return TomlSource(path.read_text("utf-8"))
    except BadSyntax as error:
        problem = Problem(str(path), error.line, "", f"not TOML: {error}", "correct this line or the one before it")
    except OSError as error:
        problem = Problem(str(path), None, "", f"cannot be read: {error.strerror}", "name a readable file")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = Problem(str(path), line, "", "not UTF-8", "save the file as UTF-8")
    raise InvalidConfiguration([problem])


def _from_environment(
    kind: type[Table], environ: Mapping[str, str], report: ProblemReport
) -> Iterator[tuple[str, Place]]:
    names = {_PREFIX + "_".join(map(str, place)).upper(): place for place in _leaves(kind)}
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or _RESERVED.fullmatch(name):
            continue
        pattern = names.get(_INDEX.sub("0", name))
        if pattern is None:
            near = _nearest(name.removeprefix(_PREFIX), [known.removeprefix(_PREFIX) for known in names])
            report.add_unknown_variable(name, near and _PREFIX + near)
        else:
            indices = (int(index) for index in _INDEX.findall(name))
            yield name, tuple(next(indices) if part == 0 else part for part in pattern)


def _leaves(table: type[Any], prefix: Place = ()) -> Iterator[Place]:
    """Every place that holds a value; 0 stands for any index."""
    for key, found in keys_of(table).items():
        if is_table(found.kind):
            yield from _leaves(found.kind, (*prefix, key))
        elif inner := table_in_list(found.kind):
            yield from _leaves(inner, (*prefix, key, 0))
        else:
            yield (*prefix, key)


def _lay_over(tree: Any, place: Place, text: str) -> None:
    """Set the value in the tree, making tables on the way; a tree of another shape is left for the reader to report."""
    for here, below in itertools.pairwise(place):
        if isinstance(here, int):
            tree.extend({} for _ in range(here + 1 - len(tree)))
            tree = tree[here]
        else:
            tree = tree.setdefault(here, [] if isinstance(below, int) else {})
        if not isinstance(tree, list if isinstance(below, int) else dict):
            return
    tree[place[-1]] = text


def _nearest(word: str, known: Iterable[str]) -> str | None:
    """A slip of the hand or two, or more in a long word; what is further away was meant otherwise."""
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.72)), None)


class _TreeReader:
    """Turns the raw tree into settings; reports what does not fit and goes on with the default in its place."""

    def __init__(self, report: ProblemReport, directory: Path) -> None:
        self._report = report
        self._directory = directory

    def table(self, kind: type[Any], raw: Any, place: Place) -> Any:
        if not isinstance(raw, dict):
            self._report.add(place, "must be one table", f"write [{place[-1]}]")
            return _UNUSABLE
        keys = keys_of(kind)
        for unknown in raw.keys() - keys.keys():
            near = "bind" if unknown in _NAMES_OF_BIND and "bind" in keys else _nearest(unknown, keys)
            fix = f"did you mean {near}?" if near else f"use one of {', '.join(keys)}"
            self._report.add((*place, unknown), "unknown key" if place else "unknown table", fix)
        values = {}
        for name, key in keys.items():
            if name not in raw:
                continue
            value = self._value(key, raw[name], (*place, name))
            if value is not _UNUSABLE:
                values[key.attribute] = value
        missing = [name for name, key in keys.items() if key.required and key.attribute not in values]
        for name in missing:
            if name not in raw:
                self._report.add((*place, name), "is missing", f"add {name} = ...")
        return _UNUSABLE if missing else kind(**values)

    def _value(self, key: Key, raw: Any, place: Place) -> Any:
        if is_table(key.kind):
            return self.table(key.kind, raw, place)
        if inner := table_in_list(key.kind):
            return self._tables(inner, raw, place)
        if key.optional and raw == "":
            return None
        try:
            if key.choices and raw not in key.choices:
                raise _no_choice(raw, key.choices)
            return self._leaf(key.kind, raw, place)
        except Unusable as error:
            self._report.add(place, error.text, error.fix)
            return _UNUSABLE

    def _tables(self, kind: type[Any], raw: Any, place: Place) -> Any:
        if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
            self._report.add(place, "must be a list of tables", f"write [[{'.'.join(map(str, place))}]]")
            return _UNUSABLE
        tables = [self.table(kind, item, (*place, index)) for index, item in enumerate(raw)]
        # A list with a hole would shift the places of what follows, so one bad table spoils the list.
        return _UNUSABLE if _UNUSABLE in tables else tuple(tables)

    def _leaf(self, kind: Any, raw: Any, place: Place) -> Any:
        from_environment = place in self._report.environment
        if kind is Bind or kind is Path:
            text = _convert(raw, str, strict=True)
            if kind is Bind:
                return Bind.parse(text)
            if not text or "\0" in text:
                raise Unusable("is no path", "name a file or directory")
            return (Path.cwd() if from_environment else self._directory) / text
        if get_origin(kind) is tuple and isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",")] if from_environment else [raw]
        return _convert(raw, kind, strict=not from_environment)


def _convert(raw: Any, kind: Any, *, strict: bool) -> Any:
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError:
        raise _misfit(raw, kind) from None


def _misfit(raw: Any, kind: Any) -> Unusable:
    if get_origin(kind) is Mapping:
        return Unusable(f"{_shown(raw)} is not a table of numbers", "write it like { site = 2 }")
    expected, fix = ("a list of text", 'write it like ["a", "b"]') if get_origin(kind) is tuple else _KINDS[kind]
    return Unusable(f"{_shown(raw)} is not {expected}", fix)


def _no_choice(raw: Any, choices: tuple[str, ...]) -> Unusable:
    near = _nearest(str(raw), choices)
    text = f"{_shown(raw)} is none of {', '.join(map(_shown, choices))}"
    return Unusable(text, f'did you mean "{near}"?' if near else "choose one of them")


def _shown(raw: Any) -> str:
    return f'"{raw}"' if isinstance(raw, str) else str(raw).lower() if isinstance(raw, bool) else str(raw)
