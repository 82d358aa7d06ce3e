"""CONNECT and CONNACK, PINGREQ, DISCONNECT: how a connection begins and ends."""

from __future__ import annotations

import pytest

from .packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe
from .peer import Broker


def test_a_new_client_is_welcomed_without_a_session(broker: Broker, version: int) -> None:
    client = broker.dial(version)
    client.send(Connect(client.client_id))
    client.expect(Connack(0, session_present=False))


@pytest.mark.parametrize("client_id", ["a", "0123456789abcdefghijABC", "x" * 200, "Küstenseeschwalbe", "a/b c.d"])
def test_client_ids_of_many_shapes_are_accepted(broker: Broker, version: int, client_id: str) -> None:
    """[MQTT-3.1.3-5] asks for 1 to 23 letters and digits; more is allowed, and expected."""
    assert broker.join(version, client_id).connack == Connack(0)


def test_an_empty_client_id_with_a_clean_session_is_accepted(broker: Broker, version: int) -> None:
    """[MQTT-3.1.3-6], and two such clients are two clients."""
    first, second = broker.join(version, ""), broker.join(version, "")
    first.expect_nothing()
    second.expect_nothing()


def test_an_assigned_client_id_is_told_and_unique(broker: Broker) -> None:
    """[MQTT-3.2.2-16]"""
    assigned = [broker.join(5, "").connack.properties["assigned_client_id"] for _ in range(3)]
    assert all(assigned)
    assert len(set(assigned)) == 3


def test_an_assigned_client_id_leads_back_to_its_session(broker: Broker) -> None:
    first = broker.join(5, "", session_expiry=60)
    client_id = first.connack.properties["assigned_client_id"]
    first.leave()
    assert broker.resume(5, client_id).connack == Connack(0, session_present=True)


def test_a_client_id_of_its_own_is_not_assigned_another(broker: Broker) -> None:
    assert "assigned_client_id" not in broker.join().connack.properties


def test_an_empty_client_id_cannot_ask_for_a_session(broker: Broker) -> None:
    """[MQTT-3.1.3-8] of 3.1.1: CONNACK 0x02, then close."""
    client = broker.dial(4, "")
    client.send(Connect("", clean=False))
    client.expect(Connack(0x02))
    client.expect_close()


def test_a_ping_is_answered(broker: Broker, version: int) -> None:
    """[MQTT-3.12.4-1]"""
    client = broker.join(version)
    for _ in range(3):
        client.send(Pingreq())
        client.expect(Pingresp())


def test_disconnect_is_answered_by_closing(broker: Broker, version: int) -> None:
    """Section 3.14.4: nothing is said, the connection ends."""
    client = broker.join(version)
    client.send(Disconnect())
    with pytest.raises(EOFError):
        client.receive()


def test_packets_sent_right_behind_connect_are_served(broker: Broker, version: int, topic: str) -> None:
    """Section 3.1.4: a client need not wait for CONNACK."""
    client = broker.dial(version)
    client.send(
        Connect(client.client_id), Subscribe(1, [(topic, 0)]), Publish(topic, b"early", qos=1, packet_id=2), Pingreq()
    )
    client.expect(Connack(0))
    client.expect(Suback(1, [0]))
    assert client.wait_for(Puback) == Puback(2)
    assert client.wait_for(Publish) == Publish(topic, b"early")
    client.expect(Pingresp())


def test_packets_may_arrive_byte_by_byte(broker: Broker, version: int, topic: str) -> None:
    client = broker.dial(version)
    for packet in Connect(client.client_id), Publish(topic, b"slow", qos=1, packet_id=7):
        for byte in packet.encode(version):
            client.send(bytes([byte]))
    client.expect(Connack(0))
    assert client.wait_for(Puback).packet_id == 7


def test_a_client_that_never_says_connect_is_let_go(broker: Broker) -> None:
    """Section 3.1.4: without a CONNECT within a reasonable time, the server SHOULD close;
    [MQTT-3.14.0-1]: without DISCONNECT."""
    assert broker.dial().receive_bytes() == b""


def test_nothing_the_server_can_do_is_denied_in_connack(broker: Broker) -> None:
    """Section 3.2.2.3: absent means available, QoS 2 and no limit lower than what the standard names."""
    told = broker.join().connack.properties
    assert "maximum_qos" not in told
    for feature in "retain_available", "wildcard_available", "subscription_id_available", "shared_available":
        assert told.get(feature, 1) == 1
    assert told.get("receive_maximum", 65535) > 0
    assert told.get("maximum_packet_size", 1) > 0


def test_response_information_is_not_sent_unasked(broker: Broker) -> None:
    """[MQTT-3.1.2-28]"""
    assert "response_information" not in broker.join(request_response_information=0).connack.properties


def test_a_client_that_wants_no_explanations_gets_none(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-29]: with Request Problem Information 0, reasons only on PUBLISH, CONNACK and DISCONNECT."""
    client = broker.join(request_problem_information=0)
    client.send(Publish(topic, qos=1, packet_id=1), Subscribe(2, [(topic, 1)]))
    for properties in client.wait_for(Puback).properties, client.wait_for(Suback).properties:
        assert not {"reason_string", "user_property"} & properties.keys()


def test_an_unknown_authentication_method_is_refused(broker: Broker) -> None:
    """[MQTT-4.12.0-1]: CONNACK 0x8C (or 0x87), then close."""
    client = broker.dial()
    client.send(Connect(client.client_id, properties={"authentication_method": "semaphore flags"}))
    refusal = client.wait_for(Connack)
    assert refusal.code in (0x8C, 0x87)
    client.expect_close()


def test_auth_without_an_authentication_method_is_a_protocol_error(broker: Broker) -> None:
    """[MQTT-4.12.0-7]: a client that named no method in CONNECT must not send AUTH."""
    client = broker.join()
    client.send(Auth(0x19, {"authentication_method": "semaphore flags"}))
    client.expect_close(0x82)


def test_user_properties_in_connect_and_disconnect_are_taken(broker: Broker) -> None:
    client = broker.join(user_property=[("who", "tern"), ("who", "gull"), ("", "")])
    client.leave(0, user_property=[("why", "winter")], reason_string="flying south")
    assert client.connack == Connack(0)
