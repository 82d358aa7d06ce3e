"""Retained messages: kept, replaced, cleared, and handed to new subscribers."""

from __future__ import annotations

import pytest

from .packets import Publish
from .peer import Broker


def test_a_new_subscriber_gets_the_retained_message(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.1-5], [MQTT-3.3.1-8] of 3.1.1: marked as retained, also long after its publisher left."""
    publisher = broker.join(version)
    publisher.publish(topic, b"kept", retain=True)
    publisher.leave()
    subscriber = broker.join(version)
    subscriber.subscribe(topic)
    subscriber.expect(Publish(topic, b"kept", retain=True))
    subscriber.expect_nothing()


def test_a_live_message_is_not_marked_as_retained(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.1-9] of 3.1.1, [MQTT-3.3.1-12] of 5.0"""
    client = broker.join(version)
    client.subscribe(topic)
    client.publish(topic, b"live", retain=True)
    client.expect(Publish(topic, b"live", retain=False))


def test_only_the_last_retained_message_is_kept(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    for payload in b"first", b"second", b"third":
        client.publish(topic, payload, qos=1, retain=True)
    client.subscribe(topic)
    client.expect(Publish(topic, b"third", retain=True))
    client.expect_nothing()


def test_an_ordinary_message_leaves_the_retained_one_alone(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.1-12] of 3.1.1, [MQTT-3.3.1-8] of 5.0"""
    client = broker.join(version)
    client.publish(topic, b"kept", retain=True)
    client.publish(topic, b"passing")
    client.publish(topic, b"")
    client.subscribe(topic)
    client.expect(Publish(topic, b"kept", retain=True))


def test_an_empty_retained_message_clears_the_topic(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.1-10], [MQTT-3.3.1-11] of 3.1.1, [MQTT-3.3.1-6], [MQTT-3.3.1-7] of 5.0"""
    client = broker.join(version)
    client.publish(topic, b"kept", retain=True)
    client.publish(topic, b"", retain=True)
    client.subscribe(topic)
    client.expect_nothing()


def test_the_clearing_message_is_delivered_like_any_other(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    client.subscribe(topic)
    client.publish(topic, b"", retain=True)
    client.expect(Publish(topic, b""))


def test_a_wildcard_finds_every_matching_retained_message(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    for tail in "/a", "/b", "/a/deep", "":
        client.publish(topic + tail, b"kept", retain=True, qos=1)
    client.publish(f"{topic}-other", b"no", retain=True)
    client.subscribe(f"{topic}/+")
    assert {message.topic for message in client.messages(2)} == {f"{topic}/a", f"{topic}/b"}
    client.expect_nothing()
    client.subscribe(f"{topic}/#")
    found = client.messages(4)
    assert {message.topic for message in found} == {topic, f"{topic}/a", f"{topic}/b", f"{topic}/a/deep"}
    assert all(message.retain for message in found)
    client.expect_nothing()


@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_retained_message_keeps_its_qos(
    broker: Broker, version: int, topic: str, published: int, subscribed: int
) -> None:
    client = broker.join(version)
    client.publish(topic, b"kept", qos=published, retain=True)
    client.subscribe(topic, subscribed)
    client.acknowledge(client.expect(Publish(topic, b"kept", qos=min(published, subscribed), retain=True)))


def test_subscribing_again_brings_the_retained_message_again(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.8.4-4], [MQTT-3.8.4-3] of 3.1.1"""
    client = broker.join(version)
    client.publish(topic, b"kept", retain=True)
    for _ in range(2):
        client.subscribe(topic)
        client.expect(Publish(topic, b"kept", retain=True))


def test_resuming_a_session_brings_no_retained_messages(
    broker: Broker, version: int, topic: str, client_id: str
) -> None:
    """They answer a SUBSCRIBE, not a CONNECT."""
    client = broker.resume(version, client_id)
    client.subscribe(topic)
    client.leave()
    broker.join(version).publish(f"{topic}/other", b"kept", retain=True)
    broker.join(version).publish(topic, b"kept", retain=True)
    client = broker.resume(version, client_id)
    assert all(not message.retain for message in client.waiting_messages())
    assert client.connack.session_present


def test_retained_messages_cross_versions(broker: Broker, topic: str) -> None:
    broker.join(5).publish(topic, b"kept", retain=True, content_type="text/plain", user_property=[("k", "v")])
    old, new = broker.join(4), broker.join(5)
    old.subscribe(topic)
    old.expect(Publish(topic, b"kept", retain=True))
    new.subscribe(topic)
    new.expect(
        Publish(topic, b"kept", retain=True, properties={"content_type": "text/plain", "user_property": [("k", "v")]})
    )
