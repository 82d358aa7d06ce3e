"""Figures 6, 7 and 8 of the paper and both unsubscriptions, message for message; and the slip of section 4.4."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from sterna.measure.ildm.reference.api import Address
from sterna.measure.ildm.reference.messages import MessageType, read_filters
from sterna.measure.ildm.reference.subscriptions import LiteralSubscriptionFlooding
from sterna.mqtt.topics import covers, matches

from .model_world import Client, World

LINKS = (("1", "2"), ("2", "3"), ("2", "4"), ("3", "5"))
SUBSCRIBE, UNSUBSCRIBE, PUBLISH = MessageType.SUBSCRIBE, MessageType.UNSUBSCRIBE, MessageType.PUBLISH
CONTROL = (SUBSCRIBE, UNSUBSCRIBE)


def figure(kind: str) -> World:
    """I1-I2, I2-I3, I2-I4, I3-I5."""
    world = World()
    for number in "12345":
        world.node(f"I{number}", kind)
    for one, other in LINKS:
        world.link(f"I{one}", f"I{other}")
    world.said.clear()
    return world


def clients_of_figure(world: World) -> tuple[Client, Client, Client]:
    return world.client("I2", "C1"), world.client("I3", "C2"), world.client("I5", "C3")


def tables(world: World) -> dict[str, LiteralSubscriptionFlooding]:
    found = {}
    for name, algorithm in world.algorithms.items():
        assert isinstance(algorithm, LiteralSubscriptionFlooding)
        found[name] = algorithm
    return found


def test_figure_6_a_publication_is_flooded() -> None:
    world = figure("PF")
    c1, c2, c3 = clients_of_figure(world)
    for client in c1, c2:
        client.subscribe("t")
        world.settle()
    assert world.between(*CONTROL) == []
    c3.publish("t", b"hello")
    world.settle()
    assert world.between(PUBLISH) == ["5>3", "3>2", "2>1", "2>4"]
    assert [broker.published for broker in world.brokers.values()] == [[b"t"]] * 5
    assert c1.messages == c2.messages == [(b"t", b"hello")]


def test_figure_7_a_publication_follows_the_inter_subscriptions() -> None:
    world = figure("SF")
    c1, c2, c3 = clients_of_figure(world)
    c1.subscribe("t")
    world.settle()
    assert sorted(world.between(*CONTROL)) == ["2>1", "2>3", "2>4", "3>5"]
    c2.subscribe("t")
    world.settle()
    assert world.between(*CONTROL) == ["3>2"]
    c3.publish("t", b"hello")
    world.settle()
    assert world.between(PUBLISH) == ["5>3", "3>2"]
    assert c1.messages == c2.messages == [(b"t", b"hello")]
    assert {name for name, broker in world.brokers.items() if broker.published} == {"I2", "I3", "I5"}


def test_both_unsubscriptions_take_back_what_nobody_else_wants() -> None:
    world = figure("SF")
    c1, c2, _ = clients_of_figure(world)
    for client in c1, c2:
        client.subscribe("t")
        world.settle()
    world.said.clear()
    c2.unsubscribe("t")
    world.settle()
    assert [(kind, read_filters(message)[1]) for _, _, kind, message in world.said] == [(UNSUBSCRIBE, [("t", 0)])]
    assert world.between(*CONTROL) == ["3>2"]
    c1.unsubscribe("t")
    world.settle()
    assert sorted(world.between(*CONTROL)) == ["2>1", "2>3", "2>4", "3>5"]
    for table in tables(world).values():
        assert not any(table.told.values())
        assert not any(table.heard.values())


def figure_8(*, papers_rule: bool = False) -> tuple[World, dict[str, Client]]:
    """I1-I2-I3 with subscribers of t1 at I1 and t2 at I3; I4 with one of t3 is added."""
    world = World()
    for number in "1234":
        world.node(f"I{number}", "SF", papers_rule=papers_rule)
    world.link("I1", "I2")
    world.link("I2", "I3")
    clients = {}
    for node, topic in ("I1", "t1"), ("I3", "t2"), ("I4", "t3"):
        clients[node] = world.client(node, f"C-{node}")
        clients[node].subscribe(topic)
        world.settle()
    world.said.clear()
    return world, clients


@pytest.mark.parametrize("papers_rule", [True, False])
def test_figure_8_a_neighbour_is_added_and_removed(papers_rule: bool) -> None:
    world, _ = figure_8(papers_rule=papers_rule)
    world.link("I2", "I4")
    told = {
        (source, target): dict(read_filters(message)[1])
        for source, target, kind, message in world.said
        if kind in CONTROL
    }
    assert told == {
        ("I2", "I4"): {"t1": 0, "t2": 0},
        ("I4", "I2"): {"t3": 0},
        ("I2", "I1"): {"t3": 0},
        ("I2", "I3"): {"t3": 0},
    }
    assert len(world.between(*CONTROL)) == 4
    world.nodes["I2"].remove(Address("I4", 1))
    world.settle()
    assert sorted(world.between(UNSUBSCRIBE)) == ["2>1", "2>3", "2>4"]
    found = tables(world)
    assert set(found["I2"].neighbours) == {"I1", "I3"}
    assert not found["I4"].neighbours
    assert found["I1"].heard == {"I2": {"t2": 0}}
    assert found["I3"].heard == {"I2": {"t1": 0}}


@pytest.mark.parametrize(("papers_rule", "arrives"), [(False, True), (True, False)])
def test_an_only_neighbour_gets_what_a_new_one_publishes(papers_rule: bool, arrives: bool) -> None:
    """With the rule of the paper it does not: the set it inter-subscribed to lacks what its only neighbour wants."""
    world = World()
    for number in "123":
        world.node(f"I{number}", "SF", papers_rule=papers_rule)
    world.link("I1", "I2")
    reader = world.client("I1", "reader")
    reader.subscribe("t")
    world.settle()
    world.link("I2", "I3")
    writer = world.client("I3", "writer")
    writer.publish("t")
    world.settle()
    assert bool(reader.messages) is arrives


def test_contained_filters_are_not_told_and_are_told_again_when_needed() -> None:
    world = World()
    for number in "12":
        world.node(f"I{number}", "SF")
    world.link("I1", "I2")
    world.said.clear()
    client = world.client("I1", "C")
    client.subscribe("a/#")
    client.subscribe("a/b")
    world.settle()
    assert world.between(*CONTROL) == ["1>2"]
    client.unsubscribe("a/#")
    world.settle()
    assert world.between(SUBSCRIBE, UNSUBSCRIBE) == ["1>2", "1>2"]
    assert tables(world)["I2"].heard == {"I1": {"a/b": 0}}


def test_retained_messages_reach_every_broker_under_sf() -> None:
    world = figure("SF")
    world.client("I5", "C").publish("t", b"last", retain=True)
    world.settle()
    assert all(broker.retained == {b"t": b"last"} for broker in world.brokers.values())
    late = world.client("I1", "late")
    late.subscribe("t")
    world.settle()
    assert late.messages == [(b"t", b"last")]


@pytest.mark.parametrize("kind", ["PF", "SF"])
@pytest.mark.parametrize("politely", [True, False])
def test_a_will_goes_to_the_neighbours_when_the_client_is_lost(kind: str, politely: bool) -> None:
    world = figure(kind)
    reader = world.client("I1", "reader")
    reader.subscribe("gone")
    world.settle()
    lost = world.client("I5", "lost", will=("gone", b"lost", 0, False))
    if politely:
        lost.send(MessageType.DISCONNECT)
    world.settle()
    lost.pipe.close()
    world.settle()
    assert reader.messages == ([] if politely else [(b"gone", b"lost")])


def test_interest_of_a_client_that_asked_to_be_remembered_stays() -> None:
    world = figure("SF")
    client = world.client("I1", "kept", clean=False)
    client.subscribe("t")
    world.settle()
    client.pipe.close()
    world.settle()
    assert tables(world)["I5"].heard["I3"] == {"t": 0}
    world.client("I1", "kept", clean=True)
    assert tables(world)["I5"].heard["I3"] == {}


def test_a_node_that_dies_is_removed_by_its_neighbours_and_comes_back() -> None:
    world = figure("SF")
    c1, _, c3 = clients_of_figure(world)
    c1.subscribe("t")
    world.settle()
    found = tables(world)
    for session in list(found["I3"]._names):
        world.nodes["I3"].close_session(session)
    world.settle()
    assert set(found["I2"].neighbours) == {"I1", "I4"}
    assert found["I5"].heard == {}
    world.link("I2", "I3")
    world.link("I3", "I5")
    c3.publish("t", b"again")
    world.settle()
    assert c1.messages == [(b"t", b"again")]


FILTERS = ("a/b", "a/c", "a/+", "a/#", "#", "+/b", "b")
TOPICS = (b"a/b", b"a/c", b"a", b"b", b"c/b", b"a/b/c")


@pytest.mark.parametrize("seed", range(20))
def test_tables_after_any_order_of_subscriptions_are_what_brute_force_says(seed: int) -> None:
    dice = random.Random(seed)
    world = figure("SF")
    clients = {f"I{number}": world.client(f"I{number}", f"C{number}") for number in "12345"}
    held: dict[str, set[str]] = {name: set() for name in clients}
    for _ in range(30):
        name, one = dice.choice(list(clients)), dice.choice(FILTERS)
        if one in held[name]:
            held[name].remove(one)
            clients[name].unsubscribe(one)
        else:
            held[name].add(one)
            clients[name].subscribe(one)
        if dice.random() < 0.7:
            world.settle()
    world.settle()
    for topic in TOPICS:
        for publisher in clients.values():
            for client in clients.values():
                client.got.clear()
            publisher.publish(topic.decode())
            world.settle()
            for name, client in clients.items():
                wanted = any(matches(one.encode().split(b"/"), topic.split(b"/")) for one in held[name])
                assert len(client.messages) == wanted, (name, topic)


def test_no_told_filter_is_contained_in_another_told_at_once() -> None:
    world = figure("SF")
    for number, filters in ("1", ("a/b", "#")), ("2", ("a/#",)):
        for one in filters:
            world.client(f"I{number}", f"{number}{one}").subscribe(one)
    world.settle()
    world.node("I6", "SF")
    world.link("I5", "I6")
    for one, other in combinations(tables(world)["I6"].heard["I5"], 2):
        assert not covers(one.encode().split(b"/"), other.encode().split(b"/"))
