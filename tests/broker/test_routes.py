"""Routes are remembered until something changes that they depend on, and never a moment longer."""

from __future__ import annotations

import pytest
from lone_node import Client, LoneNode

from conformance.packets import Connect
from sterna.broker import routes as routes_module
from sterna.broker.authorization import AccessRule


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.fixture
def writer(node: LoneNode) -> Client:
    """A client whose topic `a/b` already has a route to nobody."""
    writer = node.join("writer")
    writer.publish("a/b", b"to nobody")
    assert b"a/b" in node.broker.routes.remembered
    return writer


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "#", "$share/g/a/b", "$share/g/a/#"])
def test_a_new_subscription_is_seen_by_the_next_message(node: LoneNode, writer: Client, topic_filter: str) -> None:
    reader = node.join("reader")
    reader.subscribe(topic_filter)
    writer.publish("a/b", b"1")
    assert reader.payloads() == [b"1"]


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "#", "$share/g/a/b", "$share/g/a/#"])
def test_after_unsubscribing_nothing_more_comes(node: LoneNode, writer: Client, topic_filter: str) -> None:
    reader = node.join("reader")
    reader.subscribe(topic_filter, 1)
    writer.publish("a/b", b"1", 1)
    assert reader.payloads() == [b"1"]
    reader.unsubscribe(topic_filter)
    for qos in (0, 1):
        writer.publish("a/b", b"2", qos)
    assert reader.payloads() == []
    assert node.broker.routes.size == 0


def test_an_exact_subscription_leaves_the_routes_of_other_topics_alone(node: LoneNode, writer: Client) -> None:
    writer.publish("c", b"")
    route = node.broker.routes.remembered[b"c"]
    node.join("reader").subscribe("a/b")
    assert node.broker.routes.remembered.get(b"c") is route
    assert b"a/b" not in node.broker.routes.remembered


def test_a_session_that_ended_is_on_no_route(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("a/b", 1)
    writer.publish("a/b", b"1")
    reader.vanish()
    assert node.broker.routes.route(b"a/b").deliveries == []


def test_a_session_that_comes_back_in_another_version_gets_packets_of_that_version(
    node: LoneNode, writer: Client
) -> None:
    first = node.resume("reader", 4)
    first.subscribe("a/b")
    writer.publish("a/b", b"1")
    assert first.payloads() == [b"1"]
    second = node.resume("reader", 5)
    writer.publish("a/b", b"2")
    assert second.payloads() == [b"2"]
    third = node.resume("reader", 4)
    writer.publish("a/b", b"3")
    assert third.payloads() == [b"3"]


def test_a_connection_that_was_never_let_in_leaves_no_trace_in_the_routes(node: LoneNode, writer: Client) -> None:
    node.resume("reader", 4).subscribe("a/b")
    node.dial(5).send(Connect("reader", False, 0, properties={"session_expiry": 9}))
    node.broker.failed(node.broker.commitments.close(), "disk full")
    writer.publish("a/b", b"to nobody")
    reader = node.resume("reader", 4)
    writer.publish("a/b", b"1")
    assert reader.payloads() == [b"1"]


def test_topics_a_reader_may_not_receive_are_left_out_of_its_routes() -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("a/secret",), "subscribe", "deny", ("reader",)),))
    reader, writer = node.join("reader"), node.join("writer")
    assert reader.subscribe("a/#", 1) == 1
    for topic in ("a/secret", "a/open"):
        for qos in (0, 1):
            writer.publish(topic, topic.encode(), qos)
    assert reader.payloads() == [b"a/open", b"a/open"]


def test_the_memory_starts_anew_when_it_is_full(
    node: LoneNode, writer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not routes_module.__file__.endswith(".py"):
        pytest.skip("compiled modules hold their constants fast")
    monkeypatch.setattr(routes_module, "REMEMBERED_MAX", 10)
    for number in range(25):
        writer.publish(f"many/{number}")
    assert 0 < len(node.broker.routes.remembered) <= 10


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_cannot_publish_to_a_topic_of_the_broker_that_was_just_used(node: LoneNode, qos: int) -> None:
    reader, writer = node.join("reader"), node.join("writer")
    reader.subscribe("$SYS/#")
    node.broker.publish_sys(b"$SYS/broker/uptime", b"1 seconds")
    node.settle()
    assert reader.payloads() == [b"1 seconds"]
    assert writer.publish("$SYS/broker/uptime", b"forged", qos) == (0x87 if qos else 0)
    assert reader.payloads() == []
    assert node.dropped("not-authorized") == 1
