"""Sentences and headings name their subject first: fewer and fewer begin with a clause of "what" or "whoever"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = r"(?:^\s*|[.:;?!] +|\"\"\"|#:? |\*\*\s*|[|*-] )"
"""A sentence, a heading, a docstring, a comment, a cell, or an item of a list begins behind it."""
BEGINS = re.compile(START + r"(?:What|Whoever|Whatever)\b", re.MULTILINE)
BEGINS_WITH_WHO = re.compile(r"(?:^(?!#)\s*|[.:;?!] +|\"\"\"|(?<!#)#:? |\*\* |[|*-] )Who\b(?![^.?!]*\?)", re.MULTILINE)
"""Neither a question nor a heading."""

PAGES = (*("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"), "docs")
MOST = {"pages": 0, "sources": 0, "tests": 66}
"""Lower these when there are fewer."""


def texts(kind: str) -> list[Path]:
    folders = {"sources": ROOT / "src" / "sterna", "tests": ROOT / "tests"}
    if kind in folders:
        return [path for path in sorted(folders[kind].rglob("*.py")) if path != Path(__file__)]
    paths = [ROOT / name for name in PAGES]
    return [page for path in paths for page in (sorted(path.glob("*.md")) if path.is_dir() else [path])]


@pytest.mark.parametrize("kind", MOST)
def test_no_more_sentences_begin_with_what(kind: str) -> None:
    found = sorted(
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.end()) + 1}"
        for path in texts(kind)
        for text in [path.read_text()]
        for pattern in (BEGINS, BEGINS_WITH_WHO)
        for match in pattern.finditer(text)
    )
    assert len(found) <= MOST[kind], "say who does it first: " + ", ".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "What waits goes.",
        "## What it does",
        '"""Whoever asks."""',
        "A. Whatever it is.",
        "Is it? What is not.",
        "one; What another",
        "**Picture.** What it knows",
        "| What it is |",
        "- What it is",
    ],
)
def test_such_beginnings_are_seen(text: str) -> None:
    assert BEGINS.search(text)
    assert not BEGINS.search(f"This says {text.lower()}")


@pytest.mark.parametrize(
    "text", ["Who asks goes.", '"""Who asks."""', "#: Who asks", "A? Who asks goes.", "**A.** Who asks."]
)
def test_so_are_those_with_who(text: str) -> None:
    assert BEGINS_WITH_WHO.search(text)


@pytest.mark.parametrize("text", ["## Who may look", "| Who is here? |", "**Who may import whom.** Nobody."])
def test_questions_and_headings_may(text: str) -> None:
    assert not BEGINS_WITH_WHO.search(text)
