"""MQTT 3.1, which is 3.1.1 with another name and fewer rules; and the bridge bit, by which bridges of Mosquitto's kind
ask for No Local and Retain As Published in 3.1 and 3.1.1."""

from __future__ import annotations

import pytest

from .client import Client
from .packets import (
    Connack,
    Connect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Will,
    frame,
)
from .peer import Broker, new_client_id
from .properties import text, u16

MQTT_3_1 = ("MQIsdp", 3)
BRIDGE = 0x80
BRIDGES = {"v3.1": ("MQIsdp", 3 | BRIDGE), "v3.1.1": ("MQTT", 4 | BRIDGE)}


def join(
    broker: Broker,
    protocol: tuple[str, int],
    client_id: str | None = None,
    clean: bool = True,
    will: Will | None = None,
) -> Client:
    client = broker.dial(4, client_id)
    client.connect(Connect(client.client_id, clean, will=will, protocol=protocol))
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_of_3_1_publishes_and_is_served(broker: Broker, topic: str, qos: int) -> None:
    old, new = join(broker, MQTT_3_1), broker.join(5)
    assert old.subscribe(topic, qos) == qos
    new.subscribe(topic, qos)
    old.publish(topic, b"of the old one", qos=qos)
    new.publish(topic, b"of the new one", qos=qos)
    for client in old, new:
        assert [message.payload for message in client.messages(2)] == [b"of the old one", b"of the new one"]
    old.unsubscribe(topic)
    new.publish(topic, b"not for the old one", qos=qos)
    old.expect_nothing()


def test_a_session_of_3_1_is_kept_and_not_spoken_of(broker: Broker, topic: str, client_id: str) -> None:
    """The place of Session Present is reserved in 3.1."""
    first = join(broker, MQTT_3_1, client_id, clean=False)
    first.subscribe(topic, 1)
    first.leave()
    broker.join().publish(topic, b"waiting", qos=1)
    again = join(broker, MQTT_3_1, client_id, clean=False)
    assert again.connack == Connack(0, session_present=False)
    assert [message.payload for message in again.messages(1)] == [b"waiting"]
    again.leave()
    clean = join(broker, MQTT_3_1, client_id)
    clean.leave()
    assert broker.resume(4, client_id).connack == Connack(0, session_present=False)


def test_a_client_of_3_1_has_to_name_itself(broker: Broker) -> None:
    """Section 3.1 of 3.1: return code 2, identifier rejected."""
    client = broker.dial(4, "")
    client.send(Connect("", protocol=MQTT_3_1))
    client.expect(Connack(0x02))
    client.expect_close()


def test_client_ids_of_3_1_may_be_longer_than_23_characters(broker: Broker) -> None:
    """As everybody has allowed since."""
    join(broker, MQTT_3_1, "x" * 64).expect_nothing()


def test_the_will_of_a_client_of_3_1_is_published(broker: Broker, topic: str) -> None:
    watcher = broker.join()
    watcher.subscribe(topic, 1)
    join(broker, MQTT_3_1, will=Will(topic, b"gone", 1)).drop()
    assert watcher.messages(1) == [Publish(topic, b"gone", qos=1)]


def test_what_a_client_of_3_1_announces_may_be_missing(broker: Broker) -> None:
    """Section 3.1 of 3.1: the remaining length takes precedence over the user name and password flags."""
    client = broker.dial(4)
    client.send(frame(0x10, text("MQIsdp") + b"\x03\xc2" + u16(60) + text(client.client_id)))
    client.expect(Connack(0))


def test_requests_of_3_1_may_be_marked_as_repeated(broker: Broker, topic: str) -> None:
    """Section 2.1 of 3.1: DUP of PUBREL, SUBSCRIBE and UNSUBSCRIBE."""
    client = join(broker, MQTT_3_1)
    client.send(frame(0x8A, u16(1) + text(topic) + b"\x01"))
    client.expect(Suback(1, [1]))
    client.send(Publish(topic + "/else", b"x", qos=2, packet_id=2))
    client.expect(Pubrec(2))
    client.send(frame(0x6A, u16(2)))
    client.expect(Pubcomp(2))
    client.send(frame(0xAA, u16(3) + text(topic)))
    client.expect(Unsuback(3, []))


