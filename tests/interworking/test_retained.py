"""Retained values that either side sets, changes and clears during an outage: both sides end with the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.interworking.attachment import Attachment
from sterna.mqtt.message import Message
from sterna.simulation.foreign_broker import KINDS, ForeignBroker, ModelMessage
from sterna.simulation.network import Path
from sterna.vocabulary.identity import Identity

#: Brokers that show what they retain; RabbitMQ does not, to a subscription with a wildcard.
SHOWING = sorted(kind for kind, quirks in KINDS.items() if quirks.retained_for_wildcards)


def set_here(scene: Scene, topic: bytes, payload: bytes, qos: int = 1) -> None:
    """Somebody in the network does."""
    running = scene.machines[0].running
    assert running is not None
    broker = running.broker
    stamp = broker.retained.stamp(topic, broker.clock.wall)
    running.work(broker.ingress.publish, Message(topic, payload, qos, True, publisher=b"somebody", received_at=stamp))


def here(scene: Scene, topic: bytes) -> bytes:
    running = scene.machines[0].running
    assert running is not None
    found = running.broker.retained.get(topic)
    return b"" if found is None else found.payload


def there(scene: Scene, topic: bytes) -> bytes:
    found = scene.brokers[0].retained.get(topic)
    return b"" if found is None else found.payload


def set_there(scene: Scene, topic: bytes, payload: bytes, qos: int = 1) -> None:
    scene.brokers[0].publish(topic, payload, qos, retain=True)


def cut_off(scene: Scene) -> Callable[[], None]:
    """The two do not hear each other until the answer is called."""
    heal = scene.world.network.partition([["node0"], ["broker0"]])
    scene.world.network.sever("node0", "broker0", silently=False)
    scene.run(0.1)
    return heal


def conflicts(scene: Scene) -> int:
    return scene.attachment().counters.held_back["retained-conflict"]


@pytest.mark.parametrize("kind", SHOWING)
def test_values_that_one_side_changed_during_an_outage_reach_the_other_and_conflicts_are_counted(kind: str) -> None:
    scene = Scene(replace(KINDS[kind], forgets=False), settings=replace(SETTINGS, retained_s=5.0))
    scene.begin()
    for topic in (b"t/theirs-changed", b"t/theirs-cleared", b"t/theirs-changed-at-0", b"t/both"):
        set_there(scene, topic, b"old")
    for topic in (b"t/ours-changed", b"t/ours-cleared", b"t/ours-changed-at-0"):
        set_here(scene, topic, b"old")
    scene.wait(lambda: here(scene, b"t/both") == b"old" == there(scene, b"t/ours-changed-at-0"))
    scene.run(10.0)
    heal = cut_off(scene)
    set_there(scene, b"t/theirs-changed", b"new")
    set_there(scene, b"t/theirs-cleared", b"")
    set_there(scene, b"t/theirs-changed-at-0", b"new", 0)
    set_there(scene, b"t/theirs-set", b"new")
    set_there(scene, b"t/both", b"theirs")
    set_here(scene, b"t/ours-changed", b"new")
    set_here(scene, b"t/ours-cleared", b"")
    set_here(scene, b"t/ours-changed-at-0", b"new", 0)
    set_here(scene, b"t/ours-set", b"new")
    set_here(scene, b"t/both", b"ours")
    scene.run(5.0)
    heal()
    scene.wait(scene.is_attached)
    scene.run(SETTINGS.fence_s)
    wanted = dict.fromkeys(
        (b"t/theirs-changed", b"t/theirs-set", b"t/theirs-changed-at-0", b"t/ours-changed", b"t/ours-set"), b"new"
    )
    wanted |= {b"t/ours-changed-at-0": b"new", b"t/theirs-cleared": b"", b"t/ours-cleared": b""}
    found = {topic: (here(scene, topic), there(scene, topic)) for topic in wanted}
    assert found == {topic: (value, value) for topic, value in wanted.items()}
    assert here(scene, b"t/both") == there(scene, b"t/both") in (b"ours", b"theirs")
    assert conflicts(scene) == 1
    named = [fields for event, fields in scene.world_of().reports if event == "retained messages conflict"]
    assert [fields["topics"] for fields in named] == [["t/both"]]
    scene.run(20.0)
    assert {topic: (here(scene, topic), there(scene, topic)) for topic in wanted} == found, "it goes on"
    assert conflicts(scene) == 1


@pytest.mark.parametrize("kind", SHOWING)
def test_a_broker_that_lost_everything_gets_the_network_s_values_and_keeps_what_is_new_there(kind: str) -> None:
    scene = Scene(KINDS[kind])
    scene.begin()
    set_here(scene, b"t/ours", b"value")
    set_there(scene, b"t/theirs", b"value")
    scene.wait(lambda: there(scene, b"t/ours") == b"value")
    scene.run(3.0)
    scene.brokers[0].kill(forgets=True)
    scene.run(1.0)
    set_here(scene, b"t/ours", b"newer")
    scene.brokers[0].boot()
    set_there(scene, b"t/theirs", b"newer")
    scene.settle()
    assert there(scene, b"t/ours") == here(scene, b"t/ours") == b"newer"
    assert there(scene, b"t/theirs") == here(scene, b"t/theirs") == b"newer"
    assert scene.heard_here().count("newer") == 2, "subscribers are told what they missed"


@pytest.mark.parametrize("kind", SHOWING)
def test_values_of_the_broker_that_changed_while_the_node_was_down_are_taken(kind: str) -> None:
    scene = Scene(replace(KINDS[kind], forgets=False))
    scene.begin()
    set_there(scene, b"t/x", b"old")
    scene.run(3.0)
    scene.machines[0].kill()
    set_there(scene, b"t/x", b"new", 0)
    scene.machines[0].boot()
    scene.settle()
    assert here(scene, b"t/x") == there(scene, b"t/x") == b"new"
    assert conflicts(scene) == 0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_message_that_comes_late_is_not_retained_there_in_the_place_of_a_newer_one(kind: str) -> None:
    """It was published elsewhere in the network before, and took a longer way."""
    scene = Scene(KINDS[kind])
    scene.begin()
    running = scene.machines[0].running
    assert running is not None
    before = running.broker.clock.wall
    scene.run(1.0)
    set_here(scene, b"t/x", b"newer")
    scene.wait(lambda: there(scene, b"t/x") == b"newer")
    late = Message(b"t/x", b"older", 1, True, publisher=b"somebody", received_at=before)
    late.identity = Identity("node1", 0, 1)
    running.work(running.broker.ingress.publish, late)
    scene.wait(lambda: b"older" in scene.brokers[0].payloads(b"t/x"))
    assert there(scene, b"t/x") == b"newer"
    scene.settle()
    assert here(scene, b"t/x") == there(scene, b"t/x") == b"newer"


@pytest.mark.parametrize("kind", SHOWING)
def test_a_value_that_went_into_a_dead_connection_is_not_taken_for_one_that_the_broker_has(kind: str) -> None:
    """The values are read on another connection, which lives."""
    scene = Scene(replace(KINDS[kind], forgets=False), settings=replace(SETTINGS, retained_s=1.0))
    scene.begin()
    set_here(scene, b"t/x", b"old")
    scene.wait(lambda: there(scene, b"t/x") == b"old")
    scene.run(3.0)
    for session in list(scene.brokers[0].sessions.values()):
        if session.wire is not None:
            session.wire._end.sever(silently=True)
    set_here(scene, b"t/x", b"new")
    scene.run(10.0)
    assert here(scene, b"t/x") == b"new"
    scene.wait(lambda: there(scene, b"t/x") == b"new")


def test_a_value_that_is_read_when_the_session_was_lost_does_not_go_back() -> None:
    """Nor after a crash of the node, which forgets what it has read."""
    scene = Scene(replace(KINDS["ejabberd"], forgets=True))
    scene.begin()
    scene.brokers[0].kill()
    scene.run(1.0)
    scene.brokers[0].boot()
    set_there(scene, b"t/x", b"one", 2)
    scene.wait(lambda: here(scene, b"t/x") == b"one")
    set_there(scene, b"t/x", b"two", 2)
    scene.machines[0].kill()
    scene.machines[0].boot()
    scene.settle()
    assert scene.brokers[0].payloads(b"t/x") == [b"one", b"two"]


@pytest.mark.parametrize("moment", range(12))
@pytest.mark.parametrize("kind", SHOWING)
def test_a_value_that_is_set_while_the_node_joins_comes_once(kind: str, moment: int) -> None:
    """It comes as a message, for the node has subscribed, and is read as a value, too."""
    scene = Scene(KINDS[kind])
    scene.begin(attached=False)
    scene.wait(lambda: any(session.lasting for session in scene.brokers[0].sessions.values()))
    scene.run(0.003 * moment)
    set_there(scene, b"t/x", b"value", 2)
    scene.settle()
    assert scene.heard_here() == ["value"]


def test_values_that_cross_end_the_same_on_both_sides() -> None:
    """Each is sent before the other comes: without a further word each side would end with the other's."""
    for number in range(10):
        scene = Scene(KINDS["mosquitto"], seed=number)
        scene.begin()
        for word in range(20):
            set_there(scene, b"t/x", b"theirs %d" % word, 2)
            set_here(scene, b"t/x", b"ours %d" % word, 2)
            scene.run(0.002)
        scene.run(5 * SETTINGS.fence_s)
        assert here(scene, b"t/x") == there(scene, b"t/x"), f"seed {number}"


