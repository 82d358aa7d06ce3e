"""Marks on the fields of settings.  A setting is written once, as one field of one class:

    keep_alive_s: Annotated[float, Allowed(0.05, 3600)] = 1.0
    '''A link that has sent nothing for so long sends a keep-alive.'''

The field holds the key's name, type, range and default; the text below it is the sentence for the operator.  The unit
is the end of the name: `_s`, `_ms` or `_bytes`.  The reader of the configuration, its checks, the names of environment
variables and the tables in `docs/configuration.md` are all derived from the field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

MANY: Final = 2**63 - 1
"""The largest number a setting may have."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The numbers a setting may have.  A number without this mark may be 0 or more."""

    least: float
    most: float = MANY


@dataclass(frozen=True, slots=True)
class Choice:
    """The names a setting may have, such as those of a registry."""

    names: Iterable[str]


@dataclass(frozen=True, slots=True)
class ShownDefault:
    """The default in words, where it depends on the machine or on other settings."""

    text: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """A secret: the effective configuration is printed without it."""


def values_of(kind: type[Any], settings: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name, as some settings that have them all have them."""
    return {one.name: getattr(settings, one.name) for one in fields(kind)}
