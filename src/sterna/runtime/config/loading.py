"""A node's configuration, read, checked and complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sterna.runtime.config.reader import load_as
from sterna.runtime.config.rules import apply_rules
from sterna.runtime.config.settings import Configuration


def load(path: Path | None, environ: Mapping[str, str]) -> Configuration:
    """InvalidConfiguration with everything that is wrong."""
    return load_as(Configuration, apply_rules, path, environ)
