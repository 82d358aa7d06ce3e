"""Receive Maximum, Maximum Packet Size and Topic Alias, in both directions."""

from __future__ import annotations

import pytest

from .packets import (
    Connack,
    Connect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Sent,
    Subscribe,
    Unsubscribe,
)
from .peer import Broker
from .properties import Properties

# Receive Maximum: the client's, kept by the broker


@pytest.mark.parametrize("window", [1, 3])
def test_the_broker_keeps_to_the_clients_receive_maximum(broker: Broker, topic: str, window: int) -> None:
    """[MQTT-3.3.4-9]; [MQTT-3.3.4-10]: only PUBLISH is held back, PINGRESP is not."""
    subscriber, publisher = broker.join(receive_maximum=window), broker.join()
    subscriber.subscribe(topic, 1)
    for number in range(8):
        publisher.publish(topic, b"%d" % number, qos=1)
    in_flight = [subscriber.expect(Publish(topic, b"%d" % number, qos=1)) for number in range(window)]
    subscriber.expect_nothing()
    for number in range(window, 8):
        subscriber.send(Puback(in_flight.pop(0).packet_id))
        in_flight.append(subscriber.expect(Publish(topic, b"%d" % number, qos=1)))
        subscriber.expect_nothing()


def test_a_qos_2_message_holds_its_place_until_pubcomp(broker: Broker, topic: str) -> None:
    """Section 4.9"""
    subscriber, publisher = broker.join(receive_maximum=1), broker.join()
    subscriber.subscribe(topic, 2)
    for payload in b"first", b"second":
        publisher.publish(topic, payload, qos=2)
    first = subscriber.expect(Publish(topic, b"first", qos=2))
    subscriber.send(Pubrec(first.packet_id))
    subscriber.expect(Pubrel(first.packet_id))
    subscriber.expect_nothing()
    subscriber.send(Pubcomp(first.packet_id))
    subscriber.expect(Publish(topic, b"second", qos=2))


def test_a_refused_qos_2_message_gives_its_place_back(broker: Broker, topic: str) -> None:
    """Section 4.9: PUBREC with a code of 0x80 or more."""
    subscriber, publisher = broker.join(receive_maximum=1), broker.join()
    subscriber.subscribe(topic, 2)
    for payload in b"first", b"second":
        publisher.publish(topic, payload, qos=2)
    first = subscriber.expect(Publish(topic, b"first", qos=2))
    subscriber.send(Pubrec(first.packet_id, 0x97))
    subscriber.expect(Publish(topic, b"second", qos=2))


def test_the_window_is_kept_after_reconnecting(broker: Broker, client_id: str, topic: str) -> None:
    """Section 4.9: the send quota starts again with each connection, for what is sent again too."""
    subscriber = broker.resume(5, client_id, receive_maximum=5)
    subscriber.subscribe(topic, 1)
    publisher = broker.join()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    for number in range(5):
        subscriber.expect(Publish(topic, b"%d" % number, qos=1))
    subscriber.drop()
    subscriber = broker.resume(5, client_id, receive_maximum=2)
    for number in range(2):
        subscriber.expect(Publish(topic, b"%d" % number, qos=1, dup=True))
    subscriber.expect_nothing()


# Receive Maximum: the broker's, enforced against the client


def test_a_client_beyond_the_brokers_receive_maximum_is_closed(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-7], section 3.3.4: DISCONNECT with 0x93."""
    client = broker.join()
    allowed = client.connack.properties["receive_maximum"]
    for packet_id in range(1, allowed + 1):
        client.send(Publish(topic, b"x", qos=2, packet_id=packet_id))
        assert client.wait_for(Pubrec).packet_id == packet_id
    client.send(Publish(topic, b"one too many", qos=2, packet_id=allowed + 1))
    client.expect_close(0x93)


@pytest.mark.parametrize("qos", [1, 2])
def test_finished_exchanges_do_not_count(broker: Broker, topic: str, qos: int) -> None:
    publisher, subscriber = broker.join(), broker.join()
    subscriber.subscribe(topic)
    allowed = publisher.connack.properties["receive_maximum"]
    for _ in range(3 * allowed):
        publisher.publish(topic, b"x", qos=qos)
    assert len(subscriber.messages(3 * allowed)) == 3 * allowed


def test_qos_0_needs_no_place_in_the_window(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.subscribe(f"{topic}/0")
    for packet_id in range(1, client.connack.properties["receive_maximum"] + 1):
        client.send(Publish(f"{topic}/2", b"x", qos=2, packet_id=packet_id))
        assert client.wait_for(Pubrec).packet_id == packet_id
    client.publish(f"{topic}/0", b"free")
    client.expect(Publish(f"{topic}/0", b"free"))


# Maximum Packet Size


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_the_client_is_left_out(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.1.2-25]: as if it had been delivered; the others get it."""
    narrow, wide, publisher = broker.join(maximum_packet_size=100), broker.join(), broker.join()
    narrow.subscribe(topic, qos)
    wide.subscribe(topic, qos)
    for payload in b"small", b"L" * 200, b"small again":
        publisher.publish(topic, payload, qos=qos)
    assert [message.payload for message in narrow.messages(2)] == [b"small", b"small again"]
    narrow.expect_nothing()
    assert [len(message.payload) for message in wide.messages(3)] == [5, 200, 11]


