"""Expressions in a network: whoever subscribes at whatever node gets the answer one broker would give."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from node.faulty_nodes import FaultyTown

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")


@pytest.fixture(params=STRATEGIES)
def town(request: pytest.FixtureRequest) -> FaultyTown:
    """Three nodes in a row."""
    town = FaultyTown("abc", request.param)
    town.connect("ab", "bc")
    return town


def results(client: Client) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in client.messages()]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishers_anywhere_count_and_every_subscriber_gets_each_result_once(town: FaultyTown, qos: int) -> None:
    watchers = [town["a"].join("one"), town["a"].join("another"), town["c"].join("far")]
    for watcher in watchers:
        assert watcher.subscribe("$SUM/room/+", qos) == qos
    for number, name in enumerate("abc", 1):
        town[name].join(f"from-{name}").publish(f"room/{name}", b"%d" % number, qos)
        town.pass_time(0.1)
    answers = [("$SUM/room/$A", payload) for payload in (b"1.0", b"3.0", b"6.0")]
    assert [results(watcher) for watcher in watchers] == [answers] * 3


def test_a_node_that_was_away_answers_with_what_it_missed(town: FaultyTown) -> None:
    watcher = town["a"].resume("watcher", session_expiry=1000)
    watcher.subscribe("$SUM/room/+", 1)
    publisher = town["c"].join("publisher")
    publisher.publish("room/1", b"1", 1)
    town.pass_time(0.5)
    watcher.vanish()
    town.kill("a")
    publisher.publish("room/2", b"2", 1)
    town.start("a")
    town.connect("ab")
    town.pass_time(2)
    publisher.publish("room/3", b"4", 1)
    town.pass_time(0.5)
    watcher = town["a"].resume("watcher", session_expiry=1000)
    town.settle()
    assert [payload for _, payload in results(watcher)] == [b"1.0", b"3.0", b"7.0"]


def test_nothing_is_sent_for_an_expression_nobody_wants_any_more(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")
    watcher.subscribe("$COUNT/room/+", 1)
    town["c"].join("publisher").publish("room/1", b"x", 1)
    town.pass_time(0.5)
    assert results(watcher) == [("$COUNT/room/$A", b"1.0")]
    watcher.unsubscribe("$COUNT/room/+")
    town.pass_time(0.5)
    assert len(town["a"].broker.routes.computations) == 0
    taken = town["a"].network.router.counters.taken
    town["c"].join("publisher").publish("room/1", b"x", 1)
    town.pass_time(0.5)
    assert results(watcher) == []
    assert town["a"].network.router.counters.taken == taken
