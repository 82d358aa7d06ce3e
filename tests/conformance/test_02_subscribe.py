"""SUBSCRIBE and UNSUBSCRIBE: what is granted, what replaces what, and what ends."""

from __future__ import annotations

import pytest

from .packets import Publish, Suback, Subscribe, Unsuback, Unsubscribe
from .peer import Broker


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("packet_id", [1, 65535])
def test_suback_carries_the_packet_id_and_the_granted_qos(
    broker: Broker, version: int, topic: str, qos: int, packet_id: int
) -> None:
    """[MQTT-3.8.4-2], [MQTT-3.8.4-7]"""
    client = broker.join(version)
    client.send(Subscribe(packet_id, [(topic, qos)]))
    client.expect(Suback(packet_id, [qos]))


def test_suback_answers_each_filter_in_order(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.8.4-6], [MQTT-3.9.3-1]"""
    client = broker.join(version)
    client.send(Subscribe(9, [(f"{topic}/c", 2), (f"{topic}/a", 0), (f"{topic}/b", 1), (f"{topic}/a/#", 2)]))
    client.expect(Suback(9, [2, 0, 1, 2]))


def test_one_subscribe_may_carry_many_filters(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    client.send(Subscribe(1, [(f"{topic}/{number}", number % 3) for number in range(200)]))
    client.expect(Suback(1, [number % 3 for number in range(200)]))
    client.publish(f"{topic}/199", b"last")
    client.expect(Publish(f"{topic}/199", b"last"))


def test_subscribing_again_replaces_the_subscription(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.8.4-3]: one message, at the new QoS."""
    client, publisher = broker.join(version), broker.join(version)
    assert [client.subscribe(topic, qos) for qos in (2, 0, 1)] == [2, 0, 1]
    publisher.publish(topic, b"once", qos=2)
    client.acknowledge(client.expect(Publish(topic, b"once", qos=1)))
    client.expect_nothing()


def test_unsubscribing_ends_delivery(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.10.4-2]"""
    client, publisher = broker.join(version), broker.join(version)
    client.subscribe(topic)
    publisher.publish(topic, b"before")
    client.expect(Publish(topic, b"before"))
    client.send(Unsubscribe(77, [topic]))
    client.expect(Unsuback(77, [0] if version == 5 else []))
    publisher.publish(topic, b"after")
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribing_lets_a_delivery_in_progress_finish(
    broker: Broker, version: int, client_id: str, topic: str, qos: int
) -> None:
    """[MQTT-3.10.4-3]: also in the next connection."""
    client = broker.resume(version, client_id)
    client.subscribe(topic, qos)
    broker.join(version).publish(topic, b"begun", qos=qos)
    client.expect(Publish(topic, b"begun", qos=qos))
    client.unsubscribe(topic)
    client.drop()
    client = broker.resume(version, client_id)
    client.acknowledge(client.expect(Publish(topic, b"begun", qos=qos, dup=True)))
    client.expect_nothing()


def test_unsubscribing_from_nothing_is_acknowledged(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.10.4-5]; in 5.0 with 0x11, no subscription existed."""
    client = broker.join(version)
    client.send(Unsubscribe(5, [topic]))
    client.expect(Unsuback(5, [0x11] if version == 5 else []))


def test_one_unsubscribe_may_carry_many_filters(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.10.4-6], [MQTT-3.11.3-1]: as if sent one by one, answered in order."""
    client = broker.join(version)
    client.send(Subscribe(1, [(f"{topic}/a", 0), (f"{topic}/b", 0)]))
    client.expect(Suback(1, [0, 0]))
    client.send(Unsubscribe(2, [f"{topic}/a", f"{topic}/never", f"{topic}/b"]))
    client.expect(Unsuback(2, [0, 0x11, 0] if version == 5 else []))
    for leaf in "ab":
        client.publish(f"{topic}/{leaf}")
    client.expect_nothing()


def test_unsubscribing_compares_filters_letter_by_letter(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.10.4-1]: a wildcard in UNSUBSCRIBE removes only the same wildcard."""
    client = broker.join(version)
    client.subscribe(f"{topic}/a")
    for other in f"{topic}/+", f"{topic}/#", f"{topic}/A", f"{topic}/a/":
        client.unsubscribe(other)
    client.publish(f"{topic}/a", b"still here")
    client.expect(Publish(f"{topic}/a", b"still here"))


def test_each_subscriber_is_served_at_its_own_qos(broker: Broker, version: int, topic: str) -> None:
    subscribers = [broker.join(version) for _ in range(3)]
    for qos, subscriber in enumerate(subscribers):
        subscriber.subscribe(topic, qos)
    broker.join(version).publish(topic, b"all", qos=2)
    for qos, subscriber in enumerate(subscribers):
        subscriber.acknowledge(subscriber.expect(Publish(topic, b"all", qos=qos)))


def test_a_subscription_is_not_shared_between_clients(broker: Broker, version: int, topic: str) -> None:
    """One client's UNSUBSCRIBE leaves another's subscription alone."""
    staying, leaving = broker.join(version), broker.join(version)
    staying.subscribe(topic)
    leaving.subscribe(topic)
    leaving.unsubscribe(topic)
    leaving.publish(topic, b"x")
    staying.expect(Publish(topic, b"x"))
    leaving.expect_nothing()


@pytest.mark.parametrize(("publishing", "subscribing"), [(4, 5), (5, 4)])
def test_the_two_versions_talk_to_each_other(broker: Broker, topic: str, publishing: int, subscribing: int) -> None:
    subscriber, publisher = broker.join(subscribing), broker.join(publishing)
    subscriber.subscribe(topic, 2)
    for qos in range(3):
        publisher.publish(topic, b"across", qos=qos)
        subscriber.acknowledge(subscriber.expect(Publish(topic, b"across", qos=qos)))
