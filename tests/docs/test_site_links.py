"""Links between the pages of the repository lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "contrib/README.md", ROOT / "tests/README.md"])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def slug(heading: str) -> str:
    """As GitHub and MkDocs make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def headings(page: Path) -> set[str]:
    return {slug(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text()))}


def broken(page: Path, text: str) -> list[str]:
    """Links of this text that lead nowhere."""
    found = []
    for target in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if "://" in target:
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in headings(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](nowhere.md) [b](README.md#no-such-heading) [c](README.md#promises) [d](https://example.org)"
    assert broken(ROOT / "README.md", text) == ["nowhere.md", "README.md#no-such-heading"]


IMPORT = re.compile(r"^from (sterna\S*) import (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_is_in_the_reference(page: Path) -> None:
    described = re.findall(r"^::: (\S+)$", (ROOT / "docs/site/api.md").read_text(), re.MULTILINE)
    for module, names in IMPORT.findall(page.read_text()):
        for name in names.split(", "):
            assert {module, f"{module}.{name}"} & set(described), f"docs/site/api.md lacks {module}.{name}"
