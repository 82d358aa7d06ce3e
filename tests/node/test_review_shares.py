"""Shared subscriptions whose members come, go and crash on several nodes: every message to one member, once."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Publish, Subscribe
from node.faulty_nodes import FaultyTown

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def payloads(*clients: Client) -> list[bytes]:
    return sorted(message.payload for client in clients for message in client.messages())


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_decided_for_a_member_that_just_left_goes_to_another(strategy: str, qos: int) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying, leaving = town["b"].join("staying"), town["c"].join("leaving")
    for member in (staying, leaving):
        member.subscribe("$share/g/t", qos)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"0", qos)
    town.pass_time(0.1)
    got = payloads(staying, leaving)
    leaving.unsubscribe("$share/g/t")
    for number in range(1, 7):  # before the news that it has left is through
        publisher.publish("t", b"%d" % number, qos)
    town.pass_time(2)
    assert sorted(got + payloads(staying)) == [b"%d" % number for number in range(7)]


def test_what_was_decided_for_a_member_that_left_while_it_was_written_goes_to_another(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying, leaving = town["b"].join("staying"), town["c"].join("leaving")
    for member in (staying, leaving):
        member.subscribe("$share/g/t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"x", 1)
    town.pass_time(0.1)
    payloads(staying, leaving)
    town["a"].disk_stalls = True
    publisher.send(*(Publish("t", b"%d" % number, 1, packet_id=100 + number) for number in range(4)))
    town.settle()
    leaving.unsubscribe("$share/g/t")
    town.pass_time(0.5)
    town["a"].disk_stalls = False
    town.pass_time(2)
    assert payloads(staying) == [b"0", b"1", b"2", b"3"]


def test_what_was_decided_for_a_member_that_left_while_its_node_was_cut_off_goes_to_another(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying, leaving = town["b"].join("staying"), town["c"].join("leaving")
    for member in (staying, leaving):
        member.subscribe("$share/g/t", 2)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"x", 2)
    town.pass_time(0.1)
    payloads(staying, leaving)
    town["a"].disk_stalls = True
    publisher.send(*(Publish("t", b"%d" % number, 2, packet_id=100 + number) for number in range(4)))
    town.settle()
    town.cut("b", "c")
    leaving.unsubscribe("$share/g/t")
    town["a"].disk_stalls = False
    town.pass_time(1)
    town.connect("bc")
    town.pass_time(2)
    assert payloads(staying) == [b"0", b"1", b"2", b"3"]


def test_what_was_decided_for_a_member_whose_node_crashed_goes_to_another(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying, mortal = town["b"].join("staying"), town["c"].join("mortal")
    for member in (staying, mortal):
        member.subscribe("$share/g/t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"x", 1)
    town.pass_time(0.1)
    payloads(staying, mortal)
    town["a"].disk_stalls = True
    publisher.send(*(Publish("t", b"%d" % number, 1, packet_id=100 + number) for number in range(4)))
    town.settle()
    town.kill("c")
    town["a"].disk_stalls = False
    town.pass_time(1)
    town.start("c")
    town.connect("bc")
    town.pass_time(2)
    assert payloads(staying) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_handed_over_comes_once_though_the_taker_crashes(strategy: str, qos: int) -> None:
    """Handed over by c to b; b crashes with the message waiting and reads c again."""
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying = town["b"].resume("staying", session_expiry=1000)
    leaving, plain = town["c"].join("leaving"), town["c"].join("plain")
    staying.subscribe("$share/g/t", qos)
    leaving.subscribe("$share/g/t", qos)
    plain.subscribe("t", 0)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"0", qos)
    town.pass_time(0.1)
    before = payloads(staying, leaving)
    assert before == [b"0"]
    staying.vanish()
    leaving.unsubscribe("$share/g/t")
    for number in range(1, 5):
        publisher.publish("t", b"%d" % number, qos)
    town.pass_time(2)
    town.kill("b")
    town.start("b")
    town.connect("ab", "bc")
    town.pass_time(2)
    got = payloads(town["b"].resume("staying", session_expiry=1000))
    assert [g for g in got if g != b"0"] == [b"1", b"2", b"3", b"4"]


def test_what_is_handed_over_comes_once_though_the_giver_crashes(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    staying = town["b"].resume("staying", session_expiry=1000)
    leaving, plain = town["c"].join("leaving"), town["c"].resume("plain", session_expiry=1000)
    staying.subscribe("$share/g/t", 2)
    leaving.subscribe("$share/g/t", 2)
    plain.subscribe("t", 0)  # lasts, and has nothing written down
    publisher = town["a"].join("publisher")
    leaving.unsubscribe("$share/g/t")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 2)
    town.settle()
    town.kill("c")
    town.start("c")
    town.connect("bc")
    town.pass_time(2)
    assert payloads(staying) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_member_on_another_node_gets_messages_that_are_retained_too(strategy: str, qos: int, retain: bool) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    member = town["b"].join("member")
    member.subscribe("$share/g/t", 1)
    town["a"].join("publisher").publish("t", b"1", qos, retain)
    town.pass_time(1.5)
    assert payloads(member) == [b"1"]


def test_many_shared_subscriptions_of_one_client_do_not_cost_a_node_its_links(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    greedy = town["b"].join("greedy")
    for start in range(0, 1000, 100):
        wishes = [(f"$share/g/{number}/{'x' * 4000}", 1) for number in range(start, start + 100)]
        greedy.send(Subscribe(greedy.next_packet_id(), wishes, {}))
        town.settle()
    town.pass_time(3)
    assert "b" in town["a"].network.links.links


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_for_a_group_whose_last_member_here_leaves_goes_to_members_elsewhere(
    strategy: str, qos: int
) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    slow = town["c"].join("slow", receive_maximum=1)
    slow.subscribe("$share/g/t", qos)
    publisher = town["a"].join("publisher")
    for number in range(5):
        publisher.publish("t", b"%d" % number, qos)
    town.pass_time(0.1)
    quick = town["b"].join("quick")
    quick.subscribe("$share/g/t", qos)
    assert payloads(slow) == [b"0"]  # never acknowledged
    slow.vanish()
    town.pass_time(2)
    # A QoS 2 message that one member has begun to take may not go to another.
    assert payloads(quick) == [b"%d" % number for number in range(qos - 1, 5)]


def test_a_message_for_very_many_groups_neither_stops_a_node_nor_its_links(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    topic = "t/" + "x" * 4000
    greedy, other = town["b"].join("greedy"), town["b"].join("other")
    for group in range(20):
        greedy.subscribe(f"$share/{group}/{topic}", 1)
    other.subscribe(topic, 1)
    publisher = town["a"].join("publisher")
    assert publisher.publish(topic, b"1", 1) == 0
    town.pass_time(1)
    assert payloads(other) == [b"1"]
    assert len(payloads(greedy)) + town["a"].dropped("too-many-groups") == 20
