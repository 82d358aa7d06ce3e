"""A translation as text: the TOML file of a node, or a JSON document for programs."""

from __future__ import annotations

import json
from typing import Any

from sterna.runtime.mosquitto.bridges import Bridge
from sterna.runtime.mosquitto.translation import Translation

BRIDGE_REMEDY = (
    "the first one that can be translated is [interworking]; a node joins one broker, so each other one needs a node"
)


def as_toml(found: Translation) -> str:
    """Bridges, as they were, and lines without a counterpart stand in comments at the end."""
    lines = [f"# Translated from {found.file}"]
    for name, settings in found.tables.items():
        lines += ["", f"[{name}]", *_settings(settings)]
        if name == "authorization":
            for rule in found.rules:
                lines += ["", "[[authorization.rule]]", *_settings(rule)]
    for listener in found.listeners:
        lines += ["", "[[listener]]", *_settings(listener)]
    if found.bridges:
        lines += ["", f"# Bridges: {BRIDGE_REMEDY}."]
        lines += [f"# {text}" for bridge in found.bridges for text in _bridge(bridge)]
    if found.untranslated:
        lines += ["", "# Without a counterpart:"]
        lines += [f"# {_in_one_line(str(one))}" for one in found.untranslated]
    return "\n".join(lines) + "\n"


def as_json(found: Translation) -> str:
    untranslated = [
        {"place": one.line.place, "line": one.line.text, "reason": one.reason, "remedy": one.remedy}
        for one in found.untranslated
    ]
    bridges = [bridge.as_plain() for bridge in found.bridges]
    return json.dumps(
        {"configuration": as_toml(found), "bridges": bridges, "untranslated": untranslated},
        indent=2,
        ensure_ascii=False,
    )


def _settings(settings: dict[str, Any]) -> list[str]:
    # Texts, numbers, truths and lists of them are written the same way in JSON.
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def _bridge(bridge: Bridge) -> list[str]:
    to = " or ".join(bridge.addresses) or "nowhere"
    settings = ", ".join(f"{key} {value}" for key, value in bridge.settings.items())
    lines = [f"bridge {bridge.name} ({bridge.line.place}) to {to}", *(f"  {topic}" for _, topic in bridge.topics)]
    return [_in_one_line(text) for text in (*lines, *([f"  with {settings}"] if settings else []))]


def _in_one_line(text: str) -> str:
    """A comment must not end where a name from a file wants it to."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
