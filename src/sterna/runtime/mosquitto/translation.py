"""A mosquitto.conf as the configuration of a node, and every line that has no counterpart with reason and remedy.

Nothing is opened wider than it was: a listener whose clients could not be told apart as Mosquitto does is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sterna.broker.access.passwords import PasswordFile
from sterna.runtime.mosquitto.acl_file import AclTranslation
from sterna.runtime.mosquitto.bridge_table import BridgeTable
from sterna.runtime.mosquitto.bridges import Bridge
from sterna.runtime.mosquitto.conf_lines import ConfLine, Untranslated, read_conf, read_lines, read_text, resolved
from sterna.runtime.mosquitto.listeners import ListenerAccess, listener_table, why_left_out
from sterna.runtime.mosquitto.options import (
    DURATIONS_S,
    IMPOSSIBLE,
    LOG_LEVELS,
    NEEDLESS,
    NUMBERS,
    PLUGIN_OPTIONS,
    SESSION_EXPIRY_S_MAX,
    SEVERITIES,
    TRUTHS,
)
from sterna.runtime.mosquitto.sections import ListenerSection, Sections, sections
from sterna.vocabulary.errors import ConfigurationError


@dataclass(slots=True)
class Translation:
    file: Path
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    listeners: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    bridges: list[Bridge] = field(default_factory=list)
    untranslated: list[Untranslated] = field(default_factory=list)
    passwords: str | None = None
    """The lines of the password file that a node takes, where it does not take all of them."""
    bridge_password: ConfLine | None = None
    """The line with the password for the broker in [interworking]."""

    def set(self, table: str, key: str, value: Any) -> None:
        self.tables.setdefault(table, {})[key] = value

    def refuse(self, line: ConfLine, reason: str, remedy: str) -> None:
        self.untranslated.append(Untranslated(line, reason, remedy))


def translate(file: Path) -> Translation:
    found = Translation(file)
    lines = read_conf(file)
    parts = sections(lines, str(file))
    found.bridges = parts.bridges
    found.untranslated += parts.untranslated
    for line in lines:
        if line.key in TRUTHS and line.value not in ("true", "false"):
            found.refuse(line, "it is neither true nor false", "correct it, and translate the file again")
    guards = [ListenerAccess.of(section, parts, file) for section in parts.listeners]
    guard = max(guards, key=lambda one: bool(one.password_file) + bool(one.acl_file))
    _translate_listeners(found, parts, guards, guard)
    for line in parts.whole:
        _translate_line(found, line)
    _translate_bridges(found)
    if guard.password_file:
        _translate_passwords(found, guard)
    if guard.acl_file:
        _translate_acl(found, guard)
    _sort_untranslated(found, lines)
    return found


def _sort_untranslated(found: Translation, lines: list[ConfLine]) -> None:
    """As they are read; lines of password and ACL files come last."""
    files = {name: place for place, name in enumerate(dict.fromkeys(line.file for line in lines))}
    found.untranslated.sort(key=lambda one: (files.get(one.line.file, len(files)), one.line.file, one.line.number))


def _translate_listeners(
    found: Translation, parts: Sections, guards: list[ListenerAccess], kept: ListenerAccess
) -> None:
    taken: list[ListenerSection] = []
    for section, guard in zip(parts.listeners, guards, strict=True):
        if problem := why_left_out(section, guard, kept):
            found.untranslated.append(problem)
            continue
        taken.append(section)
        found.listeners.append(listener_table(section, guard, found.file))
        _translate_listener_limits(found, section)
        if section.says("use_identity_as_username") and section.says("require_certificate"):
            found.set("authentication", "certificates", True)
    _translate_connections(found, taken)
    if not found.listeners:
        raise ConfigurationError("\n".join(["no listener is left:", *map(str, found.untranslated)]))


def _translate_listener_limits(found: Translation, section: ListenerSection) -> None:
    for key, line in section.lines.items():
        if key in NUMBERS:
            _translate_number(found, line)
        elif key in IMPOSSIBLE and line.value != "false":
            found.refuse(line, *IMPOSSIBLE[key])


def _translate_connections(found: Translation, kept: list[ListenerSection]) -> None:
    """A node counts the connections of all listeners together, so each must have a limit."""
    lines = [section.lines["max_connections"] for section in kept if "max_connections" in section.lines]
    good = [line for line in lines if line.value.isdecimal() and int(line.value)]
    if len(good) == len(kept):
        found.set("limits", "connections", sum(int(line.value) for line in good))
        return
    for line in lines:
        if line in good:
            found.refuse(
                line,
                "a node counts the connections of all listeners together, and another listener has no limit",
                "set connections in [limits]",
            )
        elif line.value != "-1":
            found.refuse(line, "it is no number of connections", "write a number from 1")


def _translate_bridges(found: Translation) -> None:
    for bridge in found.bridges:
        table = BridgeTable(bridge)
        found.untranslated += table.untranslated
        if not table.is_complete:
            found.refuse(
                bridge.line,
                "nothing of this bridge can be carried",
                "keep it in the configuration of the other broker, with this node as its address",
            )
        elif "interworking" in found.tables:
            found.refuse(
                bridge.line,
                "a node joins one broker",
                f"start another node of the network with `sterna interwork --broker {table.settings['broker']}`",
            )
        else:
            found.tables["interworking"] = table.settings
            found.bridge_password = table.password


def _translate_line(found: Translation, line: ConfLine) -> None:
    if line.key in NUMBERS:
        _translate_number(found, line)
    elif line.key in HANDLERS:
        HANDLERS[line.key](found, line)
    elif line.key in IMPOSSIBLE:
        found.refuse(line, *IMPOSSIBLE[line.key])
    elif line.key.startswith(PLUGIN_OPTIONS):
        found.refuse(line, *IMPOSSIBLE["plugin"])
    elif line.key not in NEEDLESS:
        found.refuse(line, "Mosquitto 2.0 has no such option", "check its spelling, or remove the line")


def _translate_number(found: Translation, line: ConfLine) -> None:
    number = NUMBERS[line.key]
    if not line.value.isdecimal():
        found.refuse(line, "it is no number", "write a number from 0")
        return
    value: int | None = int(line.value) or number.unlimited
    if value is None:
        found.refuse(line, "a node bounds everything", f"its default of {number.key} in [{number.table}] holds")
        return
    within = min(max(value, number.least), number.most)
    found.set(number.table, number.key, within)
    if within != value:
        found.refuse(line, f"a node takes {number.least} to {number.most} here", f"{number.key} is {within} now")


def _persistence(found: Translation, line: ConfLine) -> None:
    found.set("journal", "durability", "fsync" if line.value == "true" else "memory")


def _persistence_location(found: Translation, line: ConfLine) -> None:
    found.set("node", "data", str(resolved(line.value, found.file) / "sterna"))


def _expiration(found: Translation, line: ConfLine) -> None:
    """`2w`, `14d`, `1h`, `1m` (a month), `1y`."""
    told = re.fullmatch(r"(\d{1,9})([hdwmy])", line.value)
    if told is None:
        found.refuse(line, "it is no time", "write a number and h, d, w, m or y")
        return
    seconds = int(told[1]) * DURATIONS_S[told[2]]
    found.set("limits", "session_expiry_s", min(seconds, SESSION_EXPIRY_S_MAX))


def _retain(found: Translation, line: ConfLine) -> None:
    if line.value == "false":
        found.set("limits", "retained", 0)


def _log_type(found: Translation, line: ConfLine) -> None:
    level = LOG_LEVELS.get(line.value)
    if level is None:
        if line.value != "none":
            found.refuse(line, "a node logs by severity", "set level in [log]")
        return
    before = found.tables.get("log", {}).get("level", "error")
    found.set("log", "level", min(level, before, key=SEVERITIES.index))


def _log_dest(found: Translation, line: ConfLine) -> None:
    if line.value not in ("stderr", "stdout", "none"):
        found.refuse(line, "a node logs to stderr", "let the service manager keep the log")


def _client_prefixes(found: Translation, line: ConfLine) -> None:
    found.set("authorization", "client_ids", [f"{line.value}*"])


def _needs_a_false(found: Translation, line: ConfLine) -> None:
    if line.value == "false":
        found.refuse(line, *IMPOSSIBLE["allow_zero_length_clientid"])


def _of_guard(found: Translation, line: ConfLine) -> None:
    """Read for the listeners, see `ListenerAccess`."""


HANDLERS: dict[str, Callable[[Translation, ConfLine], None]] = {
    "persistence": _persistence,
    "persistence_location": _persistence_location,
    "persistent_client_expiration": _expiration,
    "retain_available": _retain,
    "log_type": _log_type,
    "log_dest": _log_dest,
    "clientid_prefixes": _client_prefixes,
    "allow_zero_length_clientid": _needs_a_false,
    "allow_anonymous": _of_guard,
    "password_file": _of_guard,
    "acl_file": _of_guard,
}


def _translate_passwords(found: Translation, guard: ListenerAccess) -> None:
    assert guard.password_file is not None
    good, bad = [], 0
    for number, text in enumerate(read_text(guard.password_file).splitlines(), start=1):
        name = text.partition(":")[0].strip()
        line = ConfLine(str(guard.password_file), number, f"user {name}", "")
        try:
            PasswordFile.parse(text, "")
        except ConfigurationError as error:
            bad += 1
            found.refuse(line, str(error).rpartition("line 1: ")[2], f"make it with `sterna passwd FILE {name}`")
            continue
        good.append(text)
        if ":$6$" in text:
            found.refuse(line, "one round of SHA-512 is quickly guessed", f"taken; better: `sterna passwd FILE {name}`")
    found.set("authentication", "password_file", str(guard.password_file))
    if bad:
        found.passwords = "".join(f"{text}\n" for text in good)


def _translate_acl(found: Translation, guard: ListenerAccess) -> None:
    assert guard.acl_file is not None
    certificates = found.tables.get("authentication", {}).get("certificates", False)
    acl = AclTranslation(users_are_known=bool(guard.password_file) or certificates)
    acl.take(read_lines(guard.acl_file))
    found.rules = acl.rules
    found.untranslated += acl.untranslated
    found.set("authorization", "default", "deny")
    found.set("authorization", "partial_subscriptions", True)
