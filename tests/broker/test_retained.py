"""Retained messages: the last of every topic, to every new subscription, within the limits, until it expires."""

from __future__ import annotations

import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import (
    RETAIN_AS_PUBLISHED,
    RETAINED_IF_NEW,
    RETAINED_NEVER,
    Connect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from sterna.broker.access.authorization import AccessRule
from sterna.broker.delivery.retained import RETAINED_BYTES, UPDATED_MAX, Retained
from sterna.broker.limits import Limits
from sterna.mqtt.message import Message


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.fixture
def writer(node: LoneNode) -> Client:
    return node.join("writer")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_message_of_each_topic_comes_with_a_new_subscription(node: LoneNode, writer: Client, qos: int) -> None:
    for topic, payload in [("a", b"old"), ("b", b"other"), ("a", b"new")]:
        writer.publish(topic, payload, qos, retain=True)
    reader = node.join("reader")
    reader.subscribe("#", 2)
    found = reader.messages()
    assert sorted((m.topic, m.payload, m.qos, m.retain) for m in found) == [
        ("a", b"new", qos, True),
        ("b", b"other", qos, True),
    ]


def test_an_empty_payload_forgets(node: LoneNode, writer: Client) -> None:
    writer.publish("a", b"x", retain=True)
    writer.publish("a", b"", retain=True)
    reader = node.join("reader")
    reader.subscribe("#")
    assert reader.payloads() == []
    assert (len(node.broker.retained), node.broker.retained.bytes) == (0, 0)


def test_a_live_message_carries_the_flag_only_as_published_and_only_if_asked(node: LoneNode, writer: Client) -> None:
    plain, asking = node.join("plain"), node.join("asking")
    plain.subscribe("a")
    asking.subscribe("a", RETAIN_AS_PUBLISHED)
    writer.publish("a", b"x", retain=True)
    writer.publish("a", b"y")
    assert [m.retain for m in plain.messages()] == [False, False]
    assert [m.retain for m in asking.messages()] == [True, False]


@pytest.mark.parametrize(("options", "first", "again"), [(0, 1, 1), (RETAINED_IF_NEW, 1, 0), (RETAINED_NEVER, 0, 0)])
def test_retain_handling_decides_when_they_are_sent(
    node: LoneNode, writer: Client, options: int, first: int, again: int
) -> None:
    writer.publish("a", b"x", retain=True)
    reader = node.join("reader")
    for expected in (first, again):
        reader.subscribe("a", options)
        assert len(reader.payloads()) == expected


def test_what_the_reader_may_not_read_is_not_sent() -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("a/secret",), "subscribe", "deny", ("reader",)),))
    writer = node.join("writer")
    for topic in ("a/secret", "a/open"):
        writer.publish(topic, topic.encode(), retain=True)
    reader = node.join("reader")
    reader.subscribe("a/#")
    assert reader.payloads() == [b"a/open"]


def test_an_expired_message_is_neither_sent_nor_kept(node: LoneNode, writer: Client) -> None:
    writer.publish("a", b"x", 1, retain=True, message_expiry=10)
    node.pass_time(4)
    early = node.join("early")
    early.subscribe("a", 1)
    (message,) = early.messages()
    assert message.properties == {"message_expiry": 6}
    node.pass_time(6)
    late = node.join("late")
    late.subscribe("a", 1)
    assert late.payloads() == []
    assert (len(node.broker.retained), node.broker.retained.bytes) == (0, 0)


def test_retained_messages_respect_the_window_and_wait(node: LoneNode, writer: Client) -> None:
    for number in range(4):
        writer.publish(f"t/{number}", b"%d" % number, 1, retain=True)
    reader = node.join("reader", receive_maximum=2)
    reader.subscribe("t/#", 1)
    assert reader.payloads() == [b"0", b"1"]
    reader.send(Puback(1), Puback(2))
    node.settle()
    found = reader.messages()
    assert [(m.payload, m.retain) for m in found] == [(b"2", True), (b"3", True)]


def limited(**limits: int) -> tuple[LoneNode, Client]:
    node = LoneNode(Limits(**limits))
    return node, node.join("writer")


