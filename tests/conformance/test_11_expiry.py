"""Message Expiry Interval and Session Expiry Interval.

Only time itself can show that something expired: these tests let a second or two pass.
"""

from __future__ import annotations

import time

import pytest

from .packets import Publish
from .peer import Broker


def let_pass(seconds: float) -> None:
    """Nothing to wait for: whatever would tell us that the time is over would also end the wait for the broker."""
    time.sleep(seconds)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_says_how_long_it_is_still_good(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.3.2-6]"""
    client = broker.join()
    client.subscribe(topic, qos)
    client.publish(topic, b"x", qos=qos, message_expiry=3600)
    (message,) = client.messages(1)
    assert 3000 <= message.properties["message_expiry"] <= 3600


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_is_still_good_does_not_say_it_has_expired(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.3.2-6]: what is left of a second is a second, or whoever passes it on would drop it."""
    client = broker.join()
    client.subscribe(topic, qos)
    said: list[int] = []
    while len(said) < 3:  # one that takes a second on a busy machine is rightly not delivered
        client.publish(topic, b"x", qos=qos, message_expiry=1)
        said += [message.properties["message_expiry"] for message in client.waiting_messages()]
    assert said == [1] * len(said)


def test_what_expired_while_waiting_is_not_delivered(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6]: queued or retained; what is left arrives with what is left of its time."""
    absent = broker.resume(5, client_id)
    absent.subscribe(f"{topic}/queued", 1)
    absent.leave()
    publisher = broker.join()
    for leaf, retain in ("queued", False), ("kept", True), ("kept too", True):
        expiry = 1000 if leaf == "kept too" else 1
        publisher.publish(f"{topic}/{leaf}", b"short", qos=1, retain=retain, message_expiry=expiry)
    publisher.publish(f"{topic}/queued", b"long", qos=1, message_expiry=1000)
    publisher.publish(f"{topic}/queued", b"for ever", qos=1)
    let_pass(2.2)
    long, forever = broker.resume(5, client_id).messages(2)
    assert (long.payload, forever.payload) == (b"long", b"for ever")
    assert 900 <= long.properties["message_expiry"] <= 998
    assert "message_expiry" not in forever.properties
    publisher.subscribe(f"{topic}/+", 1)
    (kept,) = publisher.waiting_messages()
    assert kept.topic == f"{topic}/kept too"
    assert 900 <= kept.properties["message_expiry"] <= 998


def test_an_old_client_is_spared_expired_messages_too(broker: Broker, topic: str, client_id: str) -> None:
    absent = broker.resume(4, client_id)
    absent.subscribe(topic, 1)
    absent.leave()
    publisher = broker.join()
    publisher.publish(topic, b"short", qos=1, message_expiry=1)
    publisher.publish(topic, b"long", qos=1, message_expiry=100)
    let_pass(2.2)
    assert broker.resume(4, client_id).messages(1) == [Publish(topic, b"long", qos=1)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_once_sent_does_not_expire(broker: Broker, topic: str, client_id: str, qos: int) -> None:
    """[MQTT-4.3.3-7], [MQTT-4.4.0-1]: its delivery has begun, and is finished after reconnecting."""
    subscriber = broker.resume(5, client_id)
    subscriber.subscribe(topic, qos)
    broker.join().publish(topic, b"begun", qos=qos, message_expiry=1)
    begun = subscriber.wait_for(Publish)
    subscriber.leave()
    let_pass(2.2)
    again = broker.resume(5, client_id).wait_for(Publish)
    assert (again.dup, again.packet_id, again.payload) == (True, begun.packet_id, b"begun")


def test_sessions_end_when_their_time_is_over(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.2-23], [MQTT-4.1.0-2]: counted from the end of the connection.

    DISCONNECT may change it; 0xFFFFFFFF is for ever.
    """
    broker.join(5, f"{client_id}-short", session_expiry=1).leave()
    broker.join(5, f"{client_id}-shortened", session_expiry=100).leave(session_expiry=1)
    broker.join(5, f"{client_id}-lengthened", session_expiry=1).leave(session_expiry=100)
    broker.join(5, f"{client_id}-forever", session_expiry=0xFFFFFFFF).leave()
    connected = broker.join(5, f"{client_id}-connected", session_expiry=1)
    let_pass(2.5)
    connected.leave()
    fates = {
        name: broker.resume(5, f"{client_id}-{name}").connack.session_present
        for name in ("short", "shortened", "lengthened", "forever", "connected")
    }
    assert fates == {"short": False, "shortened": False, "lengthened": True, "forever": True, "connected": True}


def test_returning_in_time_sets_a_new_expiry(broker: Broker, client_id: str) -> None:
    """Section 3.1.2.11.2: each CONNECT brings its own."""
    broker.join(5, client_id, session_expiry=1).leave()
    broker.resume(5, client_id, session_expiry=100).leave()
    let_pass(2.2)
    assert broker.resume(5, client_id).connack.session_present
