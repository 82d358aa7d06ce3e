"""The page of those who wait: sessions with the longest queues first, and messages that a node carries for others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.lone_node import LoneNode
from sterna.broker.inspection import Findings
from sterna.runtime.dashboard.node_picture import NODES_SHOWN, _carried
from sterna.runtime.dashboard.questions import QUESTIONS, WAITING_SHOWN, QuestionedNode

ALL = 1000


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


def leave_away(node: LoneNode, name: str, topic: str) -> None:
    """A client whose session stays."""
    client = node.join(name, session_expiry=3600)
    client.subscribe(topic, 1)
    client.vanish()


def waiting(node: LoneNode, most: int = ALL) -> Findings:
    named = SimpleNamespace(broker=node.broker, configuration=SimpleNamespace(node=SimpleNamespace(name="n")))
    return QUESTIONS["dashboard-waiting"](cast(QuestionedNode, named), "", most)


def test_sessions_for_which_most_waits_come_first_and_those_without_messages_are_left_out(node: LoneNode) -> None:
    leave_away(node, "few", "both")
    leave_away(node, "many", "+")
    leave_away(node, "none", "elsewhere")
    publisher = node.join("publisher")
    for topic in ("both", "both", "one"):
        publisher.publish(topic, b"x", 1)
    found = waiting(node)
    assert [(row["client"], row["node"], row["connected"], row["queued"]) for row in found.rows] == [
        ("many", "n", False, 3),
        ("few", "n", False, 2),
    ]
    assert found.is_cut is False


def test_what_is_in_flight_waits_as_well(node: LoneNode) -> None:
    client = node.join("slow", receive_maximum=2)
    client.subscribe("t", 1)
    publisher = node.join("publisher")
    for _ in range(3):
        publisher.publish("t", b"x", 1)
    (row,) = waiting(node).rows
    assert (row["connected"], row["inflight"], row["queued"]) == (True, 2, 1)


def test_only_the_longest_queues_are_sent_and_that_is_said(node: LoneNode) -> None:
    for number in range(WAITING_SHOWN + 1):
        leave_away(node, f"away-{number}", "t")
    leave_away(node, "longest", "+")
    publisher = node.join("publisher")
    publisher.publish("t", b"x", 1)
    publisher.publish("more", b"x", 1)
    found = waiting(node)
    assert found.is_cut is True
    assert len(found.rows) == WAITING_SHOWN
    assert found.rows[0]["client"] == "longest"
    assert [row["client"] for row in waiting(node, most=1).rows] == ["longest"]


def test_a_node_that_carries_says_for_whom_and_names_a_bounded_number() -> None:
    readers = [f"n{number}" for number in range(NODES_SHOWN + 5)]
    view: dict[str, Any] = {"carry": "parked", "messages": 3, "for": readers}
    shown = _carried(view)
    assert shown is not None
    assert (shown["carry"], shown["messages"], len(shown["for"])) == ("parked", 3, NODES_SHOWN)
    assert _carried({}) is None
