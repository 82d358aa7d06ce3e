"""Properties a message takes along: unaltered, in order, and only where they may go."""

from __future__ import annotations

import pytest

from .packets import Connack, Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from .peer import Broker
from .properties import Properties

TRAVELLING: list[Properties] = [
    {"payload_format": 0},
    {"payload_format": 1},
    {"content_type": "application/json"},
    {"content_type": ""},
    {"response_topic": "reply/to/me"},
    {"correlation_data": b"\x00\xff\x80"},
    {"correlation_data": b""},
    {"user_property": [("key", "value")]},
    {"user_property": [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("Wasservögel", "\U0001f426")]},
    {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"c" * 300,
        "user_property": [(f"key {number}", "v" * number) for number in range(20)],
    },
]


@pytest.mark.parametrize("properties", TRAVELLING, ids=lambda properties: "+".join(properties))
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_arrive_as_they_were_sent(broker: Broker, topic: str, qos: int, properties: Properties) -> None:
    """[MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-20]; user properties keep their order."""
    client = broker.join()
    client.subscribe(topic, qos)
    client.publish(topic, b"payload", qos, **properties)
    assert client.messages(1) == [Publish(topic, b"payload", qos, properties=properties)]


@pytest.mark.parametrize(("publishing", "subscribing"), [(4, 5), (5, 4)])
def test_the_old_version_knows_no_properties(broker: Broker, topic: str, publishing: int, subscribing: int) -> None:
    subscriber, publisher = broker.join(subscribing), broker.join(publishing)
    subscriber.subscribe(topic)
    properties = Properties(content_type="text/plain", user_property=[("k", "v")]) if publishing == 5 else {}
    publisher.publish(topic, b"payload", **properties)
    subscriber.expect(Publish(topic, b"payload"))


def test_a_request_finds_its_response(broker: Broker, topic: str) -> None:
    """Section 4.10: response topic and correlation data are all the two sides need."""
    asking, answering = broker.join(), broker.join()
    asking.subscribe(f"{topic}/answers")
    answering.subscribe(f"{topic}/questions")
    asking.publish(f"{topic}/questions", b"how far?", response_topic=f"{topic}/answers", correlation_data=b"question 1")
    (question,) = answering.messages(1)
    answering.publish(
        question.properties["response_topic"],
        b"40,000 km",
        correlation_data=question.properties["correlation_data"],
    )
    asking.expect(Publish(f"{topic}/answers", b"40,000 km", properties={"correlation_data": b"question 1"}))


def test_a_payload_that_is_not_the_text_it_claims_is_refused_or_passed_unaltered(broker: Broker, topic: str) -> None:
    """Section 3.3.2.3.2: a receiver MAY check; then PUBACK says 0x99."""
    client = broker.join()
    client.subscribe(topic)
    code = client.publish(topic, b"\xff\xfe", qos=1, payload_format=1)
    assert code in (0x00, 0x99)
    delivered = [] if code == 0x99 else [Publish(topic, b"\xff\xfe", properties={"payload_format": 1})]
    assert client.waiting_messages() == delivered


def test_a_payload_that_claims_nothing_may_be_any_bytes(broker: Broker, topic: str) -> None:
    client = broker.join()
    client.subscribe(topic)
    assert client.publish(topic, b"\xff\xfe", qos=1, payload_format=0) == 0
    client.expect(Publish(topic, b"\xff\xfe", properties={"payload_format": 0}))


def test_user_properties_are_taken_in_every_packet(broker: Broker, topic: str) -> None:
    extra = Properties(user_property=[("k", "v"), ("k", "v")])
    client = broker.join(**extra)
    client.send(Subscribe(1, [(topic, 1)], extra))
    client.expect(Suback(1, [1]))
    client.publish(topic, b"x", qos=1, **extra)
    message = client.expect(Publish(topic, b"x", qos=1, properties=extra))
    client.send(Puback(message.packet_id, 0, extra))
    client.send(Unsubscribe(2, [topic], extra))
    client.expect(Unsuback(2, [0]))
    client.leave(**extra)
    assert client.connack == Connack(0)


def test_properties_stay_with_a_message_sent_again(broker: Broker, topic: str, client_id: str) -> None:
    subscriber = broker.resume(5, client_id)
    subscriber.subscribe(topic, 1)
    properties = Properties(content_type="text/plain", user_property=[("k", "v")])
    broker.join().publish(topic, b"x", qos=1, **properties)
    subscriber.expect(Publish(topic, b"x", qos=1, properties=properties))
    subscriber.drop()
    broker.resume(5, client_id).expect(Publish(topic, b"x", qos=1, dup=True, properties=properties))
