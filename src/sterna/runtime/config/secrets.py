"""Secrets of the configuration: a table holds one as text, or names a file with it.

A secret has at least `SECRET_BYTES_MIN` bytes, or it could be guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sterna.runtime.config.files import attempt
from sterna.runtime.config.problems import ProblemReport
from sterna.vocabulary.errors import ConfigurationError

SECRET_BYTES_MIN = 16


class Secret(NamedTuple):
    """Where a secret stands: `key` of a table, or `key` with `_file` for the name of a file."""

    table: str
    key: str
    weakness: str
    """The complaint about a short one, with a place for its length."""
    trimmed: Callable[[bytes], bytes]
    """The contents of a file without the bytes around the secret that an editor may have added."""

    def read(self, settings: Any) -> bytes:
        """Empty if there is none.  Raises ConfigurationError if it is too short, OSError if its file cannot be read."""
        text: str | None = getattr(settings, self.key)
        file: Path | None = getattr(settings, f"{self.key}_file")
        if file is not None:
            secret = self.trimmed(file.read_bytes())
        elif text is not None:
            secret = text.encode()
        else:
            return b""
        if len(secret) < SECRET_BYTES_MIN:
            remedy = f"use {SECRET_BYTES_MIN} or more (head -c 32 /dev/urandom | base64)"
            raise ConfigurationError(f"{self.weakness.format(len(secret))}; {remedy}")
        return secret

    def check(self, settings: Any, report: ProblemReport) -> bool:
        """Report every mistake; whether there is a secret."""
        has_text = getattr(settings, self.key) is not None
        has_file = getattr(settings, f"{self.key}_file") is not None
        if has_text and has_file:
            text = f"there is a {self.key} and a {self.key}_file"
            report.add((self.table, self.key), text, "keep one of them")
        if has_text or has_file:
            key = f"{self.key}_file" if has_file else self.key
            attempt(partial(self.read, settings), (self.table, key), report)
        return has_text or has_file


def _without_newline(contents: bytes) -> bytes:
    """A key may be any bytes, so no more than the end of the last line goes."""
    return contents.rstrip(b"\r\n")


ADMIN_TOKEN = Secret("admin", "token", "the token of the admin port has {} bytes and could be guessed", bytes.strip)
ADMIN_READ_TOKEN = Secret(
    "admin", "read_token", "the reading token of the admin port has {} bytes and could be guessed", bytes.strip
)
FEED_TOKEN = Secret(
    "feed", "token", "the token of the feed has {} bytes, and who records a handshake could guess it", bytes.strip
)
NETWORK_KEY = Secret(
    "network", "key", "the network key has {} bytes, and who records a handshake could guess it", _without_newline
)
