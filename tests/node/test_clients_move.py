"""Clients that turn up at another node find their session there: subscriptions, what waits, what is in flight."""

from __future__ import annotations

from itertools import pairwise

from node.joined_nodes import Town


def row(strategy: str, names: str = "ABC") -> Town:
    town = Town(names, strategy)
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def test_a_session_follows_its_client_with_what_waits_for_it(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t/#", 1)
    client.vanish()
    other = town["B"].join("p")
    for number in range(3):
        assert other.publish("t/1", b"%d" % number, 1) == 0
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert client.payloads() == [b"0", b"1", b"2"]
    assert b"c" not in town["A"].broker.sessions
    assert other.publish("t/1", b"3", 1) == 0
    assert client.payloads() == [b"3"]
