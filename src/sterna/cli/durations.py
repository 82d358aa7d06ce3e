"""Spans of time as people type them: `90`, `30s`, `10m`, `2h`, `7d`."""

from __future__ import annotations

import re

from sterna.vocabulary.errors import ConfigurationError

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, option: str) -> float:
    """ConfigurationError if it is no span of time."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", text)
    found = float(match[1]) * _SECONDS[match[2]] if match is not None else 0.0
    if not found:
        raise ConfigurationError(f"{option}: {text!r} is no span of time; write 90, 30s, 10m, 2h or 7d")
    return found
