"""Moves see a node through `move_host` only: the calls that they make, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/sterna"
MODULES = sorted((SOURCE / "migration").glob("*.py"))
WHOLES = {"Broker", "Router", "NodeMoveHost", "Network", "Driver"}
"""Owners of everything: one who is given one of them may do anything."""
PROTOCOLS = (SOURCE / "migration/move_host.py", SOURCE / "broker/transfer/broker_parts.py")
USERS = [path for path in (*MODULES, *(SOURCE / "broker/transfer").glob("*.py")) if path not in PROTOCOLS]


def names(tree: ast.Module) -> set[str]:
    """Imported, or used; types in annotations included."""
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return found | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_rule_of_a_move_is_given_a_whole_broker_or_router(path: Path) -> None:
    assert not names(ast.parse(path.read_text())) & WHOLES


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_every_call_that_is_named_is_made(path: Path) -> None:
    text = "\n".join(one.read_text() for one in USERS)
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    members = [member.name for one in classes for member in one.body if isinstance(member, ast.FunctionDef)]
    assert len(members) > 15
    assert [name for name in members if not re.search(rf"\.{name}\b", text)] == []
