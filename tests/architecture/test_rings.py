"""Modules that know each other in a ring stay few (a ratchet), and a class name belongs to one package.

Every import counts, also one for types only: a reader who wants to understand one module of a ring has to read all of
it.  A class is given the few things it uses, not its owner, so that imports go one way.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"

RING_MAX = 5

#: Packages that have a larger ring so far.  Lower a number when its ring shrinks; remove it at RING_MAX.
LARGER: dict[str, int] = {}

Graph = dict[str, set[str]]


class Module(NamedTuple):
    """One of the modules that are looked at.  The trees of all would be most of the memory of the tests, and slow them
    all down."""

    imports: list[tuple[str, str]]
    """(module, name taken from it, or nothing) of every import, wherever it stands."""
    classes: list[str]


@cache
def parsed() -> dict[str, Module]:
    """Every module of the project by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = parse(path.read_text())
    return found


def parse(text: str) -> Module:
    tree = ast.parse(text)
    return Module([*imported(tree)], [node.name for node in tree.body if isinstance(node, ast.ClassDef)])


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def imports(modules: dict[str, Module]) -> Graph:
    graph: Graph = {}
    for name, found in modules.items():
        targets = {f"{module}.{taken}" if f"{module}.{taken}" in modules else module for module, taken in found.imports}
        graph[name] = {target for target in targets if target in modules and target != name}
    return graph


def reached(graph: Graph, start: str) -> set[str]:
    """Everything that can be reached from `start` in one step or more."""
    found: set[str] = set()
    left = list(graph[start])
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += graph[module]
    return found


def rings(graph: Graph) -> list[list[str]]:
    """Groups of modules in which each can be reached from every other, largest first."""
    known = {module: reached(graph, module) for module in graph}
    groups = {tuple(sorted(other for other in known[one] if one in known[other])) for one in graph if one in known[one]}
    return sorted((list(group) for group in groups), key=lambda group: (-len(group), group))


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_rings_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert rings(graph) == [["a", "b", "c"], ["d", "e"]]


def test_an_import_for_types_counts() -> None:
    modules = {
        "a": parse("import typing\nif typing.TYPE_CHECKING:\n    from b import B"),
        "b": parse("import a"),
    }
    assert rings(imports(modules)) == [["a", "b"]]


def test_no_ring_grows() -> None:
    largest: dict[str, int] = defaultdict(int)
    for ring in rings(imports(parsed())):
        packages = "+".join(sorted({package_of(module) for module in ring}))
        print(f"{packages}: {len(ring)} modules know each other: {', '.join(ring)}")
        largest[packages] = max(largest[packages], len(ring))
    assert {package: size for package, size in largest.items() if size > RING_MAX} == LARGER


def test_no_two_packages_have_classes_of_one_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module, found in parsed().items():
        for name in found.classes:
            homes[name].add(package_of(module))
    assert {name: sorted(packages) for name, packages in homes.items() if len(packages) > 1} == {}
