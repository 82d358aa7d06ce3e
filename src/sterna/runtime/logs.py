"""Structured logs to stderr: one event per line, with fields as key=value pairs or as one JSON object.

Code says `log.info("client connected", extra={"client": client_id, "address": address})`.  A value from a client cannot
begin a new line, and keys that name secrets never show them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRET = re.compile(r"password|passwd|secret|token|credential|private", re.IGNORECASE)
_PLAIN = re.compile(r"[^\s\"=\\]+")
VALUE_CHARACTERS_MAX = 1024
"""A longer value is cut: a client id may be 64 KiB, and it is the client who chooses it."""


def configure(level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Send every log of the process to stderr in this form, from this level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def circumstances(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that the caller gave as `extra`, secrets hidden."""
    return {
        key: "***" if _SECRET.search(key) else _shown(value)
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [_instant(record), record.levelname, _one_line(record.getMessage())]
        # A field without a value (the user of an anonymous client) takes no room; JSON says null.
        words += [f"{key}={_quoted(value)}" for key, value in circumstances(record).items() if value is not None]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fixed = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        event = fixed | circumstances(record) | fixed
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event)


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _quoted(value: Any) -> str:
    """As it is, if nothing in it could be taken for something else or change how the line is shown."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text)
