"""The tables of docs/operating.md are complete: every alert, and every reason for which a message is dropped."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from sterna.vocabulary.drop_reasons import DropReason, LossReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operating.md").read_text()
ALERTS = (ROOT / "contrib/prometheus/alerts.yml").read_text()
ROW = re.compile(r"^\| `([\w-]+)` \| \S.* \| \S.* \|$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COUNTING = {"dropped", "_drop"}
"""Functions that count a dropped message."""


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def headings(page: Path) -> list[str]:
    """As links name them."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


def test_every_alert_is_on_the_page_with_what_to_do() -> None:
    names = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(names) == 19
    assert ROW.findall(section("Alerts")) == names


def test_headings_that_alerts_point_to_are_there() -> None:
    named = re.findall(r"docs/(\w+\.md)(?:#([\w-]+))?", ALERTS)
    assert named
    for page, heading in named:
        assert (ROOT / "docs" / page).exists()
        assert not heading or heading in headings(ROOT / "docs" / page)


def test_every_reason_of_a_dropped_message_is_on_the_page() -> None:
    """The type checker sees that no counter gets another one."""
    own, network = section("Reasons of dropped messages").split("sterna_network_messages_dropped_total")
    assert ROW.findall(own) == sorted(set(get_args(DropReason)) - {""})
    assert ROW.findall(network) == sorted(get_args(LossReason))


def test_reasons_in_the_code_are_those_of_the_list() -> None:
    """And none of the list is a word that the code has given up."""
    written: set[str] = set()
    counted: set[str] = set()
    for path in (ROOT / "src/sterna").rglob("*.py"):
        if path.name == "drop_reasons.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COUNTING:
                counted |= {
                    one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    known = {*get_args(DropReason), *get_args(LossReason)}
    assert len(counted) > 8
    assert counted <= known
    assert known - {""} <= written
