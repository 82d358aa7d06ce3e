"""Sessions that outlive their connections: what is kept, what is sent again, and what ends them."""

from __future__ import annotations

import pytest

from .packets import Connack, Disconnect, Pubcomp, Publish, Pubrec, Pubrel
from .peer import Broker


def test_a_session_is_present_the_second_time(broker: Broker, version: int, client_id: str) -> None:
    """[MQTT-3.2.2-2], [MQTT-3.2.2-3]"""
    first = broker.resume(version, client_id)
    assert first.connack == Connack(0, session_present=False)
    first.leave()
    assert broker.resume(version, client_id).connack == Connack(0, session_present=True)


def test_a_session_survives_a_lost_connection(broker: Broker, version: int, client_id: str) -> None:
    broker.resume(version, client_id).drop()
    assert broker.resume(version, client_id).connack.session_present


def test_a_clean_start_discards_the_session(broker: Broker, version: int, client_id: str, topic: str) -> None:
    """[MQTT-3.1.2-4], [MQTT-3.2.2-2]"""
    first = broker.resume(version, client_id)
    first.subscribe(topic, 1)
    first.leave()
    broker.join(version).publish(topic, b"missed", qos=1)
    clean = broker.join(version, client_id, clean=True)
    assert clean.connack == Connack(0, session_present=False)
    clean.publish(topic, b"unheard")
    clean.expect_nothing()


def test_a_clean_session_leaves_nothing_behind(broker: Broker, version: int, client_id: str) -> None:
    broker.join(version, client_id, clean=True).leave()
    assert not broker.resume(version, client_id).connack.session_present


def test_without_session_expiry_the_session_ends_with_its_connection(broker: Broker, client_id: str) -> None:
    """Section 3.1.2.11.2: absent is 0."""
    broker.join(5, client_id, clean=False).leave()
    assert not broker.resume(5, client_id).connack.session_present


def test_a_clean_start_may_begin_a_lasting_session(broker: Broker, client_id: str) -> None:
    broker.join(5, client_id, clean=True, session_expiry=60).leave()
    assert broker.resume(5, client_id).connack.session_present


def test_disconnect_may_end_the_session_at_once(broker: Broker, client_id: str) -> None:
    """Section 3.14.2.2.2"""
    broker.resume(5, client_id).leave(session_expiry=0)
    assert not broker.resume(5, client_id).connack.session_present


def test_disconnect_may_not_give_life_to_a_session_that_had_none(broker: Broker, client_id: str) -> None:
    """Section 3.14.2.2.2: zero in CONNECT and more in DISCONNECT is a protocol error."""
    client = broker.join(5, client_id, session_expiry=0)
    client.send(Disconnect(0, {"session_expiry": 60}))
    client.expect_close(0x82)
    assert not broker.resume(5, client_id).connack.session_present


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_an_absent_client_in_order(
    broker: Broker, version: int, client_id: str, topic: str, qos: int
) -> None:
    """[MQTT-3.1.2-5] of 3.1.1, section 4.1 of 5.0"""
    subscriber = broker.resume(version, client_id)
    subscriber.subscribe(topic, qos)
    subscriber.leave()
    publisher = broker.join(version)
    for number in range(30):
        publisher.publish(topic, b"%d" % number, qos=qos)
    subscriber = broker.resume(version, client_id)
    found = subscriber.messages(30)
    assert found == [Publish(topic, b"%d" % number, qos=qos) for number in range(30)]
    subscriber.expect_nothing()


def test_subscriptions_survive_and_stay_ended(broker: Broker, version: int, client_id: str, topic: str) -> None:
    first = broker.resume(version, client_id)
    for leaf in "abc":
        first.subscribe(f"{topic}/{leaf}")
    first.unsubscribe(f"{topic}/b")
    first.leave()
    second = broker.resume(version, client_id)
    for leaf in "abc":
        second.publish(f"{topic}/{leaf}", leaf.encode())
    assert [message.payload for message in second.waiting_messages()] == [b"a", b"c"]


