"""A listener of a mosquitto.conf as a `[[listener]]` table, and who may come in by it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.runtime.mosquitto.conf_lines import Untranslated, resolved
from sterna.runtime.mosquitto.sections import ListenerSection, Sections


@dataclass(frozen=True, slots=True)
class ListenerAccess:
    """Clients that may come in by a listener, and what they may do."""

    anonymous: bool
    password_file: Path | None
    acl_file: Path | None

    @classmethod
    def of(cls, section: ListenerSection, parts: Sections, file: Path) -> ListenerAccess:
        whole = {line.key: line.value for line in parts.whole}

        def value(key: str) -> str:
            return section.value(key) or whole.get(key, "")

        said = value("allow_anonymous")
        return cls(
            anonymous=said == "true" if said else parts.is_local_only,
            password_file=resolved(path, file) if (path := value("password_file")) else None,
            acl_file=resolved(path, file) if (path := value("acl_file")) else None,
        )

    def is_like(self, other: ListenerAccess) -> bool:
        """A node has one list of users and one of rules for all its listeners."""
        return (self.password_file, self.acl_file) == (other.password_file, other.acl_file)


def why_left_out(section: ListenerSection, guard: ListenerAccess, kept: ListenerAccess) -> Untranslated | None:
    """None if a node can have this listener; `kept` is the guard that the node gets."""
    if not guard.is_like(kept):
        return Untranslated(
            section.line,
            "a node has one password file and one list of rules for all listeners, and this listener has others",
            "it is left out; start a second node with them, and link the two",
        )
    if not _is_address(section.line.value):
        return Untranslated(section.line, "it is no address", "write listener PORT [ADDRESS]; it is left out")
    if section.says("require_certificate") and not (section.value("certfile") and section.value("cafile")):
        return Untranslated(
            section.lines["require_certificate"],
            "a node checks certificates by one file of authorities, on listeners with TLS",
            "set certfile, keyfile and cafile; the listener is left out",
        )
    if not (guard.anonymous or guard.password_file or section.says("require_certificate")):
        return Untranslated(
            section.line,
            "nobody could connect: allow_anonymous is false, and no password_file or certificate proves users",
            "add a password_file, or say allow_anonymous true; it is left out",
        )
    return None


def listener_table(section: ListenerSection, guard: ListenerAccess, file: Path) -> dict[str, Any]:
    table: dict[str, Any] = {"bind": _bind(section), "anonymous": guard.anonymous}
    if section.value("protocol") == "websockets":
        table["transport"] = "websocket"
    if not section.value("certfile"):
        return table
    table["certificate"] = str(resolved(section.value("certfile"), file))
    table["key"] = str(resolved(section.value("keyfile"), file))
    if section.says("require_certificate"):
        table["require_certificate"] = True
        table["client_ca"] = str(resolved(section.value("cafile"), file))
    return table


def _is_address(value: str) -> bool:
    """`PORT`, `PORT ADDRESS` or `0 PATH`."""
    port, *rest = value.split(None, 1) or [""]
    if port == "0":
        return bool(rest) and rest[0].startswith("/")
    return port.isdecimal() and int(port) < 65536 and not (rest and " " in rest[0])


def _bind(section: ListenerSection) -> str:
    """`listener PORT [ADDRESS]`, `listener 0 PATH`, or `port PORT` with `bind_address ADDRESS`."""
    port, *rest = section.line.value.split(None, 1)
    host = rest[0] if rest else section.value("bind_address") or "0.0.0.0"
    if port == "0":
        return f"unix:{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
