"""How packages come that only some of Sterna needs: as extras, of a clone or of a wheel; no package index has it."""

from __future__ import annotations


def how_to_add(extra: str) -> str:
    """Two commands that pip takes; WHEEL stands for the file that `make wheel` makes."""
    return f"run: pip install '.[{extra}]' in a clone of Sterna, or pip install 'WHEEL[{extra}]' with its wheel"
