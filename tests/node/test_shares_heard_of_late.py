"""A shared subscription gets messages of a node that had not heard of it when they entered there: each once."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Publish, Subscribe
from node.faulty_nodes import FaultyTown

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
EVERYTHING = [b"0", b"1", b"2", b"3"]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def payloads(*clients: Client) -> list[bytes]:
    return sorted(message.payload for client in clients for message in client.messages())


def publish(town: FaultyTown, node: str, qos: int) -> None:
    publisher = town[node].join("publisher")
    for payload in EVERYTHING:
        publisher.publish("t", payload, qos)


def begin(client: Client, topic_filter: str) -> None:
    """SUBACK may take its time."""
    client.say(Subscribe(client.next_packet_id(), [(topic_filter, 2)], {}))


@pytest.mark.parametrize("qos", [1, 2])
def test_nodes_that_meet_for_the_first_time(strategy: str, qos: int) -> None:
    town = FaultyTown("ab", strategy)
    member = town["b"].join("member")
    member.subscribe("$share/g/t", qos)
    publish(town, "a", qos)
    town.connect("ab")
    assert payloads(member) == EVERYTHING


@pytest.mark.parametrize("qos", [1, 2])
def test_a_node_that_was_cut_off_when_the_group_began(strategy: str, qos: int) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    publish(town, "a", 0)
    town.cut("a", "b")
    member = town["b"].join("member")
    member.subscribe("$share/g/t", qos)
    publish(town, "a", qos)
    town.connect("ab")
    assert payloads(member) == EVERYTHING


def test_a_link_that_brings_messages_before_it_takes_the_news_of_the_group(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect_slowly("b", "a", 1.0)
    town.pass_time(10)
    plain, member = town["b"].join("plain"), town["b"].join("member")
    begin(plain, "t")
    town.pass_time(10)
    begin(member, "$share/g/t")
    publish(town, "a", 2)
    town.pass_time(20)
    assert payloads(plain) == EVERYTHING
    assert payloads(member) == EVERYTHING


@pytest.mark.parametrize("qos", [1, 2])
def test_members_on_two_nodes_get_each_message_once(strategy: str, qos: int) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("bc")
    members = town["b"].join("one"), town["c"].join("other")
    for member in members:
        member.subscribe("$share/g/t", qos)
    publish(town, "a", qos)
    town.connect("ab")
    town.pass_time(1)
    assert payloads(*members) == EVERYTHING


def test_members_of_the_node_itself_keep_what_they_got(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    own, other = town["a"].join("own"), town["b"].join("other")
    own.subscribe("$share/g/t", 2)
    other.subscribe("$share/g/t", 2)
    publish(town, "a", 2)
    town.connect("ab")
    town.pass_time(1)
    assert payloads(own) == EVERYTHING
    assert payloads(other) == []


def test_a_group_that_begins_while_a_message_is_written_does_not_get_it_twice(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    elsewhere, own = town["b"].join("elsewhere"), town["a"].join("own")
    publisher = town["a"].join("publisher")
    elsewhere.subscribe("$share/g/t", 2)
    town["a"].disk_stalls = True
    publisher.send(Publish("t", b"0", 2, packet_id=7))
    town.settle()
    own.subscribe("$share/g/t", 2)
    town["a"].disk_stalls = False
    town.connect("ab")
    town.pass_time(1)
    assert payloads(own, elsewhere) == [b"0"]


@pytest.mark.parametrize("saves", [False, True])
def test_a_message_that_was_given_to_one_node_is_given_to_no_other_after_a_crash(strategy: str, saves: bool) -> None:
    town = FaultyTown("abc", strategy)
    members = town["b"].join("one"), town["c"].join("other")
    for member in members:
        member.subscribe("$share/g/t", 2)
    publish(town, "a", 2)
    town.connect("ab")
    if saves:
        town["a"].checkpoint()
    town.kill("a")
    town.start("a")
    town.connect("ac")
    town.pass_time(3)
    assert payloads(members[0]) == EVERYTHING
    assert payloads(members[1]) == []


def test_a_node_hears_that_it_is_given_a_message_only_when_that_is_safe(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    members = town["b"].join("one"), town["c"].join("other")
    for member in members:
        member.subscribe("$share/g/t", 2)
    publish(town, "a", 2)
    town["a"].disk_stalls = True
    town.connect("ab")
    town.pass_time(1)
    assert payloads(members[0]) == []
    town.kill("a")
    town.start("a")
    town.connect("ac")
    town.pass_time(3)
    assert payloads(members[1]) == EVERYTHING
    town.connect("ab")
    town.pass_time(3)
    assert payloads(members[0]) == []


def test_what_was_given_to_members_who_have_left_goes_to_others(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    leaving = town["b"].join("leaving")
    leaving.subscribe("$share/g/t", 2)
    publish(town, "a", 2)
    town.connect("bc")
    staying = town["c"].join("staying")
    town["a"].disk_stalls = True
    town.connect("ab")
    town.pass_time(0.5)
    begin(staying, "$share/g/t")
    leaving.unsubscribe("$share/g/t")
    town["a"].disk_stalls = False
    town.pass_time(8)
    assert payloads(staying, leaving) == EVERYTHING


def test_more_groups_than_can_be_named_are_counted_and_stop_nothing(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    topic = "t/" + "x" * 4000
    greedy, other = town["b"].join("greedy"), town["b"].join("other")
    for group in range(20):
        greedy.subscribe(f"$share/{group}/{topic}", 1)
    other.subscribe(topic, 1)
    town["a"].join("publisher").publish(topic, b"1", 1)
    town.connect("ab")
    town.pass_time(1)
    assert payloads(other) == [b"1"]
    assert len(payloads(greedy)) + town["b"].dropped("too-many-groups") == 20
