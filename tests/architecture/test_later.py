"""Few ways to say "later": each call of a core that takes what is to be done is in ARCHITECTURE.md, with its promise.

A method that passes the call on under the same name is the same way; a protocol that names it is, too.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/sterna"
CORES = ("adaptation", "broker", "journal", "migration", "node", "operators", "overlay", "routing")
SAYS_LATER = re.compile(r"when_\w+|later|at|after|once|in_turn|schedule|ask|soon|between_groups|answer_by")

#: Puts a question to other nodes; its callback is an answer, not work that is put off.
NOT_LATER = {"Management"}


def takes_an_action(function: ast.FunctionDef) -> bool:
    annotations = (ast.unparse(one.annotation) for one in function.args.args if one.annotation is not None)
    return any(re.match(r"Callable\[|Action\b", text) for text in annotations)


def is_protocol(owner: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == "Protocol" for base in owner.bases)


def passes_on(function: ast.FunctionDef) -> bool:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr == function.name for call in calls)


def ways(text: str) -> dict[str, set[str]]:
    """Name -> the classes that keep its promise themselves."""
    found: dict[str, set[str]] = defaultdict(set)
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    for owner in classes:
        if owner.name in NOT_LATER or is_protocol(owner):
            continue
        for function in owner.body:
            if not isinstance(function, ast.FunctionDef) or not SAYS_LATER.fullmatch(function.name):
                continue
            if takes_an_action(function) and not passes_on(function):
                found[function.name].add(owner.name)
    return found


def told() -> set[str]:
    """The names in the table, without their classes."""
    section = (ROOT / "ARCHITECTURE.md").read_text().partition('## Ways to say "later"')[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name.rpartition(".")[2] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def ways_of_cores() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for core in CORES:
        for path in (SOURCE / core).rglob("*.py"):
            for name, owners in ways(path.read_text()).items():
                found[name] |= owners
    return found


def test_every_way_to_say_later_is_in_the_table_and_kept_by_one_class() -> None:
    found = ways_of_cores()
    assert len(found) >= 8
    assert {name: owners for name, owners in found.items() if name not in told() or len(owners) > 1} == {}
    assert told() - found.keys() == {"answer"}, "that one takes packets; the others are no longer there"


@pytest.mark.parametrize("action", ["Callable[[], None]", "Action"])
def test_another_way_is_seen(action: str) -> None:
    assert ways(f"class Mine:\n def when_quiet(self, action: {action}) -> None:\n  self.x = action") == {
        "when_quiet": {"Mine"}
    }
    assert not ways(f"class Mine:\n def when_quiet(self, action: {action}) -> None:\n  self.x.when_quiet(action)")
    assert not ways(f"class Mine(Protocol):\n def when_quiet(self, action: {action}) -> None: ...")
