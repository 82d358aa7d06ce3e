"""A fault at each packet of an exchange, in turn: nothing is lost, and at QoS 2 nothing comes twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.simulation.foreign_broker import KINDS, Quirks
from sterna.simulation.machine import MachineSettings

MESSAGES = 3


def _exchange(scene: Scene, qos: int) -> tuple[list[str], list[str]]:
    """Messages each way; what each side is to hear of the other's."""
    for _ in range(MESSAGES):
        scene.publishers[0].publish(b"t/here", qos)
    theirs = [f"there/{number}" for number in range(MESSAGES)]
    for word in theirs:
        scene.brokers[0].publish(b"t/there", word.encode(), qos)
    return [f"node0p/{number + 1}" for number in range(MESSAGES)], theirs


def _packets_of_one_run(quirks: Quirks, qos: int) -> int:
    scene = Scene(quirks)
    scene.begin()
    scene.at_packet(-1, lambda: False)
    _exchange(scene, qos)
    scene.settle()
    assert scene.packets >= 2 * MESSAGES * 2 * min(qos, quirks.qos), "the session does not last"
    return scene.packets


def _check(scene: Scene, ours: list[str], theirs: list[str], qos: int, where: str, *, repeats: bool = False) -> None:
    for side, heard, wanted in (("there", scene.heard_there(), ours), ("here", scene.heard_here(), theirs)):
        counts = Counter(word for word in heard if word in wanted)
        missing = [word for word in wanted if not counts[word]]
        twice = [word for word in wanted if counts[word] > 1]
        assert not missing, f"{where}: lost {side}: {missing}"
        assert qos < 2 or repeats or not twice, f"{where}: twice {side}: {twice}"
        first = list(dict.fromkeys(word for word in heard if word in wanted))
        assert first == wanted, f"{where}: out of order {side}: {first}"
    echoed = [word for word in scene.heard_here() if word in ours]
    assert len(set(echoed)) == len(echoed) or qos < 2, f"{where}: an echo came in: {echoed}"


PERSISTENT = {name: replace(quirks, forgets=False) for name, quirks in KINDS.items()}
FAULTS = ("cut before", "broker killed", "node killed")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_and_nothing_comes_twice_whichever_packet_a_fault_hits(kind: str, qos: int, fault: str) -> None:
    quirks = PERSISTENT[kind]
    for number in range(1, _packets_of_one_run(quirks, qos) + 1):
        scene = Scene(quirks)
        scene.begin()
        ours, theirs = _hit(scene, qos, fault, number)
        _check(scene, ours, theirs, min(qos, quirks.qos), f"{kind}, QoS {qos}, {fault} at packet {number}")


def _hit(scene: Scene, qos: int, fault: str, number: int) -> tuple[list[str], list[str]]:
    broker, machine, kernel = scene.brokers[0], scene.machines[0], scene.kernel

    def strike() -> bool:
        if fault == "broker killed":
            kernel.after(0.0, broker.kill)
            kernel.after(1.0, broker.boot)
        elif fault == "node killed":
            kernel.after(0.0, machine.kill)
            kernel.after(1.0, machine.boot)
        return True

    scene.at_packet(number, strike)
    words = _exchange(scene, qos)
    scene.run(0.5)
    scene.wait(lambda: broker.up and machine.running is not None)
    scene.settle()
    return words


@pytest.mark.slow
@pytest.mark.parametrize("in_doubt", ["repeat", "drop"])
@pytest.mark.parametrize("kind", ["mosquitto", "aedes"])
def test_when_the_broker_forgets_its_session_messages_in_doubt_are_repeated_or_dropped_and_counted(
    kind: str, in_doubt: str
) -> None:
    quirks = replace(KINDS[kind], forgets=True)
    settings = replace(SETTINGS, in_doubt=in_doubt)
    for number in range(1, 25):
        scene = Scene(quirks, settings=settings)
        scene.begin()
        ours = _forgetful_run(scene, number)
        heard = Counter(word for word in scene.heard_there() if word in ours)
        counted = scene.attachment().counters
        where = f"{kind}, {in_doubt}, packet {number}: {heard}, {counted}"
        if in_doubt == "repeat":
            assert all(heard[word] for word in ours), where
            assert sum(heard.values()) - len(ours) <= counted.in_doubt["repeated"], where
        else:
            assert all(count == 1 for count in heard.values()), where
            assert len(ours) - len(heard) <= counted.in_doubt["dropped"], where
        assert counted.sessions_lost == (1 if scene.packets >= number else 0), where
        assert not counted.in_doubt["unknown"], where
        later = [word for word in scene.heard_here() if word.startswith("later")]
        assert later == [f"later/{one}" for one in range(5)], f"{where}: identifiers of the old session count"


@pytest.mark.parametrize("kind", ["mosquitto", "ejabberd"])
def test_a_message_that_is_being_written_when_the_broker_forgets_its_session_outlives_a_crash(kind: str) -> None:
    """The queue in memory lacks it at that moment; it is in the journal only."""
    scene = Scene(replace(KINDS[kind], forgets=True))
    scene.machines[0].settings = MachineSettings(sync_s=0.05)
    scene.begin()
    broker, machine, publisher = scene.brokers[0], scene.machines[0], scene.publishers[0]
    assert machine.running is not None
    own, lost = machine.running.broker, scene.attachment().counters.sessions_lost
    broker.kill()
    sent = 2 * own.limits.inflight  # so that the next one has to wait in the queue
    for _ in range(sent):
        publisher.publish(b"t/here", 1)
    scene.wait(lambda: not publisher.unfinished)
    broker.boot()
    while scene.attachment().counters.sessions_lost == lost:
        if not publisher.unfinished:
            publisher.publish(b"t/here", 1)
            sent += 1
        scene.run(0.0002)
    assert own.journal.next_offset - 1 > own.delivered_upto, "no message is on its way to the disk"
    while own.commitments.waiting:
        scene.run(0.0002)
    machine.kill()
    machine.boot()
    scene.settle()
    missing = {f"node0p/{number + 1}" for number in range(sent)} - set(scene.heard_there())
    assert not missing


def _forgetful_run(scene: Scene, number: int) -> list[str]:
    broker, kernel = scene.brokers[0], scene.kernel

    def strike() -> bool:
        kernel.after(0.0, broker.kill)
        kernel.after(1.0, broker.boot)
        return True

    scene.at_packet(number, strike)
    for one in range(MESSAGES):
        scene.publishers[0].publish(b"t/here", 2)
        broker.publish(b"t/there", b"there/%d" % one, 2)
    scene.run(0.5)
    scene.wait(lambda: broker.up)
    scene.settle()
    for one in range(5):
        broker.publish(b"t/there", b"later/%d" % one, 2)
    scene.settle()
    return [f"node0p/{one + 1}" for one in range(MESSAGES)]
