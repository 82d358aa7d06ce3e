"""Bad input of every kind closes that one connection, and says why where MQTT 5.0 has words for it.

The cases are in `bad_packets`.  A bystander that connected before goes on being served.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .bad_packets import (
    BAD_CONNECTS,
    BAD_FILTER,
    FROM_A_CONNECTED_CLIENT,
    NOT_CONNECT,
    PACKET_ID_IN_USE,
    PROTOCOL_ERROR,
    TOPIC_FILTER_INVALID,
    UNSUPPORTED_VERSION,
    Bad,
    connect,
)
from .client import Client
from .packets import Connect, Pingreq, Publish, Pubrec, Pubrel, Suback, Subscribe, Unsubscribe, Will, frame
from .peer import Broker
from .properties import encode_properties, text, u16

EMPTY_PROPERTIES = {4: b"", 5: b"\0"}


def in_each_version(cases: list[Bad]) -> list[object]:
    return [pytest.param(case, v, id=f"{case.name}-v{v}") for case in cases for v in case.versions]


@pytest.fixture(autouse=True)
def bystander(broker: Broker, topic: str) -> Iterator[None]:
    """Whatever a test does to its own connection, this one goes on."""
    client = broker.join(4)
    client.subscribe(f"{topic}/bystander")
    yield
    broker.join(5).publish(f"{topic}/bystander", b"undisturbed")
    client.expect(Publish(f"{topic}/bystander", b"undisturbed"))


@pytest.mark.parametrize(("case", "version"), in_each_version(FROM_A_CONNECTED_CLIENT))
def test_a_connected_client_is_closed_for(broker: Broker, case: Bad, version: int) -> None:
    """[MQTT-4.13.1-1]; the PINGREQ behind it is answered only by a broker that did not mind."""
    client = broker.join(version)
    client.send(case.packet(EMPTY_PROPERTIES[version]), Pingreq())
    client.expect_close(*case.codes)


@pytest.mark.parametrize(("case", "version"), in_each_version(BAD_CONNECTS))
def test_connect_is_refused_for(broker: Broker, case: Bad, version: int) -> None:
    """[MQTT-3.1.4-1]: 3.1.1 closes without CONNACK, 5.0 may give the reason."""
    client = broker.dial(version)
    client.send(case.packet(EMPTY_PROPERTIES[version]))
    if version == 4:
        client.expect_close()
    else:
        client.expect_refusal(*case.codes)


@pytest.mark.parametrize("first", NOT_CONNECT.values(), ids=NOT_CONNECT)
def test_a_stranger_that_does_not_begin_with_connect_is_closed(broker: Broker, first: bytes) -> None:
    """[MQTT-3.1.0-1]; [MQTT-3.14.0-1]: without a word."""
    client = broker.dial()
    client.send(first)
    assert client.receive_bytes() == b""


@pytest.mark.parametrize("level", [0, 3, 6, 127])
def test_another_protocol_level_is_refused_politely(broker: Broker, level: int) -> None:
    """[MQTT-3.1.2-2]: CONNACK 0x01 in the form of 3.1.1, or 0x84 in that of 5.0, then close."""
    client = broker.dial(4)
    client.send(frame(0x10, text("MQTT") + bytes([level, 0x02]) + u16(60) + text("visitor")))
    answer = client.receive_bytes()
    assert answer == b"\x20\x02\x00\x01" or (answer[0], answer[2], answer[3]) == (0x20, 0, UNSUPPORTED_VERSION)
    client.expect_close()


def test_another_protocol_is_closed(broker: Broker, version: int) -> None:
    """[MQTT-3.1.2-1]: a server that wishes to reveal that it speaks MQTT may send CONNACK 0x84 first."""
    client = broker.dial(version)
    client.send(connect(name=b"MQTX")(EMPTY_PROPERTIES[version]))
    answer = client.receive_bytes()
    assert not answer or (answer[0], answer[3]) == (0x20, UNSUPPORTED_VERSION)
    client.expect_close()


def test_a_refused_connect_leaves_no_will(broker: Broker, topic: str) -> None:
    watcher = broker.join()
    watcher.subscribe(topic)
    client = broker.dial()
    client.send(Connect(client.client_id, will=Will(topic, b"x"), properties={"receive_maximum": 0}))
    client.expect_refusal(PROTOCOL_ERROR)
    watcher.expect_nothing()


BAD_FILTERS = ["", "a/#/b", "#/", "a#", "#a", "a+", "+a", "a/b+", "a/+b/c", "##", "++"]
BAD_SHARED_FILTERS = ["$share//x", "$share/g+/x", "$share/#/x", "$share/g/", "$share/g/a#"]


@pytest.mark.parametrize("topic_filter", BAD_FILTERS)
def test_a_bad_filter_is_refused(broker: Broker, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1]"""
    _expect_refused_filter(broker.join(version), topic_filter)


@pytest.mark.parametrize("topic_filter", BAD_SHARED_FILTERS)
def test_a_bad_shared_filter_is_refused(broker: Broker, topic_filter: str) -> None:
    """[MQTT-4.8.2-1], [MQTT-4.8.2-2]"""
    _expect_refused_filter(broker.join(), topic_filter)


@pytest.mark.parametrize("topic_filter", BAD_FILTERS + BAD_SHARED_FILTERS)
def test_unsubscribing_from_a_bad_filter_is_not_acknowledged(broker: Broker, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.8.2-1], [MQTT-4.8.2-2]: it can be in no session."""
    client = broker.join(version)
    client.send(Unsubscribe(1, ["good", topic_filter]), Pingreq())
    client.expect_close(*BAD_FILTER)


def _expect_refused_filter(client: Client, topic_filter: str) -> None:
    """In SUBACK, or by closing."""
    client.send(Subscribe(1, [(topic_filter, 0)]))
    try:
        suback = client.wait_for(Suback)
    except EOFError:
        client.expect_close(*BAD_FILTER)
    else:
        assert suback == Suback(1, [0x80 if client.version == 4 else TOPIC_FILTER_INVALID])


def test_a_packet_id_in_use_does_not_make_a_second_message(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-2.2.1-3] forbids it to the client: refused with 0x91, closed, or taken as the same message."""
    subscriber, publisher = broker.join(version), broker.join(version)
    subscriber.subscribe(topic)
    publisher.send(Publish(topic, b"first", qos=2, packet_id=5))
    publisher.expect(Pubrec(5))
    publisher.send(Publish(topic, b"second", qos=2, packet_id=5), Pubrel(5))
    try:
        assert publisher.wait_for(Pubrec) in (Pubrec(5), Pubrec(5, PACKET_ID_IN_USE))
    except EOFError:
        publisher.expect_close(PROTOCOL_ERROR, PACKET_ID_IN_USE)
    assert len(subscriber.waiting_messages()) <= 1


def test_a_thousand_user_properties_are_taken_or_refused(broker: Broker, topic: str) -> None:
    client = broker.join()
    block = encode_properties({"user_property": [("k", "v")] * 1000})
    client.send(frame(0x32, text(topic) + u16(1) + block))
    assert getattr(client.receive(), "code", None) in (0x00, 0x10, 0x81, 0x82, 0x95, 0x97)
