"""Subscriptions that compute, as clients see them: one broker, real packets, no sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.lone_node import Client, LoneNode
from broker.surviving_node import SurvivingNode
from sterna.broker.access.authorization import AccessRule
from sterna.broker.limits import Limits


def results(client: Client) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in client.messages()]


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_an_average_over_rooms_follows_every_publication(node: LoneNode, version: int, qos: int) -> None:
    client, sensor = node.join("c", version), node.join("sensor")
    assert client.subscribe("$AVG/room/+/temp", qos) == qos
    for room, value in ((1, b"20"), (2, b"30"), (1, b"10")):
        sensor.publish(f"room/{room}/temp", value, qos)
    assert results(client) == [("$AVG/room/$A/temp", answer) for answer in (b"20.0", b"25.0", b"20.0")]


def test_the_result_is_made_once_and_goes_to_all_who_want_it(node: LoneNode) -> None:
    clients = [node.join(f"c{number}") for number in range(3)]
    for client in clients:
        client.subscribe("$MAX/t/#", 1)
    node.join("sensor").publish("t/a/b", b"7", 1)
    assert [results(client) for client in clients] == [[("$MAX/t/$ALL", b"7.0")]] * 3
    assert len(node.broker.routes.computations) == 1


def test_expressions_that_look_alike_do_not_hear_each_other(node: LoneNode) -> None:
    one_level, all_levels = node.join("one"), node.join("all")
    one_level.subscribe("$SUM/a/+")
    all_levels.subscribe("$SUM/a/#")
    sensor = node.join("sensor")
    sensor.publish("a/x", b"1")
    sensor.publish("a/x/y", b"2")
    assert results(one_level) == [("$SUM/a/$A", b"1.0")]
    assert results(all_levels) == [("$SUM/a/$ALL", b"1.0"), ("$SUM/a/$ALL", b"3.0")]


def test_behind_rules_alone_the_message_goes_on_under_its_own_name_and_once(node: LoneNode) -> None:
    client, other = node.join("c"), node.join("d")
    client.subscribe("$GT;25/room/+/temp", 1)
    other.subscribe("$GT;25/room/#", 1)
    sensor = node.join("sensor")
    sensor.publish("room/1/temp", b"20", 1)
    sensor.publish("room/2/temp", b"30", 1, user_property=[("unit", "C")])
    assert results(client) == results(other) == [("$GT;25/room/2/temp", b"30")]


def test_no_plain_subscription_sees_results_and_no_client_makes_them(node: LoneNode) -> None:
    everything, client, forger = node.join("all"), node.join("c"), node.join("forger")
    everything.subscribe("#")
    client.subscribe("$COUNT/t/+", 1)
    assert forger.publish("$COUNT/t/$A", b"99", 1) == 0x87
    forger.publish("t/1", b"x")
    assert results(everything) == [("t/1", b"x")]
    assert results(client) == [("$COUNT/t/$A", b"1.0")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$AVERAGE/t", b"AVERAGE"),
        ("$AVG$CONTAINS;x/t", b"$AVG"),
        ("$GT;much/t", b"GT"),
        ("$share/g/$AVG/t", b"share"),
        ("$AVG/t/$A", b"$ALL stand for wildcards"),
        ("$COUNTPEOPLE/camera", b"no function"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_reason(node: LoneNode, text: str, why: bytes) -> None:
    client = node.join("c")
    assert client.subscribe(text) == 0x8F
    assert why in bytes(client.wire.written)
    assert client.publish("t", b"1", 1) == 0x10  # nobody
    assert len(node.broker.routes.computations) == 0
    assert node.join("old", 4).subscribe(text) == 0x80


def test_what_is_no_number_is_counted_and_said(node: LoneNode) -> None:
    client, sensor = node.join("c"), node.join("sensor")
    client.subscribe("$SUM/t/+")
    for payload in (b"1", b"one", b"nan", b"1e9999", b"2"):
        sensor.publish("t/1", payload)
    assert [payload for _, payload in results(client)] == [b"1.0", b"2.0"]
    statistics = node.broker.statistics()
    assert (statistics.expressions, statistics.expression_results) == (1, 2)
    assert statistics.expression_values == {"not-a-number": 3}
    client.leave()
    assert node.broker.statistics().expression_values == {"not-a-number": 3}


def test_a_window_ends_by_itself(node: LoneNode) -> None:
    client, sensor = node.join("c"), node.join("sensor")
    client.subscribe("$QUARTERHOURLYAVG/t", 1)
    for value in (b"1", b"2"):
        sensor.publish("t", value)
    node.now += 899
    node.broker.handle_deadlines(node.now)
    node.settle()
    assert results(client) == []
    node.now += 2
    node.broker.handle_deadlines(node.now)
    node.settle()
    assert results(client) == [("$QUARTERHOURLYAVG/t", b"1.5")]


def test_the_last_to_unsubscribe_ends_it(node: LoneNode) -> None:
    client, other, sensor = node.join("c"), node.join("d"), node.join("sensor")
    for one in (client, other):
        one.subscribe("$SUM/t/+")
    sensor.publish("t/1", b"1")
    assert results(client) == results(other) == [("$SUM/t/$A", b"1.0")]
    client.unsubscribe("$SUM/t/+")
    other.leave()
    assert len(node.broker.routes.computations) == 0
    client.subscribe("$SUM/t/+")
    sensor.publish("t/2", b"2")
    assert results(client) == [("$SUM/t/$A", b"2.0")]


def test_what_a_client_may_not_read_it_may_not_have_computed() -> None:
    rules = (AccessRule(("*",), ("secret/#",), "subscribe", "deny"),)
    node = LoneNode(rules=rules)
    client = node.join("c")
    assert client.subscribe("$AVG/secret/+") == 0x87
    assert client.subscribe("$AVG/#") == 0x87
    assert client.subscribe("$AVG/open/+", 1) == 1
    node.join("sensor").publish("open/1", b"4", 1)
    assert results(client) == [("$AVG/open/$A", b"4.0")]


def test_one_that_outgrows_its_bounds_says_so_and_falls_silent() -> None:
    node = LoneNode()
    computations = node.broker.routes.computations
    computations._settings = replace(computations._settings, topics=2)
    client, sensor = node.join("c"), node.join("sensor")
    client.subscribe("$SUM/t/+")
    for number in range(4):
        sensor.publish(f"t/{number}", b"1")
    assert [payload for _, payload in results(client)] == [b"1.0", b"2.0"]
    assert [event for event, _ in node.reports].count("an expression has stopped") == 1


# -- coming back --


def publish(node: SurvivingNode, topic: str, payload: bytes) -> None:
    node.client("sensor").publish(topic, payload, 1, 1)
    node.settle()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_summed_up_before_a_crash_counts_after_it(checkpoint: bool) -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    publish(node, "t/1", b"1")
    if checkpoint:
        node.checkpoint()
    publish(node, "t/2", b"2")
    node.crash()
    watcher = node.client("watcher")
    publish(node, "t/3", b"4")
    assert watcher.payloads() == [b"1.0", b"3.0", b"7.0"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_result_that_was_not_written_down_before_a_crash_is_made_again(checkpoint: bool) -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    publish(node, "t/1", b"1")
    if checkpoint:
        node.checkpoint()
    node.client("sensor").publish("t/2", b"2", 1, 2)
    node.commit()  # the message is safe; its result is in a group that is never written
    node.crash()
    watcher = node.client("watcher")
    assert watcher.payloads() == [b"1.0", b"3.0"]


def test_a_client_that_carries_the_name_of_an_expression_takes_nothing_from_it() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    node.settle()
    forger = node.client("$SUM/t/+", version=5)
    mark = b"\x26\x00\x0fsterna-sequence\x00\x060.9999"
    topic = b"\x00\x05other"
    forger.feed(0x32, topic + b"\x00\x01" + bytes((len(mark),)) + mark + b"x")
    node.settle()
    node.crash()
    watcher = node.client("watcher")
    publish(node, "t/1", b"1")
    assert watcher.payloads() == [b"1.0"]


def test_results_do_not_count_as_messages_of_a_client_that_carries_the_name_of_their_expression() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    node.client("$SUM/t/+", version=5)
    node.settle()
    for value in (b"1", b"2"):
        publish(node, "t/1", value)
    node.crash()
    watcher = node.client("watcher")
    watcher.subscribe("other", 1)
    namesake = node.client("$SUM/t/+", version=5)
    mark = b"\x26\x00\x0fsterna-sequence\x00\x030.1"
    namesake.feed(0x32, b"\x00\x05other\x00\x01" + bytes((len(mark),)) + mark + b"x")
    node.settle()
    assert watcher.payloads() == [b"1.0", b"2.0", b"x"]


def test_a_window_that_ended_before_a_crash_is_not_told_again() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$QUARTERHOURLYSUM/t", 1)
    node.settle()
    publish(node, "t", b"1")
    node.checkpoint()
    publish(node, "t", b"2")
    node.wait(901)
    node.settle()
    node.crash()
    watcher = node.client("watcher")
    node.wait(1)
    node.settle()
    assert watcher.payloads() == [b"3.0"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_result_of_qos_0_that_overtakes_does_not_stand_for_the_one_that_is_lost(checkpoint: bool) -> None:
    """The message at QoS 1 is being written when one at QoS 0 comes, whose result is written with it."""
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    publish(node, "t/1", b"1")
    if checkpoint:
        node.checkpoint()
    sensor = node.client("sensor")
    sensor.publish("t/2", b"2", 1, 7)
    sensor.publish("t/3", b"4", 0)
    node.commit()  # the result of t/2 is in the next group, which is never written
    node.crash()
    assert node.client("watcher").payloads() == [b"1.0", b"5.0", b"3.0"]
    node.crash()
    assert node.client("watcher").payloads() == [b"1.0", b"5.0", b"3.0"]  # sent again: nobody acknowledged them


def test_windows_begin_with_the_subscription_after_a_crash_too() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$QUARTERHOURLYSUM/t", 1)
    node.settle()
    node.crash()
    watcher = node.client("watcher")
    publish(node, "t", b"1")
    node.wait(899)
    node.settle()
    assert watcher.payloads() == []
    node.wait(2)
    node.settle()
    assert watcher.payloads() == [b"1.0"]


def test_a_message_that_was_being_written_when_a_window_ended_counts_in_the_next_one() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$QUARTERHOURLYSUM/t", 1)
    node.settle()
    publish(node, "t", b"1")
    node.checkpoint()
    sensor = node.client("sensor")
    node.wait(899.9)
    sensor.publish("t", b"2", 1, 7)
    node.wait(1)
    node.commit()
    node.crash()
    watcher = node.client("watcher")
    node.wait(900)
    node.settle()
    assert watcher.payloads() == [b"1.0", b"2.0"]


def test_a_message_let_pass_after_a_crash_is_whole_and_comes_once() -> None:
    """Two expressions let it pass under one name; its result was not written down."""
    node = SurvivingNode()
    watcher = node.client("watcher", version=5)
    watcher.subscribe("$GT;1/t/+", 1)
    node.settle()
    watcher.subscribe("$GT;1/t/#", 1)
    node.settle()
    sensor = node.client("sensor", version=5)
    unit = b"\x26\x00\x04unit\x00\x01C"
    sensor.feed(0x32, b"\x00\x03t/1\x00\x01" + bytes((len(unit),)) + unit + b"2")
    node.commit()
    node.crash()
    (passed,) = node.client("watcher", version=5).payloads()
    assert unit in passed
    assert passed.endswith(b"2")


def test_an_expression_nobody_wants_any_more_leaves_the_checkpoint() -> None:
    node = SurvivingNode()
    watcher = node.client("watcher")
    watcher.subscribe("$SUM/t/+", 1)
    node.settle()
    node.checkpoint()
    assert "\0$SUM/t/+" in node.disk.sessions
    watcher.unsubscribe("$SUM/t/+")
    node.settle()
    node.checkpoint()
    assert "\0$SUM/t/+" not in node.disk.sessions


def test_a_state_that_cannot_be_read_costs_what_was_remembered_and_not_the_node() -> None:
    node = SurvivingNode()
    node.client("watcher").subscribe("$SUM/t/+", 1)
    publish(node, "t/1", b"1")
    node.checkpoint()
    node.disk.sessions["\0$SUM/t/+"] = b"\x92\x01\xc4\x01x"
    node.crash()
    watcher = node.client("watcher")
    publish(node, "t/2", b"2")
    assert watcher.payloads()[-1] == b"2.0"


def test_windows_that_all_end_at_once_are_ended_over_several_turns() -> None:
    node = LoneNode(Limits(expressions_per_client=1000))
    client, sensor = node.join("c"), node.join("sensor")
    for number in range(500):
        client.subscribe(f"$HOURLYSUM/t/{number}")
        sensor.publish(f"t/{number}", b"%d" % number)
    node.now += 3601
    node.broker.handle_deadlines(node.now)
    assert 0 < node.broker.statistics().expression_results < 500
    node.settle()
    assert sorted(float(payload) for _, payload in results(client)) == [float(number) for number in range(500)]
