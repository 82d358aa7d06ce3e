"""Clients on different nodes see one broker."""

from __future__ import annotations

import pytest

from conformance.packets import Puback, Publish, Suback, Subscribe
from node.joined_nodes import Town
from sterna.routing.outbound import HELD_TOPICS_MAX

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")


@pytest.fixture(params=STRATEGIES)
def town(request: pytest.FixtureRequest) -> Town:
    """Three nodes in a row."""
    town = Town("abc", request.param)
    town.connect("ab", "bc")
    return town


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_a_subscriber_two_nodes_away(town: Town, qos: int) -> None:
    subscriber = town["c"].join("subscriber")
    publisher = town["a"].join("publisher")
    assert subscriber.subscribe("t/#", qos) == qos
    for number in range(3):
        assert publisher.publish("t/1", b"%d" % number, qos) == 0
    town.settle()
    got = [message.payload for message in subscriber.messages()]
    assert got == [b"0", b"1", b"2"]


def test_a_subscription_stands_everywhere_once_it_is_acknowledged(town: Town) -> None:
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"before", 1)
    subscriber = town["c"].join("subscriber")
    assert subscriber.subscribe("t", 1) == 1
    publisher.publish("t", b"after", 1)
    assert [message.payload for message in subscriber.messages()] == [b"after"]


def test_nothing_is_sent_where_nobody_wants_it(town: Town) -> None:
    if town.strategy == "publication-flooding":
        pytest.skip("sends everything everywhere")
    near = town["a"].join("near")
    near.subscribe("t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"here", 1)
    publisher.publish("t", b"here", 0)
    assert near.payloads() == [b"here", b"here"]
    assert town["a"].network.router.counters.forwarded == 0


def test_an_unsubscribed_topic_is_no_longer_sent(town: Town) -> None:
    if town.strategy == "publication-flooding":
        pytest.skip("sends everything everywhere")
    publisher = town["a"].join("publisher")
    subscriber = town["c"].join("subscriber")
    subscriber.subscribe("t", 1)
    publisher.publish("t", b"1", 1)
    subscriber.received()
    subscriber.unsubscribe("t")
    town.settle()
    before = town["a"].network.router.counters.forwarded
    publisher.publish("t", b"2", 1)
    assert town["a"].network.router.counters.forwarded == before


def test_a_retained_message_is_found_at_every_node(town: Town) -> None:
    publisher = town["a"].join("publisher")
    publisher.publish("state", b"old", 1, retain=True)
    publisher.publish("state", b"on", 0, retain=True)
    late = town["c"].join("late")
    late.subscribe("state", 1)
    (message,) = late.messages()
    assert (message.payload, message.retain) == (b"on", True)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_retained_message_that_was_taken_away_is_not_found_by_who_subscribes_after_that(
    town: Town, is_persistent: bool
) -> None:
    """Though the other node has not yet heard of it, or has it on the way to its journal."""
    publisher = town["a"].join("publisher")
    publisher.publish("state", b"old", 1, retain=True)
    town.settle()
    late = town["c"].resume("late") if is_persistent else town["c"].join("late")
    publisher.send(Publish("state", b"", qos=1, retain=True, packet_id=7))
    town["a"].work()
    assert [type(answer) for answer in publisher.received()] == [Puback]
    assert town["c"].broker.retained.get(b"state") is not None, "it has not heard of it"
    late.send(Subscribe(1, [("state", 1)]))
    answers: list[object] = []
    while Suback(1, [1]) not in answers:
        # What comes in at c is taken in; it is written only when nothing else is left to do.
        for name in "ab":
            town[name].work()
        town["c"].node.flush()
        town["c"].broker.flush()
        if not sum(pipe.move() for pipe in town.pipes):
            town["c"].work()
        answers += late.received()
    town.settle()
    answers += late.received()
    # That it is being taken away it may hear: it came while the client was a subscriber.
    assert [found for found in answers if isinstance(found, Publish)] in ([], [Publish("state", b"", qos=1)])


def test_a_node_that_joins_learns_what_is_retained_by_nodes_that_are_gone(town: Town) -> None:
    town["a"].join("publisher").publish("state", b"kept", 1, retain=True)
    town.cut("a", "b")
    town.nodes["d"] = type(town["a"])(town, "d")
    town.connect("cd")
    late = town["d"].join("late")
    late.subscribe("#", 1)
    assert [message.payload for message in late.messages()] == [b"kept"]


def test_of_two_retained_messages_all_nodes_keep_the_same(town: Town) -> None:
    town.cut("a", "b")
    town["a"].join("one").publish("state", b"one", 1, retain=True)
    town.pass_time(0.1)
    town["c"].join("two").publish("state", b"two", 1, retain=True)
    town.connect("ab")
    kept = {town[name].broker.retained.get(b"state").payload for name in "abc"}  # type: ignore[union-attr]
    assert kept == {b"two"}


def test_what_was_published_while_a_link_was_down_comes_when_it_is_up(town: Town) -> None:
    subscriber = town["c"].join("subscriber")
    subscriber.subscribe("t", 2)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"0", 2)
    town.cut("b", "c")
    for number in range(1, 4):
        publisher.publish("t", b"%d" % number, 2)
    town.connect("bc")
    publisher.publish("t", b"4", 2)
    assert [message.payload for message in subscriber.messages()] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_will_is_heard_everywhere(town: Town) -> None:
    from conformance.packets import Will

    listener = town["c"].join("listener")
    listener.subscribe("wills", 1)
    mortal = town["a"].join("mortal", will=Will("wills", b"gone", 1, False))
    mortal.vanish()
    town.settle()
    assert [message.payload for message in listener.messages()] == [b"gone"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_over_several_nodes_delivers_once(town: Town, qos: int) -> None:
    members = [town[name].join(f"member-{name}") for name in "abc"]
    for member in members:
        member.subscribe("$share/g/t", qos)
    plain = town["b"].join("plain")
    plain.subscribe("t", qos)
    town.pass_time(0.1)
    publisher = town["a"].join("publisher")
    for number in range(9):
        publisher.publish("t", b"%d" % number, qos)
    town.settle()
    got = [[message.payload for message in member.messages()] for member in members]
    expected = [b"%d" % number for number in range(9)]
    assert sorted(payload for share in got for payload in share) == sorted(expected)
    assert all(len(share) >= 3 for share in got)
    assert [message.payload for message in plain.messages()] == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_a_shared_subscription_stands_everywhere_once_it_is_acknowledged(town: Town, qos: int) -> None:
    members = [town[name].join(f"member-{name}") for name in "bc"]
    for member in members:
        member.subscribe("$share/g/t", qos)
    publisher = town["a"].join("publisher")
    for number in range(9):
        publisher.publish("t", b"%d" % number, qos)
    town.settle()
    got = [message.payload for member in members for message in member.messages()]
    assert sorted(got) == [b"%d" % number for number in range(9)]


def test_a_node_that_was_started_again_still_knows_who_shares_elsewhere(town: Town) -> None:
    members = [town[name].join(f"member-{name}", clean=False, session_expiry=1000) for name in "bc"]
    for member in members:
        member.subscribe("$share/g/t", 1)
    town["a"].join("before").publish("t", b"before", 1)
    town.crash("a")
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"alone", 1)
    town.connect("ab")
    publisher.publish("t", b"linked", 1)
    got = [message.payload for member in members for message in member.messages()]
    assert sorted(got) == [b"alone", b"before", b"linked"]


