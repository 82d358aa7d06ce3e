"""PUBLISH at QoS 0, 1 and 2, into the broker and out of it."""

from __future__ import annotations

import pytest

from .packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from .peer import Broker


@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_arrives_at_the_lower_of_both_qos(
    broker: Broker, version: int, topic: str, published: int, subscribed: int
) -> None:
    """[MQTT-3.8.4-8]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, subscribed)
    publisher.publish(topic, b"payload", qos=published)
    subscriber.acknowledge(subscriber.expect(Publish(topic, b"payload", qos=min(published, subscribed))))
    subscriber.expect_nothing()


def test_qos_1_is_acknowledged_with_its_packet_id(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-4.3.2-4]"""
    client = broker.join(version)
    client.subscribe(f"{topic}/elsewhere")
    client.send(Publish(topic, b"x", qos=1, packet_id=4711))
    assert client.wait_for(Puback).packet_id == 4711


def test_qos_2_takes_four_packets(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-4.3.3-8], [MQTT-4.3.3-11]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 2)
    publisher.send(Publish(topic, b"x", qos=2, packet_id=65535))
    publisher.expect(Pubrec(65535))
    publisher.send(Pubrel(65535))
    publisher.expect(Pubcomp(65535))
    message = subscriber.expect(Publish(topic, b"x", qos=2))
    subscriber.send(Pubrec(message.packet_id))
    subscriber.expect(Pubrel(message.packet_id))
    subscriber.send(Pubcomp(message.packet_id))
    subscriber.expect_nothing()


def test_a_repeated_qos_2_publish_is_delivered_once(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-4.3.3-10]: until PUBREL, the same packet identifier is the same message."""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 0)
    for dup in False, True:
        publisher.send(Publish(topic, b"once", qos=2, dup=dup, packet_id=3))
        assert publisher.wait_for(Pubrec).packet_id == 3
    publisher.send(Pubrel(3))
    publisher.expect(Pubcomp(3))
    subscriber.expect(Publish(topic, b"once"))
    subscriber.expect_nothing()


def test_a_packet_id_is_free_again_after_pubcomp(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-4.3.3-12]: after PUBCOMP the identifier begins a new message."""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 0)
    for payload in b"first", b"second":
        publisher.send(Publish(topic, payload, qos=2, packet_id=3))
        publisher.expect(Pubrec(3))
        publisher.send(Pubrel(3))
        publisher.expect(Pubcomp(3))
        subscriber.expect(Publish(topic, payload))


def test_a_packet_id_is_free_again_after_puback(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-4.3.2-5]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 0)
    for payload in b"first", b"second":
        publisher.send(Publish(topic, payload, qos=1, packet_id=3))
        publisher.expect(Puback(3))
        subscriber.expect(Publish(topic, payload))


def test_pubrel_is_always_answered(broker: Broker, version: int) -> None:
    """[MQTT-4.3.3-11]; in 5.0 an identifier nobody knows is answered with 0x92."""
    client = broker.join(version)
    client.send(Pubrel(1234))
    client.expect(Pubcomp(1234, 0x92 if version == 5 else 0))


def test_the_dup_flag_is_not_passed_on(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.3.1-3]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 1)
    publisher.send(Publish(topic, b"again", qos=1, dup=True, packet_id=8))
    publisher.expect(Puback(8))
    subscriber.expect(Publish(topic, b"again", qos=1, dup=False))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_the_order_they_were_published(broker: Broker, version: int, topic: str, qos: int) -> None:
    """[MQTT-4.6.0-5], [MQTT-4.6.0-6]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, qos)
    payloads = [b"%d" % number for number in range(60)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    assert [message.payload for message in subscriber.messages(60)] == payloads


def test_a_burst_in_one_segment_is_served_in_order(broker: Broker, version: int, topic: str) -> None:
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 1)
    publisher.send(*(Publish(topic, b"%d" % number, qos=1, packet_id=number) for number in range(1, 10)))
    for number in range(1, 10):
        publisher.expect(Puback(number))
    assert [message.payload for message in subscriber.messages(9)] == [b"%d" % number for number in range(1, 10)]


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 65_536, 90_000])
def test_payloads_of_any_length_arrive_whole(broker: Broker, version: int, topic: str, length: int) -> None:
    """[MQTT-3.3.1] allows an empty payload; the others sit where the remaining length grows by a byte."""
    client = broker.join(version)
    client.subscribe(topic)
    payload = bytes(number % 251 for number in range(length))
    client.publish(topic, payload)
    client.expect(Publish(topic, payload))


def test_a_payload_may_be_any_bytes(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    client.subscribe(topic)
    client.publish(topic, bytes(range(256)))
    client.expect(Publish(topic, bytes(range(256))))


@pytest.mark.parametrize("qos", [1, 2])
def test_both_directions_number_their_packets_independently(broker: Broker, version: int, topic: str, qos: int) -> None:
    """Section 2.2.1: the same identifier may be in flight in both directions at once."""
    client = broker.join(version)
    client.subscribe(topic, qos)
    broker.join(version).publish(topic, b"theirs", qos=qos)
    theirs = client.expect(Publish(topic, b"theirs", qos=qos))
    client.send(Publish(f"{topic}/mine", b"mine", qos=qos, packet_id=theirs.packet_id))
    assert client.wait_for(Puback if qos == 1 else Pubrec).packet_id == theirs.packet_id
    client.acknowledge(theirs)
    client.expect_nothing()


def test_messages_in_flight_have_different_packet_ids(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-2.2.1-4]"""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 2)
    for number in range(8):
        publisher.publish(topic, b"x", qos=1 + number % 2)
    identifiers = [subscriber.wait_for(Publish).packet_id for _ in range(8)]
    assert len(set(identifiers)) == 8


def test_acknowledgements_may_come_in_any_order(broker: Broker, version: int, topic: str) -> None:
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic, 1)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    for message in reversed([subscriber.wait_for(Publish) for _ in range(5)]):
        subscriber.send(Puback(message.packet_id))
    publisher.publish(topic, b"next", qos=1)
    subscriber.expect(Publish(topic, b"next", qos=1))


def test_a_qos_2_message_refused_by_its_receiver_is_over(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-4]: after PUBREC with a code of 0x80 or more there is no PUBREL."""
    subscriber, publisher = broker.join(), broker.join()
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"unwanted", qos=2)
    unwanted = subscriber.expect(Publish(topic, b"unwanted", qos=2))
    subscriber.send(Pubrec(unwanted.packet_id, 0x83))
    subscriber.expect_nothing()


def test_pubrec_for_an_unknown_packet_id_is_answered_with_0x92(broker: Broker) -> None:
    """Section 3.6.2.1: PUBREL says that the packet identifier was not found."""
    client = broker.join()
    client.send(Pubrec(999))
    client.expect(Pubrel(999, 0x92))


def test_stray_acknowledgements_do_no_harm(broker: Broker, version: int, topic: str) -> None:
    client = broker.join(version)
    client.send(Puback(41), Pubcomp(42))
    client.subscribe(topic)
    client.publish(topic, b"still here")
    client.expect(Publish(topic, b"still here"))
