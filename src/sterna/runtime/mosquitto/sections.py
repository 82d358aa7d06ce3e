"""A mosquitto.conf taken apart: lines for the whole broker, for each listener and for each bridge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sterna.runtime.mosquitto import bridges
from sterna.runtime.mosquitto.conf_lines import ConfLine, Untranslated
from sterna.runtime.mosquitto.options import LISTENER_OPTIONS, SECURITY_OPTIONS

DEFAULT_PORT = "1883"
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class ListenerSection:
    """One listener; `port` and `bind_address` make the first, unnamed one."""

    line: ConfLine
    lines: dict[str, ConfLine] = field(default_factory=dict)
    """By option; the last of two lines counts, as it does for Mosquitto."""

    def value(self, key: str) -> str:
        return self.lines[key].value if key in self.lines else ""

    def says(self, key: str) -> bool:
        return self.value(key) == "true"


@dataclass(slots=True)
class Sections:
    whole: list[ConfLine] = field(default_factory=list)
    listeners: list[ListenerSection] = field(default_factory=list)
    bridges: list[bridges.Bridge] = field(default_factory=list)
    untranslated: list[Untranslated] = field(default_factory=list)
    is_local_only: bool = False
    """Nothing says where to listen: Mosquitto 2 then takes anonymous clients of the same machine."""


def sections(lines: Iterable[ConfLine], file: str) -> Sections:
    lines = list(lines)
    found = Sections()
    per_listener = any(line.key == "per_listener_settings" and line.value == "true" for line in lines)
    own = LISTENER_OPTIONS | SECURITY_OPTIONS if per_listener else LISTENER_OPTIONS
    unnamed = ListenerSection(ConfLine(file, 1, "port", DEFAULT_PORT))
    current, asked_for = unnamed, False
    for line in lines:
        if line.key == "listener":
            current = ListenerSection(line)
            found.listeners.append(current)
        elif line.key == "port":
            unnamed.line, asked_for = line, True
        elif line.key == "bind_address":
            unnamed.lines[line.key], asked_for = line, True
        elif line.key == "connection":
            found.bridges.append(bridges.Bridge(line))
        elif bridges.is_key(line.key):
            _take_for_bridge(found, line)
        elif line.key in own:
            current.lines[line.key] = line
        else:
            found.whole.append(line)
    found.is_local_only = not found.listeners and not asked_for
    if found.is_local_only:
        unnamed.line = unnamed.line._replace(value=f"{DEFAULT_PORT} {LOOPBACK}")
    if asked_for or not found.listeners:
        found.listeners.insert(0, unnamed)
    else:
        found.untranslated += [
            Untranslated(line, "it stands before the first listener, which Mosquitto does not use", "move or remove it")
            for line in unnamed.lines.values()
        ]
    return found


def _take_for_bridge(found: Sections, line: ConfLine) -> None:
    if not found.bridges:
        found.untranslated.append(Untranslated(line, "no connection line stands before it", "name the bridge first"))
    elif problem := found.bridges[-1].take(line):
        found.untranslated.append(problem)
