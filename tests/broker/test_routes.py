"""Routes are remembered until something changes that they depend on, and never a moment longer."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.lone_node import Client, LoneNode
from conformance.packets import Connect, Subscribe, Unsubscribe
from sterna.broker import work_budget
from sterna.broker.access.authorization import AccessRule
from sterna.broker.delivery import routes as routes_module
from sterna.broker.delivery.routes import Route, Routes
from sterna.broker.limits import Limits
from sterna.mqtt import wire


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.fixture
def writer(node: LoneNode) -> Client:
    """A client whose topic `a/b` already has a route to nobody."""
    writer = node.join("writer")
    remember(node, writer, "a/b")
    return writer


def remember(node: LoneNode, writer: Client, topic: str) -> Route:
    """Publish until the topic is remembered by name."""
    for _ in range(routes_module.REMEMBERED_ONE_IN):
        writer.publish(topic, b"to nobody")
    return node.broker.routes.remembered[topic.encode()]


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
    route = remember(node, writer, "c")
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
    size = routes_module.TOPIC_BYTES + len("many/00")
    monkeypatch.setattr(routes_module, "REMEMBERED_BYTES", 10 * size)
    for number in range(25):
        remember(node, writer, f"many/{number:02}")
        assert 0 < len(node.broker.routes.remembered) <= 10
        assert node.broker.routes._names.size == len(node.broker.routes.remembered)


def test_topics_that_were_met_once_are_not_all_remembered(node: LoneNode) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    reader.subscribe("many/+")
    for number in range(160):
        writer.publish(f"many/{number}", b"%d" % number)
    assert reader.payloads() == [b"%d" % number for number in range(160)]
    assert len(node.broker.routes.remembered) <= 160 / routes_module.REMEMBERED_ONE_IN + 1


@pytest.mark.parametrize("topic", ["$aws/x", "caf\u00e9/x", "a//", "/"])
def test_topics_that_deserve_a_closer_look_are_delivered_each_time(node: LoneNode, topic: str) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    reader.subscribe("$aws/#")
    reader.subscribe("#")
    for number in range(40):
        writer.publish(topic, b"%d" % number)
    assert reader.payloads() == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a\0", b"\xff", b"/" * 128, b"x" * 4097])
def test_a_topic_that_is_no_name_ends_the_connection_however_often_others_were_sent(
    node: LoneNode, writer: Client, topic: bytes
) -> None:
    writer.connection.feed(b"\x30" + wire.variable(len(topic) + 3) + wire.two(len(topic)) + topic + b"\0")
    assert writer.wire.closed


def test_filters_of_one_session_share_a_route(node: LoneNode) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    for number in range(10):
        reader.subscribe(f"{number}/+")
        writer.publish(f"{number}/x", b"%d" % number)
    assert reader.payloads() == [b"%d" % number for number in range(10)]
    assert len({id(node.broker.routes.route(b"%d/y" % number)) for number in range(10)}) == 1


def test_a_combination_of_filters_has_one_route_until_one_of_them_changes(node: LoneNode) -> None:
    writer, one, two = node.join("writer"), node.join("one"), node.join("two")
    one.subscribe("#")
    two.subscribe("a/+")
    routes = node.broker.routes
    before = routes.route(b"a/1")
    assert before is routes.route(b"a/2") is not routes.route(b"b/2")
    two.subscribe("a/+", 1)
    assert [grant.qos for _, grant in routes.route(b"a/3").deliveries] == [0, 1]
    two.unsubscribe("a/+")
    writer.publish("a/4", b"4")
    assert (one.payloads(), two.payloads()) == ([b"4"], [])
    assert routes._combined == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_cannot_publish_to_a_topic_of_the_broker_that_was_just_used(node: LoneNode, qos: int) -> None:
    reader, writer = node.join("reader"), node.join("writer")
    reader.subscribe("$SYS/#")
    node.broker.ingress.publish_sys(b"$SYS/broker/uptime", b"1 seconds")
    node.settle()
    assert reader.payloads() == [b"1 seconds"]
    assert writer.publish("$SYS/broker/uptime", b"forged", qos) == (0x87 if qos else 0)
    assert reader.payloads() == []
    assert node.dropped("not-authorized") == 1


@pytest.mark.parametrize("topic_filter", ["a/+", "a/#", "+/b", "+/b/#", "$share/g/a/+"])
def test_a_wildcard_subscription_leaves_the_routes_it_does_not_match_alone(
    node: LoneNode, writer: Client, topic_filter: str
) -> None:
    route = remember(node, writer, "c")
    reader = node.join("reader")
    for change in (reader.subscribe, reader.unsubscribe):
        remember(node, writer, "a/b")
        reader.received()
        change(topic_filter)
        assert node.broker.routes.remembered.get(b"c") is route
        assert b"a/b" not in node.broker.routes.remembered


def test_a_subscription_that_matches_more_than_can_be_looked_through_forgets_everything(node: LoneNode) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    routes = node.broker.routes
    for number in range(work_budget.TURN):
        routes._remember(b"a/%d/x" % number, routes.route(b"a/%d/x" % number))
    writer.publish("a/1/x")
    reader.subscribe("a/+/y")
    assert routes.remembered == {}
    assert list(routes._names) == []


def told(route: Route) -> tuple[object, ...]:
    return (
        [(session.client_id, grant) for session, grant in route.deliveries],
        route.own,
        [share.key for share in route.shares],
        [len(route.plain_3_1_1), len(route.plain_5)],
        [(session.client_id, grant) for session, grant in route.special],
    )


def assert_true_to_the_subscriptions(routes: Routes) -> None:
    assert sorted(routes._names) == sorted(routes.remembered)
    assert routes._bytes == sum(routes_module._remembered_bytes(*pair) for pair in routes.remembered.items())
    for topic, route in routes.remembered.items():
        assert told(route) == told(routes._build(topic, routes._match(topic))), topic


LEVELS = ["a", "b", ""]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map("/".join).filter(bool)
filters = st.builds(
    lambda group, levels, tail: group + "/".join([*levels, *tail]),
    st.sampled_from(["", "", "$share/g/"]),
    st.lists(st.sampled_from([*LEVELS, "+"]), max_size=2),
    st.sampled_from([["#"], ["+"], ["a"]]),
)
changes = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 1), topics, st.sampled_from([1, 16])),
    st.tuples(st.just("subscribe"), st.integers(0, 1), filters, st.integers(0, 2)),
    st.tuples(st.just("unsubscribe"), st.integers(0, 1), filters, st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 1), st.just(""), st.just(0)),
    st.tuples(st.just("work_budget"), st.just(0), st.just(""), st.sampled_from([0, 2 * work_budget.TURN - 8])),
)


@given(st.lists(changes, max_size=25))
def test_what_is_remembered_always_equals_a_fresh_match(steps: list[tuple[str, int, str, int]]) -> None:
    node = LoneNode()
    clients = [node.join("0", 4), node.join("1", 5)]
    spent = 0
    met: dict[bytes, None] = {}
    for what, who, text, number in steps:
        client = clients[who]
        node.broker.at(node.now)
        node.broker.work_budget.begin(node.now)
        node.broker.work_budget.spent = spent
        if what == "publish":
            met[text.encode()] = None
            for _ in range(number):
                node.broker.routes.route(text.encode())
        elif what == "subscribe":
            client.connection.feed(Subscribe(1, [(text, number)]).encode(client.version))
        elif what == "unsubscribe":
            client.connection.feed(Unsubscribe(1, [text]).encode(client.version))
        elif what == "leave":
            client.leave()
            clients[who] = node.join(str(who), client.version)
        else:
            spent = number  # of the turns to come: little left means that everything is forgotten at once
        node.settle()
        routes = node.broker.routes
        assert_true_to_the_subscriptions(routes)
        for topic in met:
            assert told(routes.route(topic)) == told(routes._build(topic, routes._match(topic))), topic


def test_filters_made_to_branch_at_every_level_are_bounded_in_what_they_cost_a_message() -> None:
    node = LoneNode()
    greedy = node.join("greedy")
    levels = 13
    codes = [greedy.subscribe("/".join(each) + "/#") for each in product("x+", repeat=levels)]
    limit = Limits().overlapping_filters
    assert (codes.count(0), codes.count(0x97)) == (limit, 2**levels - limit)
    before = node.broker.routes._tree.looked_at
    route = node.broker.routes.route(b"/".join([b"x"] * levels) + b"/1")
    assert node.broker.routes._tree.looked_at - before <= limit * (levels + 2)
    assert len(route.deliveries) == 1


@given(st.lists(filters, min_size=2, max_size=2, unique=True), topics)
def test_two_filters_of_one_shape_never_match_the_same_topic(pair: list[str], topic: str) -> None:
    first, second = (routes_module.shape_of(topic_filter.encode()) for topic_filter in pair)
    node = LoneNode()
    for name, topic_filter in zip("ab", pair, strict=True):
        node.join(name).subscribe(topic_filter)
    route = node.broker.routes.route(topic.encode())
    if first == second:
        assert len(route.deliveries) + len(route.shares) <= 1


def test_shapes_are_counted_until_their_last_filter_has_gone(node: LoneNode) -> None:
    reader = node.join("reader")
    for topic_filter in ("a/+", "b/+", "c/+/d", "$share/g/a", "a/b"):
        reader.subscribe(topic_filter)
        reader.subscribe(topic_filter, 1)
    shapes = node.broker.routes._shapes
    assert shapes == {b"reader": {b"/+": 3, b"$share/g/": 1}}
    for topic_filter in ("a/+", "b/+", "$share/g/a"):
        reader.unsubscribe(topic_filter)
    assert shapes == {b"reader": {b"/+": 1}}
    reader.leave()
    assert shapes == {}


def test_a_topic_that_an_expression_takes_is_looked_for_once() -> None:
    node = LoneNode()
    reader, publisher = node.join("reader"), node.join("publisher")
    reader.subscribe("$MAX/t/+")
    publisher.publish("t/1", b"1")
    tree = node.broker.routes.computations._tree._tree
    before = tree.looked_at
    publisher.publish("t/1", b"2")
    assert tree.looked_at == before
    assert len(reader.messages()) == 2
