"""No Local, Retain As Published, Retain Handling, subscription identifiers, overlapping subscriptions."""

from __future__ import annotations

import pytest

from .packets import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAINED_IF_NEW, RETAINED_NEVER, Publish, Suback, Subscribe
from .peer import Broker


def test_no_local_spares_a_client_its_own_messages(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.3-3]"""
    client, other = broker.join(), broker.join()
    client.subscribe(topic, NO_LOCAL | 1)
    client.publish(topic, b"mine", qos=1)
    other.publish(topic, b"theirs", qos=1)
    client.expect(Publish(topic, b"theirs", qos=1))
    client.expect_nothing()


def test_no_local_holds_for_its_own_subscription_alone(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.subscribe(f"{topic}/quiet", NO_LOCAL)
    client.subscribe(f"{topic}/loud")
    client.publish(f"{topic}/quiet", b"x")
    client.publish(f"{topic}/loud", b"x")
    client.expect(Publish(f"{topic}/loud", b"x"))
    client.expect_nothing()


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("option", [0, RETAIN_AS_PUBLISHED])
def test_retain_as_published_keeps_the_flag(broker: Broker, topic: str, option: int, retain: bool) -> None:
    """[MQTT-3.3.1-12], [MQTT-3.3.1-13]"""
    client = broker.join()
    client.subscribe(topic, option)
    client.publish(topic, b"x", retain=retain)
    client.expect(Publish(topic, b"x", retain=retain and option == RETAIN_AS_PUBLISHED))


def test_retain_as_published_is_each_subscribers_own(broker: Broker, topic: str) -> None:
    keeping, clearing = broker.join(), broker.join()
    keeping.subscribe(topic, RETAIN_AS_PUBLISHED)
    clearing.subscribe(topic)
    broker.join().publish(topic, b"x", retain=True)
    keeping.expect(Publish(topic, b"x", retain=True))
    clearing.expect(Publish(topic, b"x", retain=False))


@pytest.mark.parametrize(
    ("handling", "first", "again"),
    [(0, True, True), (RETAINED_IF_NEW, True, False), (RETAINED_NEVER, False, False)],
    ids=["always", "if new", "never"],
)
def test_retain_handling_says_when_retained_messages_come(
    broker: Broker, topic: str, handling: int, first: bool, again: bool
) -> None:
    """[MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]"""
    client = broker.join()
    client.publish(topic, b"kept", retain=True)
    for expected in first, again:
        client.subscribe(topic, handling)
        assert client.waiting_messages() == [Publish(topic, b"kept", retain=True)] * expected


def test_a_subscription_is_new_again_after_unsubscribing(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.publish(topic, b"kept", retain=True)
    for _ in range(2):
        client.subscribe(topic, RETAINED_IF_NEW)
        client.expect(Publish(topic, b"kept", retain=True))
        client.unsubscribe(topic)


@pytest.mark.parametrize("identifier", [1, 127, 128, 16_384, 268_435_455])
def test_a_message_carries_the_identifier_of_its_subscription(broker: Broker, topic: str, identifier: int) -> None:
    """[MQTT-3.3.4-3]"""
    client = broker.join()
    client.subscribe(topic, subscription_id=[identifier])
    client.publish(topic, b"x")
    client.expect(Publish(topic, b"x", properties={"subscription_id": [identifier]}))


def test_retained_messages_carry_the_identifier_too(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.publish(topic, b"kept", retain=True)
    client.subscribe(topic, subscription_id=[7])
    client.expect(Publish(topic, b"kept", retain=True, properties={"subscription_id": [7]}))


def test_one_identifier_serves_every_filter_of_its_packet(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.send(Subscribe(1, [(f"{topic}/a", 0), (f"{topic}/b", 0)], {"subscription_id": [9]}))
    client.expect(Suback(1, [0, 0]))
    for leaf in "ab":
        client.publish(f"{topic}/{leaf}")
        client.expect(Publish(f"{topic}/{leaf}", properties={"subscription_id": [9]}))


def test_subscribing_again_replaces_or_removes_the_identifier(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-3]"""
    client = broker.join()
    client.subscribe(topic, subscription_id=[1])
    client.subscribe(topic, subscription_id=[2])
    client.publish(topic, b"x")
    client.expect(Publish(topic, b"x", properties={"subscription_id": [2]}))
    client.subscribe(topic)
    client.publish(topic, b"y")
    client.expect(Publish(topic, b"y"))


def test_each_subscriber_sees_its_own_identifier(broker: Broker, topic: str) -> None:
    clients = [broker.join() for _ in range(3)]
    for number, client in enumerate(clients, start=1):
        client.subscribe(topic, subscription_id=[number])
    broker.join().publish(topic, b"x")
    for number, client in enumerate(clients, start=1):
        client.expect(Publish(topic, b"x", properties={"subscription_id": [number]}))


def test_overlapping_subscriptions_give_the_highest_qos(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.5-1] of 3.1.1, [MQTT-3.3.4-2] of 5.0"""
    client, publisher = broker.join(version), broker.join(version)
    for topic_filter, qos in (f"{topic}/#", 0), (topic, 1), ("+/" + topic.split("/")[1], 0):
        client.subscribe(topic_filter, qos)
    publisher.publish(topic, b"x", qos=2)
    assert max(message.qos for message in client.waiting_messages()) == 1


def test_overlapping_subscriptions_are_served_once(broker: Broker, version: int, topic: str) -> None:
    """The standard allows a copy for each; one is kinder."""
    client = broker.join(version)
    for topic_filter in f"{topic}/#", f"{topic}/a", f"{topic}/+":
        client.subscribe(topic_filter)
    client.publish(f"{topic}/a", b"x")
    client.expect(Publish(f"{topic}/a", b"x"))
    client.expect_nothing()


def test_overlapping_subscriptions_name_all_their_identifiers(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-4], [MQTT-3.3.4-5]: in one copy or in several; a subscription without one adds none."""
    client = broker.join()
    client.subscribe(f"{topic}/#", subscription_id=[11])
    client.subscribe(f"{topic}/+", subscription_id=[22])
    client.subscribe(f"{topic}/a")
    client.publish(f"{topic}/a", b"x")
    found = client.waiting_messages()
    identifiers = [number for message in found for number in message.properties.get("subscription_id", [])]
    assert sorted(identifiers) == [11, 22]


def test_no_local_does_not_silence_an_overlapping_subscription(broker: Broker, topic: str) -> None:
    """Each subscription's options hold for that subscription."""
    client = broker.join()
    client.subscribe(f"{topic}/#", NO_LOCAL, subscription_id=[1])
    client.subscribe(f"{topic}/a", 0, subscription_id=[2])
    client.publish(f"{topic}/a", b"x")
    client.expect(Publish(f"{topic}/a", b"x", properties={"subscription_id": [2]}))
    client.expect_nothing()