def test_what_was_acknowledged_is_not_sent_again(broker: Broker, version: int, client_id: str, topic: str) -> None:
    subscriber = broker.resume(version, client_id)
    subscriber.subscribe(topic, 2)
    publisher = broker.join(version)
    for qos in 1, 2:
        publisher.publish(topic, b"done", qos=qos)
    subscriber.messages(2)
    subscriber.leave()
    broker.resume(version, client_id).expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_are_sent_again_as_duplicates(
    broker: Broker, version: int, client_id: str, topic: str, qos: int
) -> None:
    """[MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-4.6.0-5]: same identifiers, same order, DUP set."""
    subscriber = broker.resume(version, client_id)
    subscriber.subscribe(topic, qos)
    publisher = broker.join(version)
    for number in range(4):
        publisher.publish(topic, b"%d" % number, qos=qos)
    unanswered = [subscriber.wait_for(Publish) for _ in range(4)]
    subscriber.drop()
    subscriber = broker.resume(version, client_id)
    for message in unanswered:
        again = subscriber.expect(Publish(topic, message.payload, qos=qos, dup=True))
        assert again.packet_id == message.packet_id
    subscriber.expect_nothing()


def test_pubrel_is_sent_again_after_pubrec(broker: Broker, version: int, client_id: str, topic: str) -> None:
    """[MQTT-4.4.0-1]: a received QoS 2 message is not published twice, its PUBREL is."""
    subscriber = broker.resume(version, client_id)
    subscriber.subscribe(topic, 2)
    broker.join(version).publish(topic, b"x", qos=2)
    message = subscriber.expect(Publish(topic, b"x", qos=2))
    subscriber.send(Pubrec(message.packet_id))
    subscriber.expect(Pubrel(message.packet_id))
    subscriber.drop()
    subscriber = broker.resume(version, client_id)
    subscriber.expect(Pubrel(message.packet_id))
    subscriber.send(Pubcomp(message.packet_id))
    subscriber.leave()
    broker.resume(version, client_id).expect_nothing()


def test_an_unfinished_qos_2_publish_is_finished_after_reconnecting(
    broker: Broker, version: int, client_id: str, topic: str
) -> None:
    """Exactly once: the publisher saw no PUBREC, sends again, and the subscriber gets one message."""
    subscriber = broker.join(version)
    subscriber.subscribe(topic, 2)
    publisher = broker.resume(version, client_id)
    publisher.send(Publish(topic, b"once", qos=2, packet_id=11))
    assert publisher.wait_for(Pubrec).packet_id == 11
    publisher.drop()
    publisher = broker.resume(version, client_id)
    publisher.send(Publish(topic, b"once", qos=2, dup=True, packet_id=11))
    assert publisher.wait_for(Pubrec).packet_id == 11
    publisher.send(Pubrel(11))
    publisher.expect(Pubcomp(11))
    assert subscriber.messages(1) == [Publish(topic, b"once", qos=2)]
    subscriber.expect_nothing()


def test_a_released_qos_2_publish_stays_released(broker: Broker, version: int, client_id: str, topic: str) -> None:
    """PUBREL sent again after its PUBCOMP was lost gets another PUBCOMP, and no second delivery."""
    subscriber = broker.join(version)
    subscriber.subscribe(topic)
    publisher = broker.resume(version, client_id)
    publisher.publish(topic, b"once", qos=2)
    publisher.drop()
    publisher = broker.resume(version, client_id)
    publisher.send(Pubrel(1))
    assert publisher.wait_for(Pubcomp).packet_id == 1
    subscriber.expect(Publish(topic, b"once"))
    subscriber.expect_nothing()


def test_a_message_for_an_absent_client_keeps_its_properties(broker: Broker, client_id: str, topic: str) -> None:
    first = broker.resume(5, client_id)
    first.subscribe(topic, 1, subscription_id=[42])
    first.leave()
    broker.join().publish(topic, b"x", qos=1, content_type="text/plain", user_property=[("k", "v")])
    found = broker.resume(5, client_id).messages(1)
    assert found[0].properties == {
        "content_type": "text/plain",
        "user_property": [("k", "v")],
        "subscription_id": [42],
    }