def test_a_topic_cleared_and_set_again_in_one_breath_is_set_everywhere(town: Town) -> None:
    publisher = town["a"].join("publisher")
    publisher.publish("state", b"old", 1, retain=True)
    for payload in (b"", b"new"):
        publisher.send(Publish("state", payload, 1, True, packet_id=publisher.next_packet_id()))
    town.settle()
    kept = [town[name].broker.retained.get(b"state") for name in "abc"]
    assert [message and message.payload for message in kept] == [b"new"] * 3


def test_a_burst_of_new_topics_at_qos_0_waits_within_bounds() -> None:
    town = Town("ab", "advertisement")
    town.connect("ab")
    subscriber = town["b"].join("subscriber")
    subscriber.subscribe("#", 0)
    publisher = town["a"].join("publisher")
    topics = [f"t/{number}" for number in range(HELD_TOPICS_MAX + 100)]
    for topic in topics:
        publisher.send(Publish(topic, b"", 0))
    town.pass_time(1)
    heard = [message.topic for message in subscriber.messages()]
    assert len(heard) == len(set(heard))
    assert set(topics[:HELD_TOPICS_MAX]) <= set(heard)


@pytest.mark.parametrize("before", [(), ("old",)], ids=["nothing wanted before", "something wanted before"])
def test_a_subscriber_misses_nothing_though_the_link_was_silent_when_it_subscribed(
    before: tuple[str, ...], town: Town
) -> None:
    """SUBACK waits for `settle_s` only; then the other nodes publish, and hear of the subscription late."""
    subscriber = town["c"].join("subscriber")
    for topic in before:
        subscriber.subscribe(topic, 1)
    town.hold("c", "b")
    subscriber.send(Subscribe(7, [("new", 2)]))
    town.pass_time(1.5)
    assert Suback(7, [2]) in subscriber.received()
    publisher = town["a"].join("publisher")
    for number in range(3):
        publisher.publish("new", b"%d" % number, 2)
        publisher.publish("old", b"%d" % number, 1)
    town.hold("c", "b", held=False)
    town.pass_time(3)
    got = [(message.topic, message.payload) for message in subscriber.messages()]
    wanted = ["new", *before]
    assert sorted(got) == sorted((topic, b"%d" % number) for topic in wanted for number in range(3))
