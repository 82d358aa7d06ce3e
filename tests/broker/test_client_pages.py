"""Pages of clients: in order, narrowed down, and nothing left out between two pages."""

from __future__ import annotations

import msgspec
import pytest

from broker.lone_node import LoneNode
from sterna.broker.access.authorization import AccessList
from sterna.broker.client_pages import client_page
from sterna.runtime.config.access import control_rules
from sterna.runtime.config.settings import ControlTable


@pytest.fixture
def node() -> LoneNode:
    node = LoneNode()
    for name in ("d", "b", "e", "a", "c"):
        node.join(name)
    return node


def names(at: LoneNode, most: int = 100, **asked: str) -> list[str]:
    found = client_page(at.broker, "n", msgspec.json.encode(asked).decode(), most)
    return [row["client"] for row in found.rows]


def test_pages_follow_each_other_without_a_gap(node: LoneNode) -> None:
    read: list[str] = []
    while page := names(node, 2, **({"after": read[-1]} if read else {})):
        assert len(page) <= 2
        read += page
    assert read == ["a", "b", "c", "d", "e"]
    assert client_page(node.broker, "n", "{}", 5).is_cut is False
    assert client_page(node.broker, "n", "{}", 4).is_cut is True


def test_a_page_is_narrowed_by_text_state_and_node(node: LoneNode) -> None:
    assert names(node, text="c") == ["c"]
    assert names(node, state="away") == []
    assert len(names(node, state="connected")) == 5
    assert names(node, state="moving") == names(node, state="waiting") == []
    assert names(node, node="elsewhere") == []
    assert len(names(node, node="n")) == 5


def test_control_lines_are_in_a_state_of_their_own(node: LoneNode) -> None:
    """Those of coordinators, workers and gateways: they are nobody's clients."""
    rules = AccessList([], "allow", control=control_rules(ControlTable(users=("boss",))))
    session = node.broker.sessions[b"c"]
    session.permissions = rules.for_identity("boss", "c")
    assert names(node) == ["a", "b", "d", "e"]
    assert names(node, state="control") == ["c"]
    assert names(node, state="connected") == ["a", "b", "d", "e"]


@pytest.mark.parametrize("argument", ["", "[]", '{"state": "asleep"}', '{"more": 1}'])
def test_nonsense_is_refused(node: LoneNode, argument: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        client_page(node.broker, "n", argument, 1)
