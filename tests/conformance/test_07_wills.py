"""Wills: published when a client is lost, withheld when it says goodbye, delayed when it may come back."""

from __future__ import annotations

import pytest

from .client import Client
from .packets import Disconnect, Publish, Will, frame
from .peer import Broker
from .properties import Properties


def mourner(broker: Broker, topic: str, options: int = 0) -> Client:
    """Someone who waits for a will on this topic."""
    client = broker.join()
    client.subscribe(topic, options)
    return client


def test_a_lost_connection_publishes_the_will(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.1.2-8]"""
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic, b"lost")).drop()
    watcher.expect(Publish(topic, b"lost"))


def test_a_protocol_error_publishes_the_will(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.1.2-8]: the server closing because of the client counts as a loss."""
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic, b"lost")).send(frame(0xF3, b"\0"))
    watcher.expect(Publish(topic, b"lost"))


def test_saying_goodbye_discards_the_will(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.1.2-10], [MQTT-3.14.4-3]"""
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic, b"lost")).leave()
    watcher.expect_nothing()


@pytest.mark.parametrize("code", [0x04, 0x80, 0x83], ids=hex)
def test_disconnect_with_another_code_publishes_the_will(broker: Broker, topic: str, code: int) -> None:
    """[MQTT-3.14.4-3] discards it for 0x00 alone; 0x04 asks for it."""
    watcher = mourner(broker, topic)
    client = broker.join(will=Will(topic, b"wanted"))
    client.send(Disconnect(code))
    watcher.expect(Publish(topic, b"wanted"))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_has_its_own_qos(broker: Broker, version: int, topic: str, qos: int) -> None:
    watcher = mourner(broker, topic, options=2)
    broker.join(version, will=Will(topic, b"lost", qos)).drop()
    watcher.acknowledge(watcher.expect(Publish(topic, b"lost", qos)))


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_when_it_says_so(broker: Broker, version: int, topic: str, retain: bool) -> None:
    """[MQTT-3.1.2-14], [MQTT-3.1.2-15]"""
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic, b"lost", retain=retain)).drop()
    watcher.expect(Publish(topic, b"lost"))
    late = mourner(broker, topic)
    if retain:
        late.expect(Publish(topic, b"lost", retain=True))
    late.expect_nothing()


def test_a_will_may_be_empty(broker: Broker, version: int, topic: str) -> None:
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic)).drop()
    watcher.expect(Publish(topic, b""))


def test_a_will_is_published_once(broker: Broker, version: int, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-10]: after it is published it is gone from the session."""
    watcher = mourner(broker, topic)
    broker.join(version, client_id, will=Will(topic, b"lost")).drop()
    watcher.expect(Publish(topic, b"lost"))
    broker.join(version, client_id).drop()
    broker.join(version, client_id).leave()
    watcher.expect_nothing()


def test_a_will_keeps_its_properties(broker: Broker, topic: str) -> None:
    """Section 3.1.3.2; the delay is not a property of the message."""
    properties: Properties = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "somewhere",
        "correlation_data": b"\x00\x01",
        "user_property": [("a", "1"), ("b", "2"), ("a", "3")],
    }
    watcher = mourner(broker, topic)
    broker.join(will=Will(topic, b"lost", properties={"will_delay": 0, **properties})).drop()
    watcher.expect(Publish(topic, b"lost", properties=properties))


def test_a_delayed_will_waits(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.3-9]: not before the delay, yet after it."""
    watcher = mourner(broker, topic)
    will = Will(topic, b"late", properties={"will_delay": 1})
    client = broker.join(5, client_id, will=will, session_expiry=60)
    client.leave(0x04)
    watcher.expect_nothing()
    watcher.expect(Publish(topic, b"late"))


def test_a_client_that_returns_in_time_has_no_will_published(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.3-9]; a second, later will shows that the first one's time is over."""
    watcher = mourner(broker, topic)
    broker.join(5, client_id, will=Will(topic, b"early", properties={"will_delay": 1}), session_expiry=60).leave(0x04)
    broker.resume(5, client_id)
    broker.join(will=Will(topic, b"late", properties={"will_delay": 2}), session_expiry=60).leave(0x04)
    watcher.expect(Publish(topic, b"late"))


@pytest.mark.parametrize("expiry", [0, 1])
def test_a_delayed_will_does_not_outwait_its_session(broker: Broker, topic: str, expiry: int) -> None:
    """Section 3.1.3.2.2: the delay or the end of the session, whichever comes first."""
    watcher = mourner(broker, topic)
    client = broker.join(will=Will(topic, b"over", properties={"will_delay": 600}), session_expiry=expiry)
    client.drop()
    watcher.expect(Publish(topic, b"over"))


def test_a_clean_start_ends_the_session_and_its_waiting_will(broker: Broker, topic: str, client_id: str) -> None:
    """Section 3.1.3.2.2: the old session ends, so its will is published now."""
    watcher = mourner(broker, topic)
    will = Will(topic, b"over", properties={"will_delay": 600})
    broker.join(5, client_id, will=will, session_expiry=600).leave(0x04)
    broker.join(5, client_id, clean=True)
    watcher.expect(Publish(topic, b"over"))


def test_a_taken_over_client_has_its_will_published(broker: Broker, version: int, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-8], section 3.1.4: the old connection was closed without DISCONNECT from its client."""
    watcher = mourner(broker, topic)
    broker.join(version, client_id, will=Will(topic, b"taken over"))
    broker.join(version, client_id)
    watcher.expect(Publish(topic, b"taken over"))
    watcher.expect_nothing()


def test_a_client_taking_over_its_own_session_keeps_a_delayed_will_back(
    broker: Broker, topic: str, client_id: str
) -> None:
    """Section 3.1.4: Clean Start 0 and a delay above zero: the session goes on, so no will is published."""
    watcher = mourner(broker, topic)
    broker.join(5, client_id, will=Will(topic, b"x", properties={"will_delay": 600}), session_expiry=60)
    assert broker.resume(5, client_id).connack.session_present
    watcher.expect_nothing()


def test_a_will_reaches_absent_subscribers(broker: Broker, version: int, topic: str, client_id: str) -> None:
    absent = broker.resume(version, client_id)
    absent.subscribe(topic, 1)
    absent.leave()
    watcher = mourner(broker, topic)
    broker.join(version, will=Will(topic, b"lost", qos=1)).drop()
    watcher.expect(Publish(topic, b"lost"))
    assert broker.resume(version, client_id).messages(1) == [Publish(topic, b"lost", qos=1)]