def test_a_broker_of_plain_3_1_1_that_does_not_say_what_is_retained_is_read_again_and_again() -> None:
    scene = Scene(KINDS["nats"], settings=replace(SETTINGS, retained_s=2.0))
    scene.begin()
    set_there(scene, b"t/x", b"value")
    scene.wait(lambda: "value" in scene.heard_here())
    scene.wait(lambda: here(scene, b"t/x") == b"value")
    assert scene.heard_here().count("value") == 1, "subscribers had it"
    set_there(scene, b"t/x", b"")
    scene.wait(lambda: here(scene, b"t/x") == b"")
    assert there(scene, b"t/x") == b""


def test_a_value_comes_once_though_the_node_stops_before_its_subscription_is_confirmed() -> None:
    """The broker keeps a copy for the session, which looks like a live message.  A bridge has read the value already,
    and its network has it."""
    scene = Scene(replace(KINDS["aedes"], forgets=False))
    network, broker, machine = scene.world.network, scene.brokers[0], scene.machines[0]
    network.set_path("node0", "broker0", Path(0.02, 0.0))
    scene.begin()
    broker.kill(forgets=True)
    scene.wait(lambda: not scene.is_attached())
    broker.boot()
    broker.publish(b"t/kept", b"value", 2, retain=True)
    while not _subscribes(scene.attachment()):
        scene.run(0.001)
    assert scene.heard_here() == ["value"]
    assert not _subscribed(broker)
    heal = network.partition([["node0"], ["broker0"]])  # its SUBSCRIBE is under way
    machine.shut_down()
    scene.wait(lambda: machine.running is None)
    heal()
    scene.wait(lambda: _subscribed(broker))
    broker.publish(b"t/kept", b"later", 2, retain=True)
    machine.boot()
    scene.settle()
    assert scene.heard_here() == ["value", "later"]


