"""An attachment without faults: every broker that was measured is examined rightly, and messages go over once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.interworking.states import State
from sterna.simulation.disk import Disk
from sterna.simulation.foreign_broker import KINDS, ModelMessage, Quirks
from sterna.simulation.machine import SimulatedMachine

WAYS = {
    "mosquitto": "No Local and identity",
    "ejabberd": "No Local and identity",
    "aedes": "bridge bit",
    "rabbitmq": "expected echoes",
    "nats": "expected echoes",
    "amqtt": "expected echoes",
    "activemq": "expected echoes",
}


@pytest.mark.parametrize("kind", KINDS)
def test_abilities_are_found_by_asking(kind: str) -> None:
    scene = Scene(KINDS[kind])
    scene.begin()
    abilities = scene.attachment().abilities
    quirks = KINDS[kind]
    assert abilities is not None
    assert abilities.loop_prevention == WAYS[kind]
    assert abilities.qos == quirks.qos
    if WAYS[kind] != "bridge bit":  # a bridge does not hear itself
        assert abilities.copies == (2 if abilities.version in quirks.copies else 1)
        assert abilities.retained_for_wildcards == quirks.retained_for_wildcards
    assert not scene.brokers[0].retained, "the questions left something behind"
    assert len(scene.brokers[0].sessions) == 1, "the questions left a session behind"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_messages_go_over_once_each_way_and_then_it_is_quiet(kind: str, qos: int) -> None:
    scene = Scene(KINDS[kind])
    scene.begin()
    for number in range(10):
        scene.publishers[0].publish(b"t/here", qos)
        scene.brokers[0].publish(b"t/there", b"there/%d" % number, qos)
        scene.run(0.1)
    scene.settle()
    ours, theirs = [f"node0p/{number}" for number in range(1, 11)], [f"there/{number}" for number in range(10)]
    assert Counter(scene.heard_here()) == Counter(ours + theirs)
    assert Counter(scene.heard_there()) == Counter(ours + theirs)
    assert [word for word in scene.heard_here() if word in theirs] == theirs
    assert [word for word in scene.heard_there() if word in ours] == ours
    before = scene.attachment().view()
    scene.run(10.0)
    after = scene.attachment().view()
    assert (after["taken"], after["injected"]) == (before["taken"], before["injected"]) == (10, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_messages_are_all_delivered(kind: str) -> None:
    """Where echoes are expected, equal ones must not be mistaken for each other in number."""
    scene = Scene(KINDS[kind])
    scene.begin()
    for _ in range(5):
        scene.brokers[0].publish(b"t/same", b"same", 1)
        assert scene.machines[0].running is not None
        scene.run(0.01)
    scene.settle()
    assert scene.heard_here().count("same") == 5
    assert scene.heard_there().count("same") == 5


@pytest.mark.parametrize("kind", ["mosquitto", "aedes", "nats"])
def test_retained_values_of_both_sides_are_exchanged_and_the_network_s_stays_where_they_differ(kind: str) -> None:
    scene = Scene(KINDS[kind])
    scene.brokers[0].boot()
    scene.brokers[0].publish(b"t/theirs", b"theirs", 1, retain=True)
    scene.brokers[0].publish(b"node0p/both", b"old", 1, retain=True)
    scene.machines[0].boot()
    scene.publishers[0].come()
    scene.publishers[0].publish(b"t/ours", 1, retain=True)
    scene.publishers[0].publish(b"node0p/both", 1, retain=True)
    scene.wait(lambda: not scene.publishers[0].unfinished)
    scene.begin()
    scene.settle()
    running = scene.machines[0].running
    assert running is not None
    ours = running.broker.retained.get(b"t/theirs")
    assert ours is not None
    assert ours.payload == b"theirs"
    assert scene.brokers[0].retained[b"t/ours"].payload.startswith(b"node0p/1")
    assert scene.brokers[0].retained[b"node0p/both"].payload.startswith(b"node0p/2")
    both = running.broker.retained.get(b"node0p/both")
    assert both is not None
    assert both.payload.startswith(b"node0p/2")
    assert scene.attachment().counters.held_back["retained-conflict"] == 1
    assert scene.brokers[0].payloads(b"t/theirs") == [b"theirs"], "it was sent back"


@pytest.mark.parametrize("kind", ["mosquitto", "ejabberd"])
def test_a_retained_message_that_is_set_after_a_broken_connection_is_no_conflict(kind: str) -> None:
    scene = Scene(replace(KINDS[kind], forgets=False))
    scene.begin()
    scene.brokers[0].publish(b"t/r", b"one", 1, retain=True)
    scene.run(1.0)
    for session in list(scene.brokers[0].sessions.values()):
        if session.wire is not None:
            session.wire.cut()
    scene.run(0.1)
    scene.wait(scene.is_attached)
    scene.brokers[0].publish(b"t/r", b"two", 1, retain=True)
    scene.wait(lambda: scene.heard_here().count("two") == 1)
    running = scene.machines[0].running
    assert running is not None
    kept = running.broker.retained.get(b"t/r")
    assert kept is not None
    assert kept.payload == b"two"
    assert not scene.attachment().counters.held_back["retained-conflict"]


def test_three_brokers_of_different_kinds_are_one_network() -> None:
    scene = Scene(KINDS["mosquitto"], KINDS["nats"], KINDS["aedes"])
    scene.begin()
    for qos in (1, 2):
        for source, broker in enumerate(scene.brokers):
            for number in range(5):
                broker.publish(b"t/%d" % source, b"%d-%d-%d" % (source, qos, number), qos)
                scene.run(0.05)
    scene.settle()
    wanted = Counter(f"{source}-{qos}-{number}" for source in range(3) for qos in (1, 2) for number in range(5))
    for number in range(3):
        assert Counter(scene.heard_there(number)) == wanted, f"broker {number}"
        assert Counter(scene.heard_here(number)) == wanted, f"node {number}"
    before = [scene.attachment(number).view()["taken"] for number in range(3)]
    scene.run(10.0)
    assert [scene.attachment(number).view()["taken"] for number in range(3)] == before == [10, 10, 10]


@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_a_broker_attached_twice_is_served_by_one_node_and_by_the_other_when_that_is_gone(kind: str) -> None:
    scene = Scene(KINDS[kind], brokers=[0, 0])
    scene.begin(attached=False)
    scene.wait(lambda: scene.attachment(1).state == State.STANDING_BY)
    scene.run(5.0)
    assert scene.attachment(0).state == State.ATTACHED
    assert any("attached to the same broker" in reason for reason in scene.reasons(1))
    there = len(scene.heard_there())
    scene.publishers[1].publish(b"t/x", 1)
    scene.brokers[0].publish(b"t/y", b"once", 1)
    scene.run(5.0)
    assert scene.heard_there()[there:].count("once") == 1
    assert scene.heard_there()[there:].count("node1p/1") == 1
    assert [scene.heard_here(number).count("once") for number in (0, 1)] == [1, 1]
    scene.machines[0].kill(power=True)
    scene.wait(lambda: scene.attachment(1).state == State.ATTACHED)
    scene.brokers[0].publish(b"t/y", b"again", 1)
    scene.wait(lambda: scene.heard_here(1).count("again") == 1)


def test_a_broker_that_is_connected_but_dead_is_found_out() -> None:
    scene = Scene(KINDS["mosquitto"])
    scene.begin()
    scene.brokers[0].quirks = replace(scene.brokers[0].quirks, dead=True)
    scene.wait(lambda: any("connected but dead" in reason for reason in scene.reasons()))
    scene.wait(lambda: any("is the broker alive, and may" in reason for reason in scene.reasons()))
    scene.brokers[0].quirks = KINDS["mosquitto"]
    scene.wait(scene.is_attached)


def test_two_brokers_bridged_behind_our_backs_make_no_storm() -> None:
    """A bridge that loses user properties: fences find it, and one of the two nodes stands by."""
    scene = Scene(KINDS["mosquitto"], KINDS["nats"])
    scene.begin()
    _bridge(scene, b"")
    scene.wait(lambda: scene.attachment(1).state == State.STANDING_BY)
    scene.brokers[1].publish(b"t/z", b"word", 1)
    scene.run(5.0)
    assert scene.heard_here(0).count("word") == scene.heard_here(1).count("word") == 1
    assert scene.heard_there(0).count("word") == scene.heard_there(1).count("word") == 1


def test_a_bridge_of_some_topics_is_stopped_by_the_storm_guard() -> None:
    """No fence passes it, and nothing tells its messages from others."""
    scene = Scene(Quirks(levels=(4,)), Quirks(levels=(4,)))
    scene.begin()
    _bridge(scene, b"t/")
    scene.brokers[0].publish(b"t/z", b"word", 1)
    scene.run(60.0)
    storms = sum(scene.attachment(number).counters.storms for number in (0, 1))
    assert storms
    assert len(scene.heard_there(0)) < 200
    heard = len(scene.heard_there(0))
    scene.run(9.0)
    assert len(scene.heard_there(0)) == heard, "it goes on"
    assert any("something bridges it back" in reason for number in (0, 1) for reason in scene.reasons(number))


def test_messages_of_the_network_that_a_bridge_carries_round_are_known_by_their_mark() -> None:
    scene = Scene(KINDS["mosquitto"], KINDS["ejabberd"])
    scene.begin()
    _bridge(scene, b"t/", keeps_properties=True)
    for number in range(2):
        scene.publishers[number].publish(b"t/x", 1)
    scene.run(20.0)
    for number in range(2):
        assert sorted(scene.heard_here(number)) == ["node0p/1", "node1p/1"]
        assert scene.attachment(number).counters.held_back["has-our-mark"] == 2
        assert scene.attachment(number).counters.taken == 0


def test_a_node_that_lost_its_disk_ends_the_session_that_the_broker_kept() -> None:
    """Else the broker would take new messages for repetitions of old ones with the same identifiers."""
    for number in range(1, 13):
        scene = Scene(replace(KINDS["mosquitto"], forgets=False))
        scene.begin()
        machine = scene.machines[0]

        def strike(scene: Scene = scene, machine: SimulatedMachine = machine) -> bool:
            scene.kernel.after(0.0, machine.kill)
            return True

        scene.at_packet(number, strike)
        for _ in range(3):
            scene.publishers[0].publish(b"t/before", 2)
        scene.run(2.0)
        machine.kill()
        machine.disk = Disk(machine.settings.journal, machine.name, scene.kernel.dice("another disk"))
        machine.boot()
        scene.wait(scene.is_attached)
        scene.wait(lambda scene=scene: not scene.publishers[0].unfinished)  # type: ignore[misc]
        before = len(scene.heard_there())
        for _ in range(5):
            scene.publishers[0].publish(b"t/after", 2)
        scene.settle()
        assert [
            word for word in scene.heard_there()[before:] if scene.world.records.publications[word].topic == b"t/after"
        ] == [f"node0p/{one}" for one in range(4, 9)], f"packet {number}"


def test_a_subscription_that_the_broker_refuses_is_named_and_tried_less_and_less_often() -> None:
    scene = Scene(replace(KINDS["mosquitto"], refuses=b"#"))
    scene.begin(attached=False)
    scene.run(30.0)
    refused = [fields for event, fields in scene.world_of().reports if event == "not attached"]
    assert all("refuses the subscription to # (SUBACK 0x80)" in fields["reason"] for fields in refused)
    pauses = [fields["next_try_s"] for fields in refused]
    assert pauses[0] < pauses[1] < pauses[2]
    assert 5 < len(refused) < 40, "at most once a second, for pauses are a second at the end"


def test_a_message_that_the_broker_cannot_bear_is_set_aside_and_the_rest_goes_on() -> None:
    scene = Scene(replace(KINDS["mosquitto"], hangs_up_on=b"t/poison"))
    scene.begin()
    scene.publishers[0].publish(b"t/poison", 1)
    scene.publishers[0].publish(b"t/fine", 1)
    scene.wait(lambda: "node0p/2" in scene.heard_there())
    assert scene.attachment().counters.not_injected["set-aside"] == 1
    assert any("hung up on it three times" in reason for reason in scene.reasons())
    scene.wait(scene.is_attached)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("denial", ["silent", "code", "hangs up"])
def test_messages_that_the_broker_denies_are_counted_and_named_and_the_rest_goes_on(kind: str, denial: str) -> None:
    """A broker of 3.1.1 may deny them without a word: where no echo comes, that is what tells; a bridge hears none."""
    scene = Scene(replace(KINDS[kind], denies=b"t/denied", denial=denial, forgets=False))  # type: ignore[arg-type]
    scene.begin()
    for _ in range(3):
        scene.publishers[0].publish(b"t/denied", 1)
        scene.publishers[0].publish(b"t/fine", 1)
    scene.wait(lambda: "node0p/6" in scene.heard_there())
    scene.settle()
    counted = scene.attachment().counters.not_injected
    assert {word for word in scene.heard_there() if word.startswith("node0p")} == {"node0p/2", "node0p/4", "node0p/6"}
    abilities = scene.attachment().abilities
    assert abilities is not None
    if denial == "hangs up":
        why = "set-aside"
    elif denial == "code" and abilities.version == 5:
        why = "refused"
    else:
        why = "no-echo" if abilities.loop_prevention == "expected echoes" else ""
    # One that was sent together with a denied one may go under suspicion with it.
    assert counted[why] >= 3 if denial == "hangs up" else counted[why] == 3 if why else not counted
    named = [fields for event, fields in scene.world_of().reports if "t/denied" in str(fields)]
    assert bool(named) == bool(why)


def test_a_broker_that_is_away_is_dialled_with_growing_pauses_and_served_when_it_is_back() -> None:
    scene = Scene(KINDS["mosquitto"])
    scene.begin()
    scene.brokers[0].kill()
    scene.run(1.0)
    for _ in range(20):
        scene.publishers[0].publish(b"t/waits", 2)
    scene.run(30.0)
    failures = scene.attachment().counters.failures
    assert failures < 40
    scene.brokers[0].boot()
    scene.settle()
    assert [word for word in scene.heard_there() if word.startswith("node0p/")] == [
        f"node0p/{number}" for number in range(1, 21)
    ]


def _bridge(scene: Scene, prefix: bytes, *, keeps_properties: bool = False) -> None:
    """Between the first two brokers, both ways, as a bridge with No Local does it."""
    for source, target in ((0, 1), (1, 0)):
        scene.brokers[source].bridge = _carrying(scene, target, prefix, keeps_properties)


def _carrying(scene: Scene, target: int, prefix: bytes, keeps_properties: bool) -> Callable[[ModelMessage], None]:
    def carry(message: ModelMessage) -> None:
        if message.topic.startswith(prefix):
            carried = message if keeps_properties else message._replace(properties=b"")
            scene.kernel.after(0.002, scene.brokers[target].take_from_bridge, carried)

    return carry


def test_echoes_at_qos_0_that_fences_at_qos_1_overtake_do_not_come_in_as_messages() -> None:
    scene = Scene(KINDS["rabbitmq"], settings=replace(SETTINGS, fence_s=0.5))
    scene.begin()
    scene.brokers[0].quirks = replace(KINDS["rabbitmq"], qos0_late_s=0.8)
    for number in range(20):
        scene.publishers[0].publish(b"t/x", number % 2)
        scene.run(0.05)
    scene.settle()
    assert scene.attachment().view()["taken"] == 0
    assert scene.attachment().view()["held_back"]["echo"] == 20
    assert scene.attachment().view()["not_injected"] == {}
    assert sorted(scene.heard_there()) == sorted(f"node0p/{number}" for number in range(1, 21))


@pytest.mark.parametrize("moment", range(8))
def test_a_bridge_whose_node_died_while_it_subscribed_keeps_its_session(moment: int) -> None:
    """It does not hear itself; that the broker confirms its subscription is proof enough."""
    scene = Scene(KINDS["aedes"])
    scene.begin(attached=False)
    scene.wait(lambda: any(session.lasting for session in scene.brokers[0].sessions.values()))
    scene.run(0.02 * moment)
    scene.machines[0].kill()
    scene.run(0.1)
    scene.machines[0].boot()
    scene.wait(scene.is_attached)
    assert not [reason for reason in scene.reasons() if "lost its session" in reason]
