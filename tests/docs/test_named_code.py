"""ARCHITECTURE.md and docs/walks.md name code that exists, and count their hops right."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/sterna"
MAP = ROOT / "ARCHITECTURE.md"
WALKS = ROOT / "docs/walks.md"

#: `Class.method` or `module.function`, alone between two backticks.
DOTTED = re.compile(r"`(\w+)\.(\w+)`")
#: `package/module.py`, or a directory `package/`.
PATHS = re.compile(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`")
#: Suffixes of files that are no code.
FILES = {"md", "toml", "py"}


class Code(NamedTuple):
    """Where each name of the project is defined."""

    owners: dict[str, set[Path]]
    """Class or module -> its files."""
    members: dict[tuple[str, str], set[Path]]
    """(class or module, what it defines) -> the files that do so."""


def assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def code() -> Code:
    owners: dict[str, set[Path]] = defaultdict(set)
    members: dict[tuple[str, str], set[Path]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        owners[path.stem].add(path)
        for node in ast.parse(path.read_text()).body:
            for name in assigned(node):
                members[path.stem, name].add(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                members[path.stem, node.name].add(path)
            if isinstance(node, ast.ClassDef):
                owners[node.name].add(path)
                bases[node.name] |= {base.id for base in node.bases if isinstance(base, ast.Name)}
                for inner in node.body:
                    names = [inner.name] if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) else []
                    for name in (*names, *assigned(inner)):
                        members[node.name, name].add(path)
    of_owner: dict[str, dict[str, set[Path]]] = defaultdict(dict)
    for (owner, name), files in members.items():
        of_owner[owner][name] = files
    inherited = {
        (heir, name): files
        for heir, parents in bases.items()
        for parent in parents
        for name, files in of_owner.get(parent, {}).items()
        if (heir, name) not in members
    }
    return Code(owners, {**members, **inherited})


def unknown_names(text: str) -> list[str]:
    """Names in this text that the code does not have."""
    missing = [
        f"{owner}.{name}"
        for owner, name in DOTTED.findall(text)
        if name not in FILES and (owner, name) not in code().members
    ]
    return missing + [
        path for path in PATHS.findall(text) if not any((root / path).exists() for root in (SOURCE, ROOT))
    ]


@pytest.mark.parametrize("page", [MAP, WALKS], ids=lambda page: page.name)
def test_every_name_is_one_of_the_code(page: Path) -> None:
    assert unknown_names(page.read_text()) == []


def test_a_wrong_name_is_found() -> None:
    assert unknown_names("`Broker.comitted` in `broker/broke.py` and `nowhere/`") == [
        "Broker.comitted",
        "broker/broke.py",
        "nowhere/",
    ]


def test_the_map_has_every_package() -> None:
    tree = re.search(r"^## The map\n.*?^```\n(.*?)^```$", MAP.read_text(), re.MULTILINE | re.DOTALL)
    assert tree is not None
    named: set[str] = set()
    package = ""
    for line in tree[1].splitlines():
        found = re.match(r"( *)(\w+)/", line)
        if found and not found[1]:
            package = found[2]
            named.add(package)
        elif found:
            named.add(f"{package}/{found[2]}")
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")} - {Path()}
    assert named == {str(path) for path in packages if len(path.parts) <= 2}


def test_hops_and_files_are_counted_right() -> None:
    text = WALKS.read_text()
    found = dict(re.findall(r"^\| \((\w)\) .*\| (\d+)[^|]*\|$", text, re.MULTILINE))
    walks = re.findall(
        r"^## \((\w)\) [^\n]*: (\d+) hops, (\d+) files\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert [letter for letter, *_ in walks] == list("abcdefgh")
    for letter, hops, files, body in walks:
        chain = "\n".join(part for part in body.split("\n\n") if "→" in part)
        entered = [name for name in DOTTED.findall(chain) if name[1] not in FILES]
        places = {min(code().members[name]) for name in entered}
        assert (letter, int(hops), int(files)) == (letter, len(entered), len(places))
        assert found[letter] == hops
