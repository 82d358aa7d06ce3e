"""Sentences and headings name their subject first: fewer and fewer begin with a clause of "what" or "whoever"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGINS = re.compile(r"(?:^\s*|[.:;] +|\"\"\"|#:? |\*\*|\| )(?:What|Whoever|Whatever)\b", re.MULTILINE)

PAGES = (*("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"), "docs")
MOST = {"pages": 0, "sources": 1}
"""Lower these when there are fewer."""


def texts(kind: str) -> list[Path]:
    if kind == "sources":
        return sorted((ROOT / "src" / "sterna").rglob("*.py"))
    paths = [ROOT / name for name in PAGES]
    return [page for path in paths for page in (sorted(path.glob("*.md")) if path.is_dir() else [path])]


@pytest.mark.parametrize("kind", MOST)
def test_no_more_sentences_begin_with_what(kind: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.end()) + 1}"
        for path in texts(kind)
        for text in [path.read_text()]
        for match in BEGINS.finditer(text)
    ]
    assert len(found) <= MOST[kind], "say who does it first: " + ", ".join(found)


@pytest.mark.parametrize("text", ["What waits goes.", "## What it does", '"""Whoever asks."""', "A. Whatever it is."])
def test_such_beginnings_are_seen(text: str) -> None:
    assert BEGINS.search(text)
    assert not BEGINS.search(f"This says {text.lower()}")
