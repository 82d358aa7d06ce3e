"""Expressions with a data processing function: numbers come later, in the order of their messages, crash or not."""

from __future__ import annotations

from random import Random

import pytest

from broker.lone_node import Client, LoneNode
from broker.surviving_node import SurvivingNode
from sterna.broker.limits import Limits
from sterna.journal.settings import JournalSettings
from sterna.operators.functions import Functions


def functions() -> Functions:
    found = Functions()
    found.register("COUNTPEOPLE", None, "people")
    found.register("LENGTH", None, "bytes", "how long a payload is")
    return found


@pytest.fixture
def node() -> LoneNode:
    return LoneNode(functions=functions())


def results(client: Client) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in client.messages()]


@pytest.mark.parametrize("spelling", ["COUNTPEOPLE", "CNTPPL"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_number_comes_when_it_is_computed(node: LoneNode, qos: int, spelling: str) -> None:
    client, camera = node.join("c"), node.join("camera")
    assert client.subscribe(f"$MAX${spelling}/camera/+", qos) == qos
    camera.publish("camera/1", b"image", qos)
    assert node.calls[0][:2] == ("COUNTPEOPLE", b"image")
    assert results(client) == []
    node.answer(3.0)
    assert results(client) == [(f"$MAX${spelling}/camera/$A", b"3.0")]


def test_numbers_count_in_the_order_of_their_messages(node: LoneNode) -> None:
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$LENGTH/camera/+", 1)
    for payload in (b"a", b"b"):
        camera.publish("camera/1", payload, 1)
    node.answer(2.0, place=1)
    assert results(client) == []
    node.answer(1.0)
    assert [payload for _, payload in results(client)] == [b"1.0", b"2.0"]


def test_a_message_is_computed_once_for_all_who_want_the_same_of_it(node: LoneNode) -> None:
    one, other, camera = node.join("one"), node.join("other"), node.join("camera")
    one.subscribe("$LENGTH/camera/+")
    other.subscribe("$GT;2$LENGTH/camera/1")
    other.subscribe("$COUNTPEOPLE/camera/1")
    camera.publish("camera/1", b"abc")
    assert sorted(name for name, _, _ in node.calls) == ["COUNTPEOPLE", "LENGTH"]
    for name, value in (("LENGTH", 3.0), ("COUNTPEOPLE", 0.0)):
        node.answer(value, place=[call[0] for call in node.calls].index(name))
    assert results(one) == [("$LENGTH/camera/$A", b"3.0")]
    assert sorted(results(other)) == [("$COUNTPEOPLE/camera/1", b"0.0"), ("$GT;2$LENGTH/camera/1", b"3.0")]


def test_what_fails_is_counted_with_the_reason_and_said_once(node: LoneNode) -> None:
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$SUM$LENGTH/camera/+")
    for value in (None, None, float("nan"), 4.0):
        camera.publish("camera/1", b"x")
        node.answer(value)
    assert [payload for _, payload in results(client)] == [b"4.0"]
    assert node.broker.statistics().expression_values == {"function-failed": 2, "not-a-number": 1}
    assert [event for event, _ in node.reports].count("messages are not computed") == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_what_does_not_fit_waits_and_what_does_not_fit_there_is_counted(qos: int) -> None:
    node = LoneNode(Limits(function_calls=3, function_bytes=2), functions=functions())
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$LENGTH/camera/+", qos)
    for number in range(7):  # two under way, then those that wait
        camera.publish("camera/1", b"%d" % number, qos)
    answers = []
    while node.calls:
        answers.append(node.calls[0][1])
        node.answer(float(node.calls[0][1]))
    waited = 2 if qos == 0 else 3  # two bytes, or three places in the journal
    assert answers == [b"%d" % number for number in range(2 + waited)]
    assert [payload for _, payload in results(client)] == [b"%d.0" % number for number in range(2 + waited)]
    assert node.broker.statistics().expression_values == {"functions-busy": 5 - waited}
    camera.publish("camera/1", b"9", qos)
    node.answer(9.0)
    assert [payload for _, payload in results(client)] == [b"9.0"]


def test_a_window_waits_for_the_numbers_of_its_messages(node: LoneNode) -> None:
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$QUARTERHOURLYSUM$LENGTH/camera/1", 1)
    for payload in (b"a", b"b"):
        camera.publish("camera/1", payload, 1)
    node.answer(1.0)
    node.pass_time(901)
    camera.publish("camera/1", b"c", 1)
    node.pass_time(1)
    assert results(client) == []
    node.answer(10.0)
    assert results(client) == [("$QUARTERHOURLYSUM$LENGTH/camera/1", b"11.0")]
    node.answer(100.0)
    node.pass_time(901)
    assert results(client) == [("$QUARTERHOURLYSUM$LENGTH/camera/1", b"100.0")]
    assert node.broker.statistics().expression_values == {}


def test_the_number_of_a_window_that_is_over_still_belongs_to_it(node: LoneNode) -> None:
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$QUARTERHOURLYSUM$LENGTH/camera/1", 1)
    camera.publish("camera/1", b"a", 1)
    node.pass_time(901)
    node.answer(1.0)
    node.pass_time(0.001)
    assert results(client) == [("$QUARTERHOURLYSUM$LENGTH/camera/1", b"1.0")]


def test_who_has_left_gets_nothing_and_leaves_nothing(node: LoneNode) -> None:
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$LENGTH/camera/+")
    for _ in range(4):
        camera.publish("camera/1", b"x")
    client.unsubscribe("$LENGTH/camera/+")
    while node.calls:
        node.answer(1.0)
    assert results(client) == []
    client.subscribe("$LENGTH/camera/+")
    camera.publish("camera/1", b"y")
    node.answer(2.0)
    assert results(client) == [("$LENGTH/camera/$A", b"2.0")]


def test_capabilities_are_what_the_node_has(node: LoneNode) -> None:
    node.node.sys_tree.update(node.broker.statistics())
    client = node.join("c")
    client.subscribe("$SYS/capabilities")
    (message,) = client.messages()
    assert message.retain
    assert message.payload == (
        b'[{"keyword":"$CNTPPL","desc":"people","returns":"people"},'
        b'{"keyword":"$COUNTPEOPLE","desc":"people","returns":"people"},'
        b'{"keyword":"$LENGTH","desc":"how long a payload is","returns":"bytes"}]'
    )
    assert client.subscribe("$COUNTMALE/camera") == 0x8F
    assert b"plug one in: [[functions.own]] with name = " in bytes(client.wire.written)


def test_a_message_that_retention_took_while_it_waited_is_counted() -> None:
    settings = JournalSettings(durability="os", segment_bytes=64 * 1024, retention_bytes=128 * 1024)
    node = LoneNode(functions=functions(), settings=settings)
    client, camera = node.join("c"), node.join("camera")
    client.subscribe("$LENGTH/camera/+")
    dice = Random(1)
    for _ in range(60):
        camera.publish("camera/1", dice.randbytes(30_000), 1)
    node.node.checkpointed(node.node.changes())
    while node.node.tidy():
        node.settle()
    kept = node.broker.journal.next_offset - max(2, node.broker.journal.first_offset)  # two were under way at once
    answered = 0
    while node.calls:
        node.answer(1.0)
        answered += 1
    assert 0 < kept < 58
    assert answered == 2 + kept == len(results(client))
    assert node.broker.statistics().expression_values == {"retention": 58 - kept}


# -- coming back --


def watched() -> SurvivingNode:
    node = SurvivingNode(functions=functions())
    node.client("watcher").subscribe("$SUM$LENGTH/t/+", 1)
    node.settle()
    return node


def publish(node: SurvivingNode, payload: bytes, packet_id: int) -> None:
    node.client("sensor").publish(f"t/{packet_id}", payload, 1, packet_id)
    node.settle()


@pytest.mark.parametrize("checkpoint", [0, 1, 2, 3])
def test_what_was_not_computed_before_a_crash_is_computed_after_it(checkpoint: int) -> None:
    node = watched()
    for packet_id, payload in ((1, b"a"), (2, b"bb"), (3, b"cccc")):
        publish(node, payload, packet_id)
        if checkpoint == packet_id:
            node.checkpoint()
    node.answer(1.0)
    node.settle()
    node.crash()
    watcher = node.client("watcher")
    assert [payload for payload, _ in node.calls] == [b"bb", b"cccc"]
    node.answer(2.0)
    node.answer(4.0)
    node.settle()
    assert watcher.payloads() == [b"1.0", b"3.0", b"7.0"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_number_and_its_result_outlive_a_crash_together_or_not_at_all(checkpoint: bool) -> None:
    node = watched()
    publish(node, b"a", 1)
    if checkpoint:
        node.checkpoint()
    node.answer(1.0)  # in a group that is never written
    node.crash()
    watcher = node.client("watcher")
    node.answer(5.0)  # whatever it was before: nobody has heard of it
    node.settle()
    assert watcher.payloads() == [b"5.0"]
    node.crash()
    assert node.calls == []
    publish(node, b"b", 2)
    node.answer(2.0)
    node.settle()
    # The first one again (it was never acknowledged), then the next.
    assert node.client("watcher").payloads() == [b"5.0", b"7.0"]


def test_a_failure_is_remembered_too() -> None:
    node = watched()
    publish(node, b"a", 1)
    node.answer(None)
    node.settle()
    node.crash()
    assert node.calls == []


def test_results_made_of_qos_0_do_not_stand_in_for_later_ones() -> None:
    node = watched()
    for number in range(3):
        node.client("sensor").publish("t/1", b"x", 0)
        node.answer(float(number))
        node.settle()
    node.crash()
    watcher = node.client("watcher")
    publish(node, b"b", 2)
    node.answer(9.0)
    node.settle()
    assert watcher.payloads() == [b"0.0", b"1.0", b"2.0", b"9.0"]


def test_an_expression_whose_function_is_gone_costs_no_node() -> None:
    node = watched()
    publish(node, b"a", 1)
    node.checkpoint()
    node._functions = Functions()
    node.crash()
    publish(node, b"b", 2)
    assert node.broker.statistics().expression_values == {"no-function": 2}
    node._functions = functions()
    node.crash()
    watcher = node.client("watcher")
    publish(node, b"c", 3)
    node.answer(3.0)
    node.settle()
    assert watcher.payloads() == [b"3.0"]
