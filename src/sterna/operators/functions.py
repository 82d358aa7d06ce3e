"""Data processing operators: functions that compute one number from a payload, each under a name of its own.

    functions = Functions()
    functions.register("BRIGHTNESS", brightness, "mean brightness of an image, 0 to 255")

makes `$BRIGHTNESS/camera/+` and `$MAX$HOURLYAVG$BRIGHTNESS/camera/+` expressions.  A function may be slow and may
raise: its caller decides where and for how long it runs.  In a node the caller is not the engine but a pool of
processes (`runtime/functions`); only these processes import the function, and here it is a name and a description.
The counting operators of MQTT+ are part of the language, with or without a function behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sterna.operators.expression import Family
from sterna.operators.keywords import KEYWORDS, Keyword

Compute = Callable[[bytes], float]

_NAME = re.compile(r"[A-Z][A-Z0-9]{0,63}")

#: Functions of the language that an installation brings along, and the extra they come with.
_EXTRAS = {"COUNTPEOPLE": "images"}


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    compute: Compute | None
    """None: it runs elsewhere, and the engine is told the numbers."""
    returns: str
    """The meaning of the number, for people: it stands in `$SYS/capabilities` and in plans."""
    description: str = ""
    """The work on the payload."""


class Functions:
    """The functions a node has, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Function] = {}

    def register(self, name: str, compute: Compute | None, returns: str, description: str = "") -> None:
        """Have `$name` compute.  ValueError if the name is taken by the language or by another function."""
        word = self._word(name)
        if not _NAME.fullmatch(name) or word.family is not Family.FUNCTION or word.name in self._known or name == "SYS":
            raise ValueError(
                f"{name!r} cannot be the name of a function: capital letters and digits, and not yet taken"
            )
        self._known[word.name] = Function(word.name, compute, returns, description)

    def remove(self, name: str) -> None:
        """It turned out that this one cannot be had."""
        self._known.pop(self._word(name).name, None)

    def assuming(self, text: bytes) -> Functions:
        """These, and as one of them every operator of an expression that nobody knows: it was known once."""
        found = Functions()
        found._known.update(self._known)
        for name in re.findall(r"\$([A-Z][A-Z0-9]*)", text.partition(b"/")[0].decode(errors="replace")):
            if name not in KEYWORDS and name != "SYS" and name not in found._known:
                found._known[name] = Function(name, None, "")
        return found

    def get(self, name: str) -> Function | None:
        return self._known.get(self._word(name).name)

    def refusal(self, name: str) -> str | None:
        """Why `$name` cannot be computed here and what to do about it, if so."""
        if self.get(name) is not None:
            return None
        extra = _EXTRAS.get(self._word(name).name)
        install = f"install sterna[{extra}] at the node, or " if extra else ""
        own = f'[[functions.own]] with name = "{name}", call = "module:function" and a description'
        return f"no function computes ${name} here; {install}plug one in: {own} (docs/operators.md)"

    def names(self) -> list[str]:
        return sorted(self._known)

    def capabilities(self) -> list[dict[str, str]]:
        """As `$SYS/capabilities` has them: every spelling of every function there is."""
        return [
            {"keyword": f"${spelling}", "desc": function.description or function.returns, "returns": function.returns}
            for spelling, word in sorted(self.words().items())
            if word.family is Family.FUNCTION and (function := self._known.get(word.name)) is not None
        ]

    def words(self) -> dict[str, Keyword]:
        """The language with these functions."""
        return {**KEYWORDS, **{name: self._word(name) for name in self._known}}

    def _word(self, name: str) -> Keyword:
        return KEYWORDS.get(name) or Keyword(Family.FUNCTION, name, f"${name}")


#: The functions of a node unless somebody registers one.
NO_FUNCTIONS = Functions()
