"""Data processing operators: functions that make one number of a payload, under a name of their own.

    functions = Functions()
    functions.register("BRIGHTNESS", brightness, "mean brightness of an image, 0 to 255")

makes `$BRIGHTNESS/camera/+` and `$MAX$HOURLYAVG$BRIGHTNESS/camera/+` expressions.  A function may be slow and may
raise: whoever calls it (not the engine, in a node) decides where and for how long it runs.  The counting operators of
MQTT+ are part of the language whether or not a function stands behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sterna.operators.expression import Family
from sterna.operators.words import WORDS, Word

Compute = Callable[[bytes], float]

_NAME = re.compile(r"[A-Z][A-Z0-9]{0,63}")


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    compute: Compute
    returns: str
    """What the number means, for people: it stands in `$SYS/capabilities` and in plans."""


class Functions:
    """The functions a node has, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Function] = {}

    def register(self, name: str, compute: Compute, returns: str) -> None:
        """Have `$name` compute.  ValueError if the name is taken by the language or by another function."""
        word = self._word(name)
        if not _NAME.fullmatch(name) or word.family is not Family.FUNCTION or word.name in self._known or name == "SYS":
            raise ValueError(
                f"{name!r} cannot be the name of a function: capital letters and digits, and not yet taken"
            )
        self._known[word.name] = Function(word.name, compute, returns)

    def get(self, name: str) -> Function | None:
        return self._known.get(self._word(name).name)

    def names(self) -> list[str]:
        return sorted(self._known)

    def words(self) -> dict[str, Word]:
        """The language with these functions."""
        return {**WORDS, **{name: self._word(name) for name in self._known}}

    def _word(self, name: str) -> Word:
        return WORDS.get(name) or Word(Family.FUNCTION, name, f"${name}")


#: What a node has unless somebody registers something.
NO_FUNCTIONS = Functions()
