"""Marks on the fields of statistics: how Prometheus is shown them.

    connections: Annotated[int, Counted("Connections taken in.")] = 0

The field holds the number, the mark the sentence for the operator.  A field that is a table holds numbers by reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """The name is that of the field, unless there is another."""

    help: str
    name: str = ""


class Counted(Shown):
    """It only grows."""

    __slots__ = ()


class Gauged(Shown):
    """It goes up and down."""

    __slots__ = ()