def test_repeated_requests_stay_malformed_in_3_1_1(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.1-1]"""
    client = broker.join(4)
    client.send(frame(0x8A, u16(1) + text(topic) + b"\x01"), Pingreq())
    client.expect_close()


@pytest.mark.parametrize("protocol", [("MQIsdp", 4), ("MQTT", 3), ("MQTT", 6 | BRIDGE)], ids=str)
def test_other_names_and_levels_are_refused_in_the_old_form(broker: Broker, protocol: tuple[str, int]) -> None:
    """Bridges fall back to another level on this answer only."""
    client = broker.dial(4)
    client.send(Connect("visitor", protocol=protocol))
    client.expect(Connack(0x01))
    client.expect_close()


@pytest.mark.parametrize("protocol", BRIDGES.values(), ids=BRIDGES)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_bridge_gets_nothing_of_its_own_back(broker: Broker, topic: str, protocol: tuple[str, int], qos: int) -> None:
    bridge, other = join(broker, protocol), broker.join(4)
    bridge.subscribe(f"{topic}/#", qos)
    other.subscribe(f"{topic}/#", qos)
    bridge.publish(f"{topic}/a", b"of the bridge", qos=qos)
    other.publish(f"{topic}/a", b"for the bridge", qos=qos)
    assert [message.payload for message in bridge.messages(1)] == [b"for the bridge"]
    bridge.expect_nothing()
    assert [message.payload for message in other.messages(2)] == [b"of the bridge", b"for the bridge"]


@pytest.mark.parametrize("protocol", BRIDGES.values(), ids=BRIDGES)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_bridge_learns_what_is_to_be_retained(
    broker: Broker, topic: str, protocol: tuple[str, int], qos: int
) -> None:
    bridge, plain, publisher = join(broker, protocol), broker.join(4), broker.join(4)
    bridge.subscribe(topic, qos)
    plain.subscribe(topic, qos)
    publisher.publish(topic, b"kept", qos=qos, retain=True)
    publisher.publish(topic, b"not kept", qos=qos)
    assert [message.retain for message in bridge.messages(2)] == [True, False]
    assert [message.retain for message in plain.messages(2)] == [False, False]


def test_a_bridge_may_be_a_member_of_a_group(broker: Broker, topic: str) -> None:
    """No Local on a shared subscription would be a protocol error in 5.0; nobody asked for it in so many words."""
    bridge = join(broker, BRIDGES["v3.1.1"])
    assert bridge.subscribe(f"$share/group/{topic}", 1) == 1
    broker.join().publish(topic, b"x", qos=1)
    assert [message.payload for message in bridge.messages(1)] == [b"x"]


def test_a_bridges_wishes_outlive_its_connection(broker: Broker, topic: str, client_id: str) -> None:
    bridge = join(broker, BRIDGES["v3.1.1"], client_id, clean=False)
    bridge.subscribe(topic, 1)
    bridge.leave()
    broker.join(4).publish(topic, b"kept", qos=1, retain=True)
    again = join(broker, BRIDGES["v3.1.1"], client_id, clean=False)
    assert again.connack == Connack(0, session_present=True)
    assert [(message.payload, message.retain) for message in again.messages(1)] == [(b"kept", True)]


def state_of(name: str) -> str:
    return f"$SYS/broker/connection/{name}/state"


@pytest.mark.parametrize("protocol", [*BRIDGES.values(), ("MQTT", 4)], ids=[*BRIDGES, "plain v3.1.1"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_bridges_state_is_to_be_read_where_it_says_it(broker: Broker, protocol: tuple[str, int], qos: int) -> None:
    """Mosquitto's `notifications`: 1 when it has come, 0 as its will."""
    name = new_client_id()
    bridge = join(broker, protocol, name, will=Will(state_of(name), b"0", 1, retain=True))
    watcher = broker.join(4)
    watcher.subscribe("$SYS/broker/connection/#")
    bridge.publish(state_of(name), b"1", qos=qos, retain=True)
    states = _states(watcher, state_of(name), 1)
    bridge.drop()
    states += _states(watcher, state_of(name), 1)
    assert states == [b"1", b"0"]
    late = broker.join(4)
    late.subscribe(state_of(name))
    message = late.wait_for(Publish)
    assert (message.payload, message.retain) == (b"0", True)
    # And anybody who may write it may take it away.
    broker.join(4).publish(state_of(name), b"", qos=1, retain=True)
    later = broker.join(4)
    later.subscribe(state_of(name))
    later.expect_nothing()


def _states(watcher: Client, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = watcher.wait_for(Publish)
        found += [message.payload] if message.topic == topic else []
    return found


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("$SYS/broker/connection/x/y/state", b"1"),
        ("$SYS/broker/connection//state", b"1"),
        ("$SYS/broker/connection/state", b"1"),
        ("$SYS/broker/connection/x/status", b"1"),
        ("$SYS/broker/clients/connected", b"-1"),
        ("$SYS/broker/connection/x/state", b"2"),
        ("$SYS/broker/connection/x/state", b"11"),
        ("$SYS/broker/connection/x/state", b"x" * 1000),
    ],
)
def test_nothing_else_is_written_to_sys(broker: Broker, topic: str, payload: bytes) -> None:
    client = broker.join(5)
    assert client.publish(topic, payload, qos=1, retain=True) == 0x87
    watcher = broker.join(5)
    watcher.subscribe(topic)
    assert payload not in [message.payload for message in watcher.waiting_messages()]
    refused = broker.dial(5)
    refused.send(Connect(refused.client_id, will=Will(topic, payload)))
    refused.expect_refusal(0x87)


def test_the_states_of_bridges_are_bounded(broker: Broker) -> None:
    client = broker.join(5)
    names = [new_client_id() for _ in range(1010)]
    try:
        codes = [client.publish(state_of(name), b"1", qos=1, retain=True) for name in names]
        assert codes[0] == 0
        assert codes[-1] == 0x97
        assert client.publish(state_of(names[0]), b"0", qos=1, retain=True) == 0
    finally:
        for name in names:
            client.publish(state_of(name), b"", qos=1, retain=True)


def test_a_subscription_asked_for_in_3_1_can_be_refused(broker: Broker) -> None:
    """3.1 had no word for it; Mosquitto sends 0x80 all the same, and so do we."""
    client = join(broker, MQTT_3_1)
    client.send(Subscribe(1, [("a/" * 200, 0), ("b", 1)]))
    client.expect(Suback(1, [0x80, 1]))
    client.send(Publish("b", b"x", qos=1, packet_id=2))
    assert client.wait_for(Puback) == Puback(2)
    client.send(Pubrel(9))
    assert client.wait_for(Pubcomp) == Pubcomp(9)
