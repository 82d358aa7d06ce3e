"""A node serves clients of a foreign broker itself where that cannot: groups over brokers, expressions, MQTT 5."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.interworking.states import State
from sterna.simulation.clients import Client, Habits
from sterna.simulation.foreign_broker import KINDS, Quirks
from sterna.simulation.membership import NETWORK
from sterna.simulation.relays import RELAY_PORT

PLAIN = KINDS["nats"]


class ExtrasScene(Scene):
    def __init__(self, *quirks: Quirks, seed: int = 1, extras: bool = True, brokers: list[int] | None = None) -> None:
        settings = replace(SETTINGS, mode="proxy", extras=extras)
        super().__init__(*quirks, settings=settings, seed=seed, brokers=brokers)

    def relayed(self, name: str, place: int, habits: Habits) -> Client:
        address = f"node{place}:{RELAY_PORT}"
        client = Client(self.world.network, name, address, self.world.records, habits, NETWORK)
        client.come()
        self.wait(lambda: client.is_welcome)
        return client

    def subscribe(self, client: Client, topic_filter: bytes, qos: int = 2) -> None:
        client.subscribe(topic_filter, qos)
        self.wait(lambda: not client.is_asking)

    def heard(self, *clients: Client) -> list[str]:
        arrivals = self.world.records.arrivals
        return [arrival.identity for client in clients for arrival in arrivals.get(client.name, [])]

    def publish(self, client: Client, topic: bytes, qos: int) -> None:
        client.publish(topic, qos)
        self.wait(lambda: not client.unfinished)


def test_mqtt_5_in_front_of_a_broker_of_3_1_1_is_served_by_the_node() -> None:
    scene = ExtrasScene(PLAIN, PLAIN)
    scene.begin()
    modern = scene.relayed("modern", 0, Habits(version=5, will=(b"t/will", 1)))
    plain = scene.relayed("plain", 0, Habits(version=4))
    for client in (modern, plain):
        scene.subscribe(client, b"t/#")
    for qos in (1, 2):
        scene.publish(modern, b"t/m%d" % qos, qos)
        scene.publish(plain, b"t/p%d" % qos, qos)
        scene.brokers[0].publish(b"t/b%d" % qos, b"b%d" % qos, qos)
    scene.run(5.0)
    wanted = {"modern/1", "modern/2", "plain/1", "plain/2", "b1", "b2"}
    for client in (modern, plain):
        assert sorted(scene.heard(client)) == sorted(wanted)
    assert set(scene.heard_here(1)) == wanted
    assert b"modern" in scene.brokers[0].sessions, "the broker has let it in"
    modern.leave(politely=False)
    scene.wait(lambda: "modern/will1" in scene.heard(plain))
    scene.run(5.0)
    assert b"modern" not in scene.brokers[0].sessions
    assert scene.heard(plain).count("modern/will1") == 1
    assert not scene.world.records.broken


def test_a_client_of_mqtt_5_stays_when_a_broker_of_3_1_1_is_restarted() -> None:
    scene = ExtrasScene(PLAIN, PLAIN)
    scene.begin()
    modern = scene.relayed("modern", 0, Habits(version=5))
    scene.subscribe(modern, b"t/#")
    conversation = modern.conversation
    scene.brokers[0].kill(forgets=True)
    scene.run(3.0)
    modern.publish(b"t/x", 2)
    scene.brokers[0].boot()
    scene.settle()
    scene.wait(lambda: "modern/1" in scene.heard_there(0))
    assert modern.conversation is conversation, "it was not disconnected"
    assert scene.heard(modern) == ["modern/1"]


def test_a_group_with_members_at_several_brokers_gets_each_message_once() -> None:
    scene = ExtrasScene(PLAIN, KINDS["mosquitto"])
    scene.begin()
    members = [
        scene.relayed(f"m{place}{version}", place, Habits(version=version))
        for place, version in ((0, 4), (0, 5), (1, 4), (1, 5))
    ]
    for member in members:
        scene.subscribe(member, b"$share/crew/t/#")
    source = scene.relayed("source", 0, Habits(version=4))
    for number in range(40):
        source.publish(b"t/%d" % (number % 4), 1 + number % 2)
    scene.wait(lambda: not source.unfinished)
    scene.settle()
    counts = Counter(scene.heard(*members))
    assert counts == {f"source/{number}": 1 for number in range(1, 41)}
    assert sum(bool(scene.heard(member)) for member in members) > 1
    assert not scene.world.records.broken


@pytest.mark.parametrize("version", [4, 5])
def test_packet_identifiers_of_the_broker_and_of_the_node_meet_and_nothing_is_lost(version: int) -> None:
    """The broker counts up to where those of the node, mirrored, come down."""
    scene = ExtrasScene(KINDS["mosquitto"])
    scene.begin()
    both = scene.relayed("both", 0, Habits(version=version, acknowledge_s=0.3, receive_maximum=1000))
    scene.subscribe(both, b"t/#")
    scene.subscribe(both, b"$share/crew/t/#")
    scene.brokers[0].sessions[b"both"].next_id = 65520
    source = scene.relayed("source", 0, Habits(version=4))
    for number in range(60):
        source.publish(b"t/x", 1 + number % 2)
    scene.wait(lambda: not source.unfinished)
    scene.wait(lambda: not both.unfinished)
    scene.settle()
    scene.run(30.0)
    counts = Counter(scene.heard(both))
    assert counts == {f"source/{number}": 2 for number in range(1, 61)}, "once by each subscription"
    assert not scene.world.records.broken


def test_the_broker_and_the_node_together_send_no_more_at_once_than_the_client_takes() -> None:
    scene = ExtrasScene(KINDS["mosquitto"])
    scene.begin()
    slow = scene.relayed("slow", 0, Habits(version=5, acknowledge_s=0.3, receive_maximum=20))
    scene.subscribe(slow, b"t/#")
    scene.subscribe(slow, b"$share/crew/t/#")
    source = scene.relayed("source", 0, Habits(version=4, window=20))
    for number in range(18):
        source.publish(b"t/x", 1 + number % 2)
    scene.wait(lambda: len(scene.heard(slow)) == 36)
    scene.settle()
    assert not scene.world.records.broken


@pytest.mark.parametrize("version", [4, 5])
def test_a_companion_lasts_as_long_as_the_session_of_its_client(version: int) -> None:
    scene = ExtrasScene(KINDS["mosquitto"])
    scene.begin()
    lasting = scene.relayed("lasting", 0, Habits(version=version))
    passing = scene.relayed("passing", 0, Habits(version=version, persistent=False))
    for client in (lasting, passing):
        scene.subscribe(client, b"$share/%s/t/#" % client.name.encode())
        client.leave(politely=True)
    scene.run(1.0)
    source = scene.relayed("source", 0, Habits(version=4))
    scene.publish(source, b"t/x", 2)
    running = scene.machines[0].running
    assert running is not None
    companions = [name for name in running.broker.sessions if name.startswith(b"$relayed/")]
    assert companions == [b"$relayed/node0/lasting"]
    scene.machines[0].kill()
    scene.run(0.5)
    scene.machines[0].boot()
    lasting.come()
    scene.wait(lambda: scene.heard(lasting) == ["source/1"])
    scene.run(5.0)
    assert scene.heard(lasting) == ["source/1"]
    assert not scene.world.records.broken


def test_an_expression_computes_over_messages_of_all_brokers() -> None:
    scene = ExtrasScene(PLAIN, PLAIN)
    scene.begin()
    meter = scene.relayed("meter", 0, Habits(version=4))
    scene.subscribe(meter, b"$SUM/weight/+")
    for place in (0, 1):
        scene.brokers[place].publish(b"weight/%d" % place, b"%d" % (place + 1), 1)
    scene.wait(lambda: any(word.startswith("3") for word in scene.heard(meter)))


@pytest.mark.parametrize("version", [4, 5])
def test_messages_that_waited_for_a_broker_reach_clients_whom_it_has_forgotten(version: int) -> None:
    scene = ExtrasScene(KINDS["mosquitto"], extras=False)
    scene.begin()
    readers = [
        scene.relayed(f"{name}", 0, Habits(version=version, persistent=name == "lasting"))
        for name in ("lasting", "passing")
    ]
    for reader in readers:
        scene.subscribe(reader, b"t/#")
    scene.brokers[0].kill(forgets=True)
    for qos in (1, 2, 1, 2):
        scene.publishers[0].publish(b"t/x", qos)
    scene.run(3.0)
    scene.brokers[0].boot()
    scene.settle()
    for reader in readers:
        assert Counter(scene.heard(reader)) == {f"node0p/{number}": 1 for number in range(1, 5)}


def test_two_nodes_before_the_same_broker_both_relay_and_one_hears_for_both() -> None:
    scene = ExtrasScene(KINDS["mosquitto"], extras=False, brokers=[0, 0])
    scene.begin(attached=False)
    scene.wait(lambda: scene.attachment(1).state == State.STANDING_BY)
    clients = [scene.relayed(f"c{place}", place, Habits(version=4)) for place in (0, 1)]
    for client in clients:
        scene.subscribe(client, b"t/#")
    for client in (*clients, *scene.publishers):
        for qos in (1, 2):
            scene.publish(client, b"t/x", qos)
    scene.run(5.0)
    wanted = {f"{name}/{number}": 1 for name in ("c0", "c1", "node0p", "node1p") for number in (1, 2)}
    for client in (*clients, *scene.subscribers):
        assert Counter(scene.heard(client)) == wanted, client.name
    scene.machines[0].kill()
    scene.wait(lambda: scene.attachment(1).state == State.ATTACHED)
    scene.publish(clients[1], b"t/x", 2)
    scene.run(5.0)
    assert scene.heard(scene.subscribers[1]).count("c1/3") == 1
