"""Retained values that either side sets, changes and clears during an outage: both sides end with the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.mqtt.message import Message
from sterna.simulation.foreign_broker import KINDS

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
