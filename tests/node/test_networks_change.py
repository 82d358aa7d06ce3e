"""Links come and go, close rings and split the network; what was promised holds."""

from __future__ import annotations

from broker.lone_node import Client
from node.joined_nodes import JoinedNode, Town


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def links(town: Town) -> int:
    return sum(len(node.network.links.links) for node in town.nodes.values()) // 2


def test_links_made_at_once_never_form_a_ring(strategy: str) -> None:
    town = Town("abc", strategy)
    town.connect("ab", "bc", "ca")
    town.pass_time(1)
    assert links(town) <= 2
    for pair in ("ab", "bc", "ca"):  # as the dialling sides would, again and again
        town.connect(pair)
    assert links(town) == 2
    subscribers = [town[name].join(f"s{name}") for name in "abc"]
    for subscriber in subscribers:
        subscriber.subscribe("t", 1)
    town["a"].join("publisher").publish("t", b"once", 1)
    assert [payloads(subscriber) for subscriber in subscribers] == [[b"once"]] * 3


def test_a_link_that_stood_by_serves_when_it_is_needed(strategy: str) -> None:
    town = Town("abc", strategy)
    town.connect("ab", "bc")
    town.connect("ca")
    assert "c" not in town["a"].network.links.links
    subscriber = town["c"].join("subscriber")
    subscriber.subscribe("t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"by b", 1)
    town.cut("a", "b")
    publisher.publish("t", b"between", 1)
    town.connect("ca")
    publisher.publish("t", b"direct", 1)
    assert payloads(subscriber) == [b"by b", b"between", b"direct"]


def test_a_subscriber_gets_everything_once_while_the_tree_is_turned_round(strategy: str) -> None:
    town = Town("abcd", strategy)
    town.connect("ab", "bc", "cd")
    subscriber = town["d"].join("subscriber")
    subscriber.subscribe("t/#", 2)
    publishers = [town[name].join(f"p{name}") for name in "abc"]
    sent = 0
    for cut, made in (("bc", "ac"), ("cd", "bd"), ("ab", "cd"), ("ac", "ab")):
        for publisher in publishers:
            publisher.publish("t/x", b"%d" % sent, 2)
            sent += 1
        town.cut(*cut)
        for publisher in publishers:
            publisher.publish("t/x", b"%d" % sent, 2)
            sent += 1
        town.connect(made)
    got = payloads(subscriber)
    assert sorted(map(int, got)) == list(range(sent))
    for start in range(3):  # the order of each publisher
        mine = [number for number in map(int, got) if number % 3 == start]
        assert mine == sorted(mine)


def test_a_cleared_retained_message_stays_cleared_when_an_older_one_comes_late(strategy: str) -> None:
    town = Town("abc", strategy)
    town.connect("ab", "bc")
    town.cut("a", "b")
    town["a"].join("one").publish("state", b"old", 1, retain=True)
    town.pass_time(1)
    town["c"].join("two").publish("state", b"", 1, retain=True)
    town.connect("ab")
    assert [town[name].broker.retained.get(b"state") for name in "abc"] == [None, None, None]


def test_tables_know_nothing_of_the_dead(strategy: str) -> None:
    town = Town("abc", strategy)
    town.connect("ab", "bc")
    town["c"].join("subscriber").subscribe("t", 1)
    town["a"].join("publisher").publish("t", b"1", 1)
    town.cut("b", "c")
    a = town["a"].network
    assert a.router.paths.origins == ["b"]
    town["a"].join("again").publish("t", b"2", 1)
    if strategy != "publication-flooding":
        assert a.router.strategy.links_for(b"t") == []


def test_a_node_that_lost_its_disk_is_heard_again(strategy: str) -> None:
    town = Town("ab", strategy)
    town.connect("ab")
    subscriber = town["b"].join("subscriber")
    subscriber.subscribe("t", 1)
    for number in range(5):
        town["a"].join("publisher").publish("t", b"%d" % number, 1)
    town.cut("a", "b")
    reborn = town.nodes["a"] = JoinedNode(town, "a", epoch=2)
    town.connect("ab")
    reborn.join("publisher").publish("t", b"new", 1)
    assert payloads(subscriber) == [b"0", b"1", b"2", b"3", b"4", b"new"]
