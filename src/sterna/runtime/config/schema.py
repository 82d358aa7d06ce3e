"""The schema of configuration files: a class is a table, a field a key, and everything else is derived from both.

Tables are structs of ours or dataclasses of the cores.  `keys_of` says what a table may hold, `as_plain` turns one into
plain values.  The marks on fields are those of `vocabulary.settings`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from sterna.vocabulary.settings import MANY, Allowed, Choice, Hidden, ShownDefault

_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):(?P<port>\d+)")
_NOT_NEGATIVE = Allowed(0, MANY)
REQUIRED: Any = msgspec.NODEFAULT
"""The default of a key that has none."""


class Unusable(ValueError):
    """A value that cannot be used, and what to write instead."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(f"{text}; {fix}")
        self.text = text
        self.fix = fix


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """Where to listen: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    """0 lets the system pick a free port."""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Bind:
        if text.startswith("unix:"):
            if text == "unix:":
                raise Unusable("the socket has no path", 'write "unix:/run/sterna.sock"')
            return cls(path=text.removeprefix("unix:"))
        found = _HOST_AND_PORT.fullmatch(text)
        if found is None:
            raise Unusable(f'"{text}" is no address', 'write "127.0.0.1:1883", "[::1]:1883" or "unix:/run/sterna.sock"')
        host, port = found["host"].strip("[]"), int(found["port"])
        if host in ("", "*"):
            raise Unusable("the host is missing", f'write "127.0.0.1:{port}", or "0.0.0.0:{port}" for every interface')
        if port > 65535:
            raise Unusable(f"port {port} is out of range", "use 1..65535")
        return cls(host, port)

    @property
    def is_local(self) -> bool:
        """Nobody outside this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""


class Key(NamedTuple):
    """One key of a table: the attribute it fills, the type it must have (None left out), and the marks on it."""

    attribute: str
    kind: Any
    optional: bool
    default: Any
    """`REQUIRED` if there is none."""
    range: Allowed
    """Of a number."""
    choices: tuple[str, ...]
    """Of a text; empty: any."""
    hidden: bool
    shown_default: str

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


#: Derived once: evaluating annotations takes its time.
_KEYS: dict[type[Any], dict[str, Key]] = {}


def keys_of(table: type[Any]) -> dict[str, Key]:
    """The keys of a table as they are spelled in the file, its own before those it inherits."""
    if table not in _KEYS:
        _KEYS[table] = _derived(table)
    return _KEYS[table]


def _derived(table: type[Any]) -> dict[str, Key]:
    hints = get_type_hints(table, include_extras=True)
    found = {name: _key(attribute, hints[attribute], default) for name, attribute, default in _fields(table)}
    own = {name for name, key in found.items() if key.attribute in table.__annotations__}
    return {name: found[name] for name in sorted(found, key=lambda name: name not in own)}


def _fields(table: type[Any]) -> list[tuple[str, str, Any]]:
    """Key, attribute and default of every field."""
    if issubclass(table, Struct):
        return [(one.encode_name, one.name, _default(one)) for one in msgspec.structs.fields(table)]
    return [(one.name, one.name, _default(one)) for one in dataclasses.fields(table)]


def _default(field: Any) -> Any:
    """A struct's fields have the same attributes as those of dataclasses, and another word for nothing."""
    for value in (field.default, field.default_factory):
        if value is not dataclasses.MISSING and value is not msgspec.NODEFAULT:
            return value() if value is field.default_factory else value
    return REQUIRED


def _key(attribute: str, hint: Any, default: Any) -> Key:
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    optional = type(None) in get_args(kind)
    if optional:
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    by_type = {type(mark): mark for mark in marks}
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if Choice in by_type:
        choices = tuple(by_type[Choice].names)
    shown = by_type[ShownDefault].text if ShownDefault in by_type else ""
    limits = by_type.get(Allowed, _NOT_NEGATIVE)
    return Key(attribute, kind, optional, default, limits, choices, Hidden in by_type, shown)


def is_table(kind: Any) -> bool:
    """Ours are structs, those of the cores dataclasses; an address is a value."""
    return isinstance(kind, type) and (
        issubclass(kind, Table) or (dataclasses.is_dataclass(kind) and not issubclass(kind, Bind))
    )


def table_in_list(kind: Any) -> type[Any] | None:
    """The table type of an array of tables, None for every other kind."""
    inner = get_args(kind)[0] if get_origin(kind) is tuple else None
    return inner if is_table(inner) else None


def as_plain(value: Any) -> Any:
    """Dicts, lists, text and numbers, keys spelled as in the file, without secrets.  Unset keys are left out, unless
    that would mean their default: those are empty."""
    if is_table(type(value)):
        keys = {name: key for name, key in keys_of(type(value)).items() if not key.hidden}
        items = {name: (key, getattr(value, key.attribute)) for name, key in keys.items()}
        return {
            name: "" if item is None else as_plain(item)
            for name, (key, item) in items.items()
            if item is not None or key.default is not None
        }
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return str(value) if isinstance(value, Bind | Path) else value
