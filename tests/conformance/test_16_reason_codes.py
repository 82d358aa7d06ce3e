"""Reason codes not already part of another subject's conversation, and their absence in 3.1.1."""

from __future__ import annotations

import pytest

from .packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Unsuback, Unsubscribe, frame
from .peer import Broker
from .properties import u16


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_learns_whether_anybody_listens(broker: Broker, topic: str, qos: int) -> None:
    """Sections 3.4.2.1 and 3.5.2.1: 0x10 for no matching subscribers."""
    publisher, subscriber = broker.join(), broker.join()
    assert publisher.publish(topic, b"x", qos=qos) == 0x10
    subscriber.subscribe(topic)
    assert publisher.publish(topic, b"x", qos=qos) == 0x00
    subscriber.unsubscribe(topic)
    assert publisher.publish(topic, b"x", qos=qos) == 0x10


def test_a_session_that_waits_counts_as_a_listener(broker: Broker, topic: str, client_id: str) -> None:
    absent = broker.resume(5, client_id)
    absent.subscribe(topic, 1)
    absent.leave()
    assert broker.join().publish(topic, b"x", qos=1) == 0x00


def test_acknowledgements_in_3_1_1_are_two_bytes(broker: Broker, topic: str) -> None:
    """The decoder refuses bytes left over: nothing of 5.0 leaks into 3.1.1."""
    client = broker.join(4)
    client.send(Publish(topic, b"x", qos=1, packet_id=1), Publish(topic, b"x", qos=2, packet_id=2))
    client.expect(Puback(1))
    client.expect(Pubrec(2))
    client.send(Pubrel(2), Pubrel(9), Unsubscribe(3, [topic]))
    client.expect(Pubcomp(2))
    client.expect(Pubcomp(9))
    client.expect(Unsuback(3, []))


@pytest.mark.parametrize("tail", [b"", b"\x00", b"\x00\x00"], ids=["no code", "code", "code and properties"])
def test_acknowledgements_may_leave_out_what_is_zero(broker: Broker, topic: str, tail: bytes) -> None:
    """Section 3.4.2.1: remaining length 2 means success, less than 4 means no properties; PUBREC and PUBCOMP alike."""
    subscriber, publisher = broker.join(receive_maximum=1), broker.join()
    subscriber.subscribe(topic, 2)
    for qos in 1, 2:
        publisher.publish(topic, b"x", qos=qos)
    first = subscriber.expect(Publish(topic, b"x", qos=1))
    subscriber.send(frame(0x40, u16(first.packet_id) + tail))
    second = subscriber.expect(Publish(topic, b"x", qos=2))
    subscriber.send(frame(0x50, u16(second.packet_id) + tail))
    subscriber.expect(Pubrel(second.packet_id))
    subscriber.send(frame(0x70, u16(second.packet_id) + tail))
    subscriber.expect_nothing()


@pytest.mark.parametrize("tail", [b"", b"\x00", b"\x00\x00"], ids=["no code", "code", "code and properties"])
def test_disconnect_may_leave_out_what_is_zero(broker: Broker, tail: bytes) -> None:
    """Section 3.14.2.1"""
    client = broker.join()
    client.send(frame(0xE0, tail))
    with pytest.raises(EOFError):
        client.receive()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_its_receiver_refused_is_not_sent_again(broker: Broker, topic: str, client_id: str, qos: int) -> None:
    """[MQTT-4.4.0-2]: a code of 0x80 or more acknowledges it all the same."""
    subscriber = broker.resume(5, client_id)
    subscriber.subscribe(topic, qos)
    broker.join().publish(topic, b"x", qos=qos)
    message = subscriber.expect(Publish(topic, b"x", qos=qos))
    subscriber.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x80))
    subscriber.leave()
    broker.resume(5, client_id).expect_nothing()
