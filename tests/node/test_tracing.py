"""Traces: the packets of a client and the messages on topics, at all nodes, bounded, and gone when nobody asks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.lone_node import Client, LoneNode
from conformance.packets import Connect, Pingreq, Publish, Sent, Subscribe
from node.joined_nodes import Town
from sterna.broker import inspection, tracing
from sterna.broker.tracing import LEASE_S, TRACES_MAX
from sterna.node.management import ROWS_MAX, Gathered


def request(**fields: Any) -> str:
    return json.dumps({"id": "trace-of-a-test", **fields})


def asked(town: Town, node: str, argument: str) -> Gathered:
    answers: list[Gathered] = []
    town[node].network.management.ask("trace", argument, ROWS_MAX, answers.append)
    town.settle()
    (answer,) = answers
    return answer


def packets(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['direction']} {row['packet']}" for row in rows]


def alone(node: LoneNode, argument: str) -> list[dict[str, Any]]:
    node.broker.at(node.now)
    return inspection.trace(node.broker, "", argument, ROWS_MAX).rows


def test_a_client_is_traced_wherever_it_is_and_comes() -> None:
    town = Town("ABC")
    town.connect("AB", "BC")
    client, other = town["C"].join("meter"), town["C"].join("other")
    assert asked(town, "A", request(client="meter")).rows == []
    client.subscribe("plant/#", 1)
    other.publish("plant/1", b"secret words", 1)
    rows = asked(town, "A", request(client="meter")).rows
    assert packets(rows) == ["received SUBSCRIBE", "sent SUBACK", "sent PUBLISH"]
    assert {(row["node"], row["client"]) for row in rows} == {("C", "meter")}
    assert (rows[2]["topic"], "payload" in rows[2]) == ("plant/1", False)
    client.vanish()
    town["B"].join("meter")
    rows = asked(town, "A", request(client="meter", after={"C": rows[-1]["number"]})).rows
    assert [(row["node"], row["direction"], row["packet"]) for row in rows][:2] == [
        ("B", "received", "CONNECT"),
        ("B", "sent", "CONNACK"),
    ]


def test_messages_on_topics_are_traced_with_aliases_and_payloads() -> None:
    node = LoneNode()
    publisher, subscriber = node.join("publisher"), node.join("subscriber", topic_alias_maximum=5)
    subscriber.subscribe("plant/#")
    publisher.publish("plant/1", b"before", topic_alias=3)
    assert alone(node, request(topic="plant/+", payload=True)) == []
    publisher.publish("", b"21.5", topic_alias=3)
    publisher.publish("else", b"x")
    node.settle()
    rows = alone(node, request(topic="plant/+", payload=True))
    assert [(row["client"], row["direction"], row["topic"], row["payload"]) for row in rows] == [
        ("publisher", "received", "plant/1", "21.5"),
        ("subscriber", "sent", "plant/1", "21.5"),
    ]


def test_a_trace_that_nobody_asks_for_ends_and_leaves_nothing_behind() -> None:
    node = LoneNode()
    client = node.join("meter")
    handler, transport = client.connection.handler, client.connection.transport
    alone(node, request())
    assert node.broker.tracing.is_on
    assert client.connection.transport is not transport
    late = node.join("late")
    node.pass_time(LEASE_S - 1)
    alone(node, request())
    node.pass_time(LEASE_S - 1)
    assert node.broker.tracing.is_on
    node.pass_time(LEASE_S + 1)
    assert not node.broker.tracing.is_on
    for one in (client, late):
        session = one.connection.session
        assert session is not None
        assert one.connection.handler is handler
        assert session.outbox.transport is one.connection.transport is one.wire
    client.subscribe("a", 1)
    assert client.publish("a", b"1", 1) == 0


def test_a_trace_keeps_so_many_rows_and_says_how_many_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "ROWS_KEPT", 3)
    node = LoneNode()
    client = node.join("meter")
    alone(node, request(client="meter"))
    for number in range(5):
        client.send(Publish(f"t/{number}", b""))
    rows = alone(node, request(client="meter"))
    assert [(row["topic"], row.get("missing")) for row in rows] == [("t/2", 2), ("t/3", None), ("t/4", None)]
    assert alone(node, request(client="meter", after={"": 5})) == []


def test_messages_are_counted_by_topic_and_the_rest_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "COUNTED_MAX", 2)
    node = LoneNode()
    client, subscriber = node.join("meter"), node.join("subscriber")
    subscriber.subscribe("#")
    assert alone(node, request(levels=2)) == []
    for topic in ("a/b/c", "a/b/d", "a/b", "x/y", "x/z"):
        client.publish(topic, b"12345", 1)
    node.pass_time(2)
    rows = alone(node, request(levels=2))
    assert [(row["topic"], row["messages"], row["seconds"]) for row in rows] == [
        (tracing.OTHER_TOPICS, 2, 2.0),
        ("a/b", 1, 2.0),
        ("a/b/#", 2, 2.0),
    ]


def test_traces_are_few_and_bad_requests_are_refused() -> None:
    node = LoneNode()
    for number in range(TRACES_MAX):
        alone(node, json.dumps({"id": f"trace-{number:03}"}))
    with pytest.raises(ValueError, match="wait until one has ended"):
        alone(node, json.dumps({"id": "one-more-trace"}))
    for bad in ("", "{}", '{"id": "short"}', request(topic="a/#/b"), request(klient="x")):
        with pytest.raises(ValueError, match=r".+"):
            alone(node, bad)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 3000), max_size=12), version=st.sampled_from([4, 5]))
def test_every_packet_is_shown_once_whatever_pieces_it_comes_in(cuts: list[int], version: int) -> None:
    node = LoneNode()
    alone(node, request(client="meter"))
    client = Client(node, version, node.dial().connection.peer)
    sent: list[Sent] = [Connect("meter", True, 0), Subscribe(1, [("a", 1)])]
    sent += [Publish("a", bytes(300), 1, packet_id=number) for number in range(2, 9)]
    data = b"".join(packet.encode(version) for packet in (*sent, Pingreq()))
    for start, stop in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
        client.send(data[start:stop])
        node.settle()
    rows = [row for row in alone(node, request(client="meter")) if row["direction"] == "received"]
    names = ["CONNECT", "SUBSCRIBE", *["PUBLISH"] * 7, "PINGREQ"]
    assert [row["packet"] for row in rows] == names
    assert [row["packet_id"] for row in rows[2:-1]] == list(range(2, 9))
