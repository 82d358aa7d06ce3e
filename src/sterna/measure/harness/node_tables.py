"""The configuration of a node as tables, and its TOML: what one measurement changes is merged into what all share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Tables = Mapping[str, Any]
"""Table name -> settings; a list of mappings for an array of tables."""


def merged(plain: Tables, changes: Tables) -> dict[str, Any]:
    """`changes` win, setting by setting."""
    found = dict(plain)
    for name, settings in changes.items():
        before = found.get(name)
        found[name] = {**before, **settings} if isinstance(before, Mapping) else settings
    return found


def toml(tables: Tables) -> str:
    lines: list[str] = []
    for name, settings in tables.items():
        for one in settings if isinstance(settings, list) else [settings]:
            lines.append(f"[[{name}]]" if isinstance(settings, list) else f"[{name}]")
            # Texts, numbers, truths and lists of them are written the same way in JSON.
            lines += [f"{key} = {json.dumps(value)}" for key, value in one.items()]
    return "\n".join(lines) + "\n"


def network(name: str, bind: str, neighbours: Sequence[str], **more: Any) -> dict[str, Any]:
    """The table of a node's links."""
    return {"name": name, "bind": bind, "neighbours": list(neighbours), **more}
