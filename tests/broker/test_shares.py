"""Shared subscriptions: one member gets each message, members take turns, and a lost member's messages go on."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import NO_LOCAL, Puback, Pubrec, Subscribe
from sterna.broker.access.authorization import AccessRule

SHARE = "$share/g/t/#"


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


def members(node: LoneNode, count: int, qos: int = 1) -> list[Client]:
    found = [node.join(f"member {number}", receive_maximum=2) for number in range(count)]
    for member in found:
        assert member.subscribe(SHARE, qos) == qos
    return found


def publish(node: LoneNode, count: int, qos: int = 1) -> list[bytes]:
    writer = node.join("writer")
    payloads = [b"%d" % number for number in range(count)]
    for payload in payloads:
        writer.publish("t/x", payload, qos)
    return payloads


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_all_take_turns(node: LoneNode, qos: int) -> None:
    group = members(node, 3, qos)
    payloads = publish(node, 6, qos)
    received = [member.payloads() for member in group]
    assert Counter(payload for each in received for payload in each) == Counter(payloads)
    assert [len(each) for each in received] == [2, 2, 2]


def test_every_group_and_every_plain_subscription_gets_its_own(node: LoneNode) -> None:
    readers = [node.join(f"reader {number}") for number in range(3)]
    for reader, topic_filter in zip(readers, ["$share/g/t/#", "$share/h/t/#", "t/#"], strict=True):
        reader.subscribe(topic_filter, 1)
    payloads = publish(node, 2)
    assert [reader.payloads() for reader in readers] == [payloads] * 3


@pytest.mark.parametrize("qos", [0, 1])
def test_a_member_that_does_not_keep_up_is_skipped(node: LoneNode, qos: int) -> None:
    slow, quick = members(node, 2, qos)
    slow.connection.congested()
    payloads = publish(node, 2, qos)
    assert slow.payloads() == []
    assert quick.payloads() == payloads


def test_a_member_whose_window_is_full_is_skipped_and_what_nobody_takes_waits(node: LoneNode) -> None:
    one, two = members(node, 2)
    payloads = publish(node, 7)
    assert (one.payloads(), two.payloads()) == ([b"0", b"2"], [b"1", b"3"])
    one.send(Puback(1))
    node.settle()
    assert one.payloads() == [b"4"]
    two.send(Puback(1), Puback(2))
    node.settle()
    assert two.payloads() == payloads[5:]


def test_at_qos_0_nothing_waits_for_a_member_and_the_loss_is_counted(node: LoneNode) -> None:
    (member,) = members(node, 1, 0)
    member.connection.congested()
    publish(node, 3, 0)
    member.connection.writable()
    node.settle()
    assert member.payloads() == []
    assert node.dropped("no-member-ready") == 3


def test_what_a_lost_member_had_not_acknowledged_at_qos_1_goes_to_another_in_order(node: LoneNode) -> None:
    lost, other = members(node, 2)
    publish(node, 6)
    assert lost.payloads() == [b"0", b"2"]
    assert other.payloads() == [b"1", b"3"]
    lost.vanish()
    other.send(Puback(1), Puback(2))
    node.settle()
    assert other.payloads() == [b"0", b"2"]
    other.send(Puback(3), Puback(4))
    node.settle()
    assert other.payloads() == [b"4", b"5"]


def test_what_the_last_member_had_not_acknowledged_waits_for_its_return(node: LoneNode) -> None:
    member = node.resume("member")
    member.subscribe(SHARE, 1)
    payloads = publish(node, 2)
    assert member.payloads() == payloads
    member.vanish()
    again = node.resume("member")
    assert again.payloads() == payloads


def test_a_qos_2_message_begun_with_one_member_is_never_given_to_another(node: LoneNode) -> None:
    lost = node.resume("lost")
    lost.subscribe(SHARE, 2)
    payloads = publish(node, 2, 2)
    assert lost.payloads() == payloads
    lost.send(Pubrec(1))
    lost.vanish()
    other = node.join("other")
    other.subscribe(SHARE, 2)
    assert other.payloads() == []
    again = node.resume("lost")
    assert [packet.payload for packet in again.messages()] == [b"1"]


def test_a_member_that_left_the_group_gets_no_more(node: LoneNode) -> None:
    leaving, staying = members(node, 2)
    leaving.unsubscribe(SHARE)
    payloads = publish(node, 2)
    assert leaving.payloads() == []
    assert staying.payloads() == payloads


def test_a_group_without_members_is_forgotten_with_what_waited(node: LoneNode) -> None:
    (member,) = members(node, 1)
    publish(node, 5)
    member.vanish()
    assert node.broker.routes.shares() == []
    assert node.broker.routes.size == 0
    late = node.join("late")
    late.subscribe(SHARE, 1)
    assert late.payloads() == []


def test_members_keep_their_own_qos(node: LoneNode) -> None:
    low, high = node.join("low"), node.join("high")
    low.subscribe(SHARE, 0)
    high.subscribe(SHARE, 2)
    publish(node, 2, 2)
    assert [(message.payload, message.qos) for message in low.messages()] == [(b"0", 0)]
    assert [(message.payload, message.qos) for message in high.messages()] == [(b"1", 2)]


def test_only_members_that_may_read_a_topic_get_it_at_once_or_later() -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("t/#",), "subscribe", "deny", ("barred",)),))
    barred, free = node.join("barred"), node.join("free", receive_maximum=1)
    assert barred.subscribe("$share/g/#", 1) == 1
    assert free.subscribe("$share/g/#", 1) == 1
    payloads = publish(node, 3)
    assert free.payloads() == payloads[:1]
    # Messages for the free member must not be lost because the barred one has something to do.
    free.connection.congested()
    node.broker.delivery.pump(node.session("barred"))
    free.connection.writable()
    for packet_id, payload in enumerate(payloads[1:], 1):
        free.send(Puback(packet_id))
        node.settle()
        assert free.payloads() == [payload]
    assert node.dropped("not-authorized") == 0


def test_what_no_member_may_read_does_not_block_the_others() -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("t/secret",), "subscribe", "deny", ("member",)),))
    member = node.join("member", receive_maximum=1)
    member.subscribe("$share/g/t/#", 1)
    writer = node.join("writer")
    for topic in ("t/1", "t/secret", "t/2"):
        writer.publish(topic, topic.encode(), 1)
    assert member.payloads() == [b"t/1"]
    member.send(Puback(1))
    node.settle()
    assert member.payloads() == [b"t/2"]
    assert node.dropped("not-authorized") == 1


def test_no_local_on_a_share_is_a_protocol_error(node: LoneNode) -> None:
    client = node.join("client")
    client.send(Subscribe(1, [(SHARE, 1 | NO_LOCAL)]))
    assert client.farewell() == 0x82


def test_a_share_never_gets_retained_messages(node: LoneNode) -> None:
    node.join("writer").publish("t/x", b"kept", 1, retain=True)
    (member,) = members(node, 1)
    assert member.payloads() == []


def test_what_was_taken_back_from_a_member_that_stays_counts_until_it_is_acknowledged(node: LoneNode) -> None:
    """A move that is given up: the session was frozen, what it had of the share went back, and it goes on."""
    (member,) = members(node, 1)
    publish(node, 3)
    assert member.payloads() == [b"0", b"1"]
    session = node.session("member 0")
    node.broker.delivery.disconnected(session)
    node.settle()
    assert member.payloads() == [], "two are before the client's eyes, and it takes no more"
    member.send(Puback(1))
    node.settle()
    (again,) = member.messages()
    assert (again.payload, again.packet_id) == (b"0", 3)
    member.send(Puback(2), Puback(3))
    node.settle()
    assert member.payloads() == [b"1", b"2"]