def _subscribes(attachment: Attachment) -> bool:
    return attachment._joint is not None and attachment._joint.awaits_stored


def _subscribed(broker: ForeignBroker) -> bool:
    return any(session.filters for session in broker.sessions.values() if session.lasting)


@pytest.mark.parametrize("kind", ["nats", "amqtt"])
def test_a_value_that_the_broker_lacked_does_not_take_the_place_of_one_that_came_before_it_was_sent(kind: str) -> None:
    """Plain 3.1.1 shows no flag of a live message; what the broker has is not known until it is read again."""
    scene = Scene(replace(KINDS[kind], forgets=False), settings=replace(SETTINGS, retained_s=2.0))
    scene.begin()
    broker, publisher = scene.brokers[0], scene.publishers[0]
    topics = {b"t/one", b"t/other"}
    for topic in topics:
        publisher.publish(topic, 1, retain=True)
    scene.settle()
    second: list[bytes] = []

    def heard(message: ModelMessage) -> None:
        if message.topic in topics and not second:
            second.extend(topics - {message.topic})
            broker.publish(second[0], b"theirs", 1, retain=True)

    broker.kill()
    broker.retained.clear()
    broker.on_heard = heard
    broker.boot()
    scene.wait(lambda: bool(second))
    scene.run(10.0)
    assert there(scene, second[0]) == here(scene, second[0]) == b"theirs"