def test_the_largest_packet_the_client_takes_is_sent(broker: Broker, topic: str) -> None:
    size = 500
    overhead = len(Publish(topic, b"x" * 300).encode(5)) - 300
    client, publisher = broker.join(maximum_packet_size=size), broker.join()
    client.subscribe(topic)
    publisher.publish(topic, b"x" * (size - overhead + 1))
    publisher.publish(topic, b"x" * (size - overhead))
    client.expect(Publish(topic, b"x" * (size - overhead)))
    client.expect_nothing()


def test_a_retained_message_too_large_for_the_client_is_left_out(broker: Broker, topic: str) -> None:
    client = broker.join(maximum_packet_size=100)
    broker.join().publish(topic, b"L" * 200, retain=True)
    client.subscribe(topic)
    client.expect_nothing()


@pytest.mark.parametrize(
    "provocation",
    [
        Publish("a/+"),
        Publish("nobody listens", qos=1, packet_id=1),
        Subscribe(1, [("a/#/b", 0)]),
        Pubrel(9),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_a_reason_that_would_make_the_packet_too_large_is_left_out(broker: Broker, provocation: Sent) -> None:
    """[MQTT-3.14.2-3], [MQTT-3.4.2-2] and the like: the code stays."""
    client = broker.join(maximum_packet_size=30)
    client.send(provocation)
    assert len(client.receive_bytes()) in range(2, 31)


def test_a_refusal_keeps_to_the_clients_packet_size_too(broker: Broker) -> None:
    """[MQTT-3.2.2-19]"""
    client = broker.dial()
    asking = Properties(maximum_packet_size=20, authentication_method="semaphore flags")
    client.send(Connect(client.client_id, properties=asking))
    assert len(client.receive_bytes()) in range(5, 21)


def test_connack_keeps_to_the_clients_packet_size(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.2-24]: with what it must say, or with 0x95 if that does not fit, or not at all."""
    answers: dict[int, bytes] = {}
    for size in range(1, 40):
        client = broker.dial()
        client.send(Connect(client_id, properties=Properties(maximum_packet_size=size)))
        answers[size] = client.receive_bytes()
        assert len(answers[size]) <= size
        client.drop()
    codes = {size: answer[3] if answer else None for size, answer in answers.items()}
    # Two bytes of fixed header, flags, code, property length; the limits that this broker has and that ours has not.
    first_welcome = min(size for size, code in codes.items() if code == 0)
    assert all(code == 0 for size, code in codes.items() if size >= first_welcome)
    assert all(code == 0x95 for size, code in codes.items() if 5 <= size < first_welcome)
    assert all(code is None for size, code in codes.items() if size < 5)
    assert first_welcome == 8  # with Receive Maximum, which has to be kept to


def test_a_client_that_is_too_narrow_for_connack_leaves_no_session(broker: Broker, client_id: str) -> None:
    client = broker.dial(5, client_id)
    client.send(Connect(client_id, properties=Properties(maximum_packet_size=5, session_expiry=60)))
    client.expect_refusal(0x95)
    assert broker.resume(5, client_id).connack == Connack(0, session_present=False)


@pytest.mark.parametrize("request_kind", [Subscribe, Unsubscribe])
def test_an_answer_too_large_for_the_client_is_not_sent(
    broker: Broker, topic: str, request_kind: type[Subscribe | Unsubscribe]
) -> None:
    """[MQTT-3.1.2-24]: there is no shorter SUBACK or UNSUBACK, so nothing is done and 0x95 says why."""
    size = 200

    def asking(filters: int) -> Subscribe | Unsubscribe:
        names = [f"{topic}/{number}" for number in range(filters)]
        return Subscribe(1, [(name, 0) for name in names]) if request_kind is Subscribe else Unsubscribe(1, names)

    fits = broker.join(maximum_packet_size=size)
    fits.send(asking(size - 6))
    assert len(fits.receive_bytes()) == size
    client = broker.join(maximum_packet_size=size)
    client.send(asking(size - 5), Pingreq())
    client.expect_close(0x95)


def test_a_packet_larger_than_the_broker_takes_closes_the_connection(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-3.2.2-15], section 3.2.2.3.6: DISCONNECT with 0x95."""
    limit = broker.join(5).connack.properties["maximum_packet_size"]
    client = broker.join(version)
    client.send(Publish(topic, b"x" * limit).encode(version)[:5])
    client.expect_close(0x95)


def test_the_largest_packet_the_broker_takes_is_taken(broker: Broker, topic: str) -> None:
    client = broker.join()
    limit = client.connack.properties["maximum_packet_size"]
    overhead = len(Publish(topic, b"x" * 90_000, qos=1).encode(5)) - 90_000
    client.send(Publish(topic, b"x" * (limit - overhead), qos=1, packet_id=1))
    assert client.wait_for(Puback).packet_id == 1


# Topic Alias, from the client to the broker


def test_an_alias_stands_for_its_topic(broker: Broker, topic: str) -> None:
    """Section 3.3.2.3.4, at every QoS; the subscriber sees the topic and no alias [MQTT-3.1.2-27]."""
    subscriber, publisher = broker.join(), broker.join()
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"named", topic_alias=3)
    for qos in range(3):
        publisher.publish("", b"aliased", qos=qos, topic_alias=3)
    expected = [Publish(topic, b"named"), *(Publish(topic, b"aliased", qos=qos) for qos in range(3))]
    assert subscriber.messages(4) == expected


def test_an_alias_may_be_given_to_another_topic(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.subscribe(f"{topic}/#")
    for leaf in "ab":
        client.publish(f"{topic}/{leaf}", b"", topic_alias=1)
        client.publish("", b"aliased", topic_alias=1)
    assert [message.topic[-1] for message in client.messages(4)] == ["a", "a", "b", "b"]


def test_the_highest_alias_allowed_works(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12]"""
    client = broker.join()
    client.subscribe(topic)
    highest = client.connack.properties["topic_alias_maximum"]
    client.publish(topic, b"named", topic_alias=highest)
    client.publish("", b"aliased", topic_alias=highest)
    assert client.messages(2) == [Publish(topic, b"named"), Publish(topic, b"aliased")]


def test_an_alias_of_zero_closes_the_connection(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-8]; the standard names no code for it."""
    client = broker.join()
    client.send(Publish(topic, b"x", properties={"topic_alias": 0}))
    client.expect_close(0x94, 0x82, 0x81)


def test_an_alias_beyond_the_maximum_closes_the_connection(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-9], section 3.14.2.1: 0x94."""
    client = broker.join()
    alias = client.connack.properties["topic_alias_maximum"] + 1
    client.send(Publish(topic, b"x", properties={"topic_alias": alias}))
    client.expect_close(0x94)


def test_an_alias_nobody_defined_closes_the_connection(broker: Broker) -> None:
    """Section 3.3.4: a protocol error."""
    client = broker.join()
    client.send(Publish("", b"x", properties={"topic_alias": 2}))
    client.expect_close(0x82, 0x94)


def test_aliases_end_with_their_connection(broker: Broker, client_id: str, topic: str) -> None:
    """[MQTT-3.3.2-7]: also when the session goes on."""
    first = broker.resume(5, client_id)
    first.publish(topic, b"x", topic_alias=1)
    first.leave()
    second = broker.resume(5, client_id)
    second.send(Publish("", b"x", properties={"topic_alias": 1}))
    second.expect_close(0x82, 0x94)


def test_each_connection_has_its_own_aliases(broker: Broker, topic: str) -> None:
    subscriber, first, second = broker.join(), broker.join(), broker.join()
    subscriber.subscribe(f"{topic}/#")
    first.publish(f"{topic}/first", b"", topic_alias=1)
    second.publish(f"{topic}/second", b"", topic_alias=1)
    first.publish("", b"aliased", topic_alias=1)
    assert [message.topic for message in subscriber.messages(3)][-1] == f"{topic}/first"


# Topic Alias, from the broker to the client


def test_a_client_that_takes_no_aliases_gets_none(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-27]"""
    client = broker.join()
    client.subscribe(topic)
    for _ in range(5):
        client.publish(topic, b"x")
    assert client.messages(5) == [Publish(topic, b"x")] * 5


def test_aliases_the_broker_uses_lead_to_the_right_topics(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-26], [MQTT-3.3.2-11]: within the client's maximum, and defined before they are used."""
    client = broker.join(topic_alias_maximum=2)
    client.subscribe(f"{topic}/#")
    published = [f"{topic}/{number % 4}" for number in range(20)]
    for name in published:
        client.publish(name, b"x")
    assert _resolve(client.messages(20), maximum=2) == published


def test_the_broker_uses_aliases_when_it_may(broker: Broker, topic: str) -> None:
    """An option of the standard that saves the topic's bytes; ours takes it."""
    client = broker.join(topic_alias_maximum=5)
    client.subscribe(topic)
    for _ in range(5):
        client.publish(topic, b"x")
    found = client.messages(5)
    assert found[-1].topic == ""
    assert _resolve(found, maximum=5) == [topic] * 5


def _resolve(messages: list[Publish], maximum: int) -> list[str]:
    topics: dict[int, str] = {}
    names = []
    for message in messages:
        alias = message.properties.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= maximum
            topics[alias] = message.topic or topics[alias]
        names.append(message.topic or topics[message.properties["topic_alias"]])
    return names
