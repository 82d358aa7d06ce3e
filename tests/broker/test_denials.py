"""A denial leaves a line that says why, and many such lines leave few."""

from __future__ import annotations

from typing import Any

import pytest

from broker.lone_node import LoneNode
from conformance.packets import Publish
from sterna.broker.access.authorization import AccessList, AccessRule

RULES = (
    AccessRule(("*",), ("plant/secret/#",), "both", "deny"),
    AccessRule(("*",), ("plant/#", "own/%c/#"), "publish", "allow"),
    AccessRule(("*",), ("#",), "publish", "deny"),
)


def said(node: LoneNode, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in node.reports if name == event]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_publication_that_is_denied_is_reported_with_client_topic_and_rule(version: int, qos: int) -> None:
    node = LoneNode(rules=RULES)
    node.join("writer", version).publish("plant/secret/1", b"payload", qos)
    (report,) = said(node, "publish denied")
    assert report == {
        "client": "writer",
        "user": None,
        "topic": "plant/secret/1",
        "reason": "rule 1 denies plant/secret/#",
        "address": "192.0.2.1:1000",
    }
    assert node.dropped("not-authorized") == 1


def test_a_subscription_that_is_denied_is_reported_and_counted() -> None:
    node = LoneNode(rules=RULES)
    reader = node.join("reader")
    assert reader.subscribe("plant/secret/+", 1) == 0x87
    assert reader.subscribe("$share/group/plant/secret/1", 1) == 0x87
    assert reader.subscribe("plant/open", 1) == 1
    assert [(report["topic"], report["reason"]) for report in said(node, "subscribe denied")] == [
        ("plant/secret/+", "rule 1 denies plant/secret/#"),
        ("$share/group/plant/secret/1", "rule 1 denies plant/secret/#"),
    ]
    assert node.broker.statistics().subscriptions_refused == {"not-authorized": 2}


def test_other_refusals_of_subscriptions_are_counted_by_their_reason() -> None:
    node = LoneNode()
    assert node.join("reader").subscribe("/".join("a" * 1000), 1) == 0x8F
    assert node.broker.statistics().subscriptions_refused == {"topic-filter-invalid": 1}
    assert not said(node, "subscribe denied")


def test_what_is_the_nodes_own_is_said_to_be() -> None:
    node = LoneNode()
    node.join("writer").publish("$SYS/broker/version", b"fake", 1)
    (report,) = said(node, "publish denied")
    assert "the node's own" in report["reason"]


@pytest.mark.parametrize(
    ("topic", "access", "why"),
    [
        ("own/c/1", "publish", "rule 2 allows own/%c/#"),
        ("own/d/1", "publish", "rule 3 denies #"),
        ("plant/secret/1", "publish", "rule 1 denies plant/secret/#"),
        ("plant/secret/#", "subscribe", "rule 1 denies plant/secret/#"),
        ("$AVG/plant/#", "subscribe", "rule 1 denies plant/secret/#"),
        ("else", "subscribe", "no rule allows it, and the default is to deny"),
    ],
)
def test_the_rule_that_decides_is_named(topic: str, access: Any, why: str) -> None:
    assert AccessList(RULES, "deny").explain(None, "c", topic.encode(), access) == why


def test_a_flood_of_denied_publications_leaves_a_few_lines_and_their_number() -> None:
    node = LoneNode(rules=RULES)
    writer, other = node.join("writer"), node.join("other")
    node.broker.report_losses()  # a new minute
    for _ in range(1000):
        writer.send(Publish("plant/secret/1", b"payload"))
    other.send(Publish("plant/secret/1", b"payload"))
    node.settle()
    assert len(said(node, "publish denied")) == 11
    assert node.dropped("not-authorized") == 1001
    node.pass_time(61)
    node.broker.report_losses()
    last = said(node, "publish denied")[-1]
    assert (last["client"], last["more"], last["reason"]) == ("writer", 990, "and 990 more")
    writer.send(Publish("plant/secret/1", b"payload"))
    assert said(node, "publish denied")[-1]["topic"] == "plant/secret/1"


def test_a_topic_in_a_report_is_cut() -> None:
    node = LoneNode(rules=RULES)
    node.join("writer").publish("plant/secret/" + "x" * 1000, b"", 1)
    (report,) = said(node, "publish denied")
    assert len(report["topic"]) == 200