def test_more_topics_than_allowed_are_refused_but_known_ones_may_change() -> None:
    node, writer = limited(retained=2)
    assert [writer.publish(topic, b"x", 1, retain=True) & 0x80 for topic in ("a", "b", "c", "a")] == [0, 0, 0x80, 0]
    assert writer.publish("c", b"x", 1, retain=True) == 0x97
    assert writer.publish("b", b"", 1, retain=True) & 0x80 == 0
    assert writer.publish("c", b"x", 1, retain=True) & 0x80 == 0
    assert node.dropped("retained-full") == 2
    assert len(node.broker.retained) == 2


def test_more_bytes_than_allowed_are_refused_and_freed_bytes_count() -> None:
    node, writer = limited(retained_bytes=20 + RETAINED_BYTES + 1)
    assert writer.publish("a", b"x" * 19, 1, retain=True) & 0x80 == 0
    assert writer.publish("b", b"x", 1, retain=True) == 0x97
    assert writer.publish("a", b"x" * 20, 1, retain=True) == 0x97
    assert writer.publish("a", b"x", 1, retain=True) & 0x80 == 0
    assert writer.publish("b", b"x", 1, retain=True) == 0x97  # it would fit, but for what any message takes
    assert node.broker.retained.bytes == 2
    writer.publish("a", b"", 1, retain=True)
    assert writer.publish("b", b"x" * 19, 1, retain=True) & 0x80 == 0


def test_many_at_once_do_not_slip_past_the_limit() -> None:
    node, writer = limited(retained=2)
    writer.send(*(Publish(f"t/{n}", b"x", 1, True, packet_id=n) for n in range(1, 6)))
    node.settle()
    assert len(node.broker.retained) == 2


def test_properties_count_too() -> None:
    node, writer = limited(retained_bytes=40 + RETAINED_BYTES)
    assert writer.publish("a", b"x", 1, retain=True, content_type="y" * 60) == 0x97
    assert node.broker.retained.bytes == 0


def test_a_will_that_does_not_fit_is_dropped_and_counted() -> None:
    node, writer = limited(retained=1)
    writer.publish("a", b"x", retain=True)
    node.join("mortal", will=Will("b", b"x", 1, True)).vanish()
    assert node.dropped("retained-full") == 1
    assert len(node.broker.retained) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("first", ["publish", "subscribe"])
def test_a_message_published_while_its_subscriber_subscribes_comes_once(qos: int, first: str) -> None:
    node = LoneNode()
    writer, reader = node.join("writer"), node.resume("reader")
    # Something waits for the disk, so that the subscription is not confirmed at once.
    node.dial().send(Connect("busy", False, 0, properties={"session_expiry": 9}))
    steps = {
        "publish": lambda: writer.send(Publish("a", b"x", qos, True, packet_id=1)),
        "subscribe": lambda: reader.send(Subscribe(1, [("a", 2)])),
    }
    for step in sorted(steps, key=lambda name: name != first):
        steps[step]()
    node.settle()
    found = reader.received()
    assert sum(isinstance(packet, Suback) for packet in found) == 1
    assert [packet.payload for packet in found if isinstance(packet, Publish)] == [b"x"]


def test_an_old_value_never_comes_after_the_one_that_replaced_it(node: LoneNode, writer: Client) -> None:
    writer.publish("a", b"old", 1, retain=True)
    reader = node.resume("reader")
    writer.send(Publish("a", b"new", 1, True, packet_id=9))
    reader.send(Subscribe(1, [("a", 1)]))
    node.settle()
    payloads = [packet.payload for packet in reader.messages()]
    assert payloads in ([b"old", b"new"], [b"new"])


def test_what_is_remembered_for_those_who_look_through_it_is_bounded() -> None:
    retained = Retained(Limits())
    observer = LoneNode()  # anything that lives on
    moment = retained.moment(observer)
    for number in range(UPDATED_MAX + 10):
        retained.update(Message(b"t/%d" % number, b"x", retain=True, offset=number))
        retained.update(Message(b"t/%d" % number, b"", retain=True, offset=number))
    assert retained.later_than(moment, b"t/%d" % (UPDATED_MAX + 9))
    assert not retained.later_than(moment, b"t/9")
    assert retained.later_than(moment, b"t/10")
