"""Shared subscriptions: each message to one member of the group, and what happens when a member is lost."""

from __future__ import annotations

from itertools import chain

import pytest

from .client import Client
from .packets import NO_LOCAL, Pingreq, Puback, Publish, Pubrec, Subscribe
from .peer import Broker


def members(broker: Broker, topic_filter: str, count: int, qos: int = 0) -> list[Client]:
    clients = [broker.join() for _ in range(count)]
    for client in clients:
        assert client.subscribe(topic_filter, qos) == qos
    return clients


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_all_get_their_share(broker: Broker, topic: str, qos: int) -> None:
    group = members(broker, f"$share/group/{topic}", 3, qos)
    publisher = broker.join()
    for number in range(30):
        publisher.publish(topic, b"%02d" % number, qos=qos)
    shares = [[message.payload for message in member.waiting_messages()] for member in group]
    assert sorted(chain.from_iterable(shares)) == [b"%02d" % number for number in range(30)]
    assert min(map(len, shares)) >= 5


def test_each_group_and_each_plain_subscriber_gets_a_copy(broker: Broker, topic: str) -> None:
    """Section 4.8.2"""
    first = members(broker, f"$share/first/{topic}", 2)
    second = members(broker, f"$share/second/{topic}", 2)
    (plain,) = members(broker, topic, 1)
    broker.join().publish(topic, b"x")
    for group in first, second, [plain]:
        assert sum(len(member.waiting_messages()) for member in group) == 1


def test_one_client_may_hold_a_plain_and_a_shared_subscription(broker: Broker, topic: str) -> None:
    """Section 4.8.2: they are different subscriptions, told apart by their identifiers."""
    client = broker.join()
    client.subscribe(topic, subscription_id=[1])
    client.subscribe(f"$share/group/{topic}", subscription_id=[2])
    client.publish(topic, b"x")
    found = client.waiting_messages()
    assert sorted(number for message in found for number in message.properties["subscription_id"]) == [1, 2]


@pytest.mark.parametrize("tail", ["+", "#", "+/b", "a/#"])
def test_a_shared_filter_may_have_wildcards(broker: Broker, topic: str, tail: str) -> None:
    group = members(broker, f"$share/group/{topic}/{tail}", 2)
    publisher = broker.join()
    for leaf in "a", "a/b", "c":
        publisher.publish(f"{topic}/{leaf}", b"x")
    expected = {"+": ["a", "c"], "#": ["a", "a/b", "c"], "+/b": ["a/b"], "a/#": ["a", "a/b"]}[tail]
    found = [message.topic for member in group for message in member.waiting_messages()]
    assert sorted(found) == [f"{topic}/{leaf}" for leaf in expected]


def test_groups_with_the_same_name_and_different_filters_are_apart(broker: Broker, topic: str) -> None:
    (narrow,) = members(broker, f"$share/group/{topic}/a", 1)
    (wide,) = members(broker, f"$share/group/{topic}/+", 1)
    broker.join().publish(f"{topic}/a", b"x")
    narrow.expect(Publish(f"{topic}/a", b"x"))
    wide.expect(Publish(f"{topic}/a", b"x"))


def test_a_member_that_leaves_or_unsubscribes_is_not_missed(broker: Broker, topic: str) -> None:
    staying, unsubscribing, leaving = members(broker, f"$share/group/{topic}", 3)
    unsubscribing.unsubscribe(f"$share/group/{topic}")
    leaving.leave()
    publisher = broker.join()
    for _ in range(6):
        publisher.publish(topic, b"x")
    assert len(staying.waiting_messages()) == 6
    unsubscribing.expect_nothing()


def test_retained_messages_are_not_sent_to_a_group(broker: Broker, topic: str) -> None:
    """Section 4.8.2, section 3.8.4"""
    broker.join().publish(topic, b"kept", retain=True)
    (member,) = members(broker, f"$share/group/{topic}", 1)
    member.expect_nothing()


def test_no_local_on_a_shared_subscription_is_a_protocol_error(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.3-4]"""
    client = broker.join()
    client.send(Subscribe(1, [(f"$share/group/{topic}", NO_LOCAL)]), Pingreq())
    client.expect_close(0x82)


def test_publishing_to_a_name_like_a_share_is_not_sharing(broker: Broker, topic: str) -> None:
    """`$share/...` is special in a filter only."""
    group = members(broker, f"$share/group/{topic}", 2)
    broker.join().publish(f"$share/group/{topic}", b"x")
    for member in group:
        member.expect_nothing()


def test_messages_wait_while_the_whole_group_is_away(broker: Broker, topic: str, client_id: str) -> None:
    member = broker.resume(5, client_id)
    member.subscribe(f"$share/group/{topic}", 1)
    member.leave()
    publisher = broker.join()
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=1)
    found = broker.resume(5, client_id).messages(3)
    assert [message.payload for message in found] == [b"0", b"1", b"2"]


def test_an_unacknowledged_qos_1_message_of_a_dead_member_goes_to_another(broker: Broker, topic: str) -> None:
    """Section 4.8.2: when the session ends, the server SHOULD send it to another member."""
    dying, staying = members(broker, f"$share/group/{topic}", 2, qos=1)
    publisher = broker.join()
    for number in range(6):
        publisher.publish(topic, b"%d" % number, qos=1)
    unanswered = dying.waiting_messages(acknowledged=False)
    answered = staying.waiting_messages()
    assert unanswered
    dying.drop()
    inherited = staying.messages(len(unanswered))
    assert sorted(message.payload for message in answered + inherited) == [b"%d" % number for number in range(6)]


def test_a_qos_2_message_of_a_dead_member_goes_to_nobody_else(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-5]: it might have been received already."""
    dying, staying = members(broker, f"$share/group/{topic}", 2, qos=2)
    publisher = broker.join()
    for number in range(6):
        publisher.publish(topic, b"%d" % number, qos=2)
    assert dying.waiting_messages(acknowledged=False)
    assert staying.waiting_messages()
    dying.leave()
    staying.expect_nothing()


def test_a_qos_2_message_waits_for_its_member_to_return(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.8.2-4]"""
    member = broker.resume(5, client_id)
    member.subscribe(f"$share/group/{topic}", 2)
    broker.join().publish(topic, b"x", qos=2)
    begun = member.expect(Publish(topic, b"x", qos=2))
    (other,) = members(broker, f"$share/group/{topic}", 1, qos=2)
    member.leave()
    other.expect_nothing()
    member = broker.resume(5, client_id)
    again = member.expect(Publish(topic, b"x", qos=2, dup=True))
    assert again.packet_id == begun.packet_id


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_a_member_refuses_goes_to_nobody_else(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.8.2-6]"""
    group = members(broker, f"$share/group/{topic}", 2, qos)
    broker.join().publish(topic, b"x", qos=qos)
    for member in group:
        for message in member.waiting_messages(acknowledged=False):
            member.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x83))
        member.expect_nothing()
    for member in group:
        member.expect_nothing()
