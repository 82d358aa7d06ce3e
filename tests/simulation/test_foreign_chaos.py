"""Brokers of other makes in a network with random faults: every promise is kept, and what breaks one is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interworking.scene import Scene
from sterna.cli.simulate import ANY, of_seed, replay_command
from sterna.interworking.echoes import ExpectedEchoes
from sterna.interworking.joint import Joint
from sterna.interworking.retained import RetainedComparison, RetainedFinding
from sterna.routing.strategies import STRATEGIES
from sterna.simulation.chaos import Chaos, Outcome, StormPlan
from sterna.simulation.checkers import check_delivery
from sterna.simulation.faults import FOREIGN_KINDS, KINDS
from sterna.simulation.foreign_broker import KINDS as BROKERS
from sterna.simulation.foreign_broker import ForeignWire, ModelBrokerSession, ModelMessage
from sterna.simulation.foreign_scenario import ForeignScenario, any_quirks
from sterna.simulation.kernel import Kernel
from sterna.simulation.membership import NETWORK
from sterna.simulation.records import Publication
from sterna.simulation.world import new_world


def told(outcome: Outcome) -> str:
    lines = [f"{violation.claim}: {violation.detail}" for violation in outcome.violations[:10]]
    return "\n".join((replay_command(outcome.plan), *lines))


def storm(seed: int, seconds: float = 8.0, faults: tuple[str, ...] = (*KINDS, *FOREIGN_KINDS)) -> Outcome:
    strategy = tuple(STRATEGIES)[seed % len(STRATEGIES)]
    overlay = ("static", "spanning-tree")[seed % 2]
    plan = StormPlan(
        seed, nodes=3, seconds=seconds, faults=faults, strategy=strategy, overlay=overlay, foreign_brokers=2
    )
    return Chaos(plan).run()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_messages_cross_brokers_once_whatever_fails(seed: int) -> None:
    outcome = storm(seed)
    assert outcome.kept, told(outcome)
    assert outcome.arrived > outcome.acknowledged


#: Each broke something once, with the settings of the command line.
BROKE = [1, 2, 4, 6, 12, 15, 18, 27, 28, 29, 34, 51, 77]


@pytest.mark.slow
@pytest.mark.parametrize("seed", BROKE)
def test_what_broke_once_is_kept(seed: int) -> None:
    """Echoes of a node that crashed twice, retained values that were taken for changed ones, a silent connection that
    was taken for a lost session, stored messages that were taken for live ones."""
    strategy = tuple(STRATEGIES)[seed % len(STRATEGIES)]
    overlay = ("static", "spanning-tree")[seed // len(STRATEGIES) % 2]
    plan = StormPlan(seed, seconds=18, faults=(*KINDS, *FOREIGN_KINDS), strategy=strategy, overlay=overlay, roamers=1)
    outcome = Chaos(replace(plan, gateways=1, expressions=1, foreign_brokers=2)).run()
    assert outcome.kept, told(outcome)


#: The same, with all overlays and for longer.
BROKE_LATER = [16, 28, 44, 47, 67, 107, 109, 150, 156, 173, 180, 686]


@pytest.mark.slow
@pytest.mark.parametrize("seed", BROKE_LATER)
def test_so_is_what_broke_in_half_a_minute(seed: int) -> None:
    """A claim that was overtaken by a later one, a value that came as a message, too, a message on a new topic that met
    a moved client again, messages of two sessions of a client at once, an answer that was faster than messages on
    another way, a value at QoS 1 that a fence at QoS 0 had overtaken; and demands of checkers that nobody promises."""
    plan = of_seed(StormPlan(seed, seconds=30, faults=(*KINDS, *FOREIGN_KINDS), strategy=ANY, overlay=ANY), seed)
    outcome = Chaos(replace(plan, roamers=1, gateways=1, expressions=1, foreign_brokers=2)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1214, 1263])
def test_so_is_what_broke_while_owners_were_away(seed: int) -> None:
    """Values were read again before the subscription was confirmed; an old value was sent over a newer one."""
    plan = of_seed(StormPlan(seed, seconds=15, faults=(*KINDS, *FOREIGN_KINDS), strategy=ANY, overlay=ANY), seed)
    plan = replace(plan, roamers=1, gateways=1, expressions=1, foreign_brokers=2)
    outcome = Chaos(replace(plan, fault_pause_s=2.0, owner_absent_s=1.5, long_outages=1.0)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [15, 23, 73, 93])
def test_so_is_what_broke_while_nodes_moved(seed: int) -> None:
    """A gateway's client was sent what its node had sent it already, besides what it had not; an old session that had
    moved unheard of handed over to the second new one; a letter came ahead of the news that its sender's way had
    changed, and messages lost on the old way were taken for read."""
    plan = StormPlan(seed, seconds=30, faults=(*KINDS, *FOREIGN_KINDS), strategy="mobile", overlay="mobile", roamers=1)
    outcome = Chaos(replace(plan, mobility="waypoint", gateways=1, expressions=1, foreign_brokers=2)).run()
    assert outcome.kept, told(outcome)


def test_every_kind_of_broker_and_every_switch_is_met() -> None:
    met = [any_quirks(Kernel(seed).dice("broker1")) for seed in range(300)]
    for name in ("hangs_up", "no_local", "keeps_user_properties", "retained_before_suback", "passes_on_at_pubrel"):
        assert {getattr(one, name) for one in met} == {False, True}, name
    for name in ("levels", "copies", "qos", "retained_for_wildcards", "keep_alive_s"):
        assert {getattr(one, name) for one in met} == {getattr(one, name) for one in BROKERS.values()}, name
    assert {bool(one.queue_max) for one in met} == {one.forgets for one in met} == {False, True}


# -- planted faults --


def claims_broken(faults: tuple[str, ...], seeds: range = range(12), seconds: float = 8.0) -> set[str]:
    """The claims that the first broken scenario breaks."""
    for seed in seeds:
        outcome = storm(seed, seconds, faults)
        if not outcome.kept:
            return {violation.claim for violation in outcome.violations}
    return set()


def test_a_node_that_expects_no_echo_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second: its messages go round, and become more every time."""
    monkeypatch.setattr(ExpectedEchoes, "is_echo", lambda *_: None)
    assert "echo" in claims_broken((), seconds=1.0)


def test_a_node_that_acknowledges_what_it_has_not_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Joint.from_broker

    def from_broker(joint: Joint, first: int, data: bytes, start: int, body: int, stop: int) -> bool:
        if first >> 4 == 3 and first & 6 == 2 and not data[body + 2 : stop].startswith(b"sterna/"):
            size = data[body] << 8 | data[body + 1]
            joint._hands.to_broker(b"\x40\x02" + data[body + 2 + size : body + 4 + size])
        return honest(joint, first, data, start, body, stop)

    monkeypatch.setattr(Joint, "from_broker", from_broker)
    assert "lost" in claims_broken(("crash", "power", "disk-full"))


def test_a_node_that_forgets_which_echoes_may_come_after_a_crash_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExpectedEchoes, "may_have_gone", lambda *_: None)
    assert "echo" in claims_broken(("crash", "power", "foreign-break", "foreign-cut"), range(40))


def test_a_node_that_keeps_its_own_retained_value_always_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RetainedComparison._compare

    def compare(comparison: RetainedComparison, topic: bytes, payload: bytes, *, is_ours: bool) -> RetainedFinding:
        found = honest(comparison, topic, payload, is_ours=is_ours)
        return (
            RetainedFinding.OLD
            if found is RetainedFinding.NEW and comparison._network.retained(topic) is not None
            else found
        )

    monkeypatch.setattr(RetainedComparison, "_compare", compare)
    assert "retained" in claims_broken(("foreign-break", "foreign-cut"))


def test_an_old_value_in_the_place_of_a_newer_one_is_caught() -> None:
    world = new_world(1)
    scenario = ForeignScenario(world, world.add_machine("node1"), 1)
    for number in (1, 2):
        one = Publication(f"p/{number}", "p", NETWORK, number, b"r/p", 1, True, float(number))
        world.records.publications[one.identity] = one
    for number, retain in ((2, True), (1, False)):
        scenario.broker.take(ModelMessage(b"r/p", f"p/{number}".encode(), 1, retain), None)
    assert scenario.values_set_back() == []
    scenario.broker.take(ModelMessage(b"r/p", b"p/1", 1, True), None)
    assert [violation.claim for violation in scenario.values_set_back()] == ["set back"]
    scenario.broker.take(ModelMessage(b"r/p", b"p/2", 1, True), None)
    assert scenario.values_set_back() == [], "not for good"
    scenario.broker.take(ModelMessage(b"r/p", b"p/1", 1, True), None)
    world.records.went_back.add("p")
    assert scenario.values_set_back() == [], "clocks decide"


@pytest.mark.parametrize("newer", [False, True])
def test_a_value_comes_again_as_a_message_only_if_there_is_a_newer_one(newer: bool) -> None:
    world = new_world(1)
    scenario = ForeignScenario(world, world.add_machine("node1"), 1)
    for number in (1, 2) if newer else (1,):
        one = Publication(f"p/{number}", "p", NETWORK, number, b"r/p", 2, True, float(number))
        world.records.publications[one.identity] = one
    for retain in (True, False):
        scenario.broker.take(ModelMessage(b"r/p", b"p/1", 2, retain), None)
    assert [violation.claim for violation in check_delivery(world.records)] == ([] if newer else ["duplicated"])


def test_a_session_that_was_lost_without_a_word_is_found_out_and_served_anew() -> None:
    """CONNACK that said so went astray: the next one says Session Present 1."""
    scene = Scene(BROKERS["nats"])
    scene.begin()
    scene.publishers[0].publish(b"t/x", 2)
    scene.settle()
    broker = scene.brokers[0]
    broker.kill(forgets=True)
    broker.sessions[b"sterna-simulated-node0"] = ModelBrokerSession(lasting=True)
    broker.boot()
    scene.wait(lambda: any("did not say so" in reason for reason in scene.reasons()))
    scene.wait(scene.is_attached)
    broker.publish(b"t/y", b"heard", 1)
    scene.wait(lambda: "heard" in scene.heard_here())
    assert scene.attachment().counters.sessions_lost == 1


def test_a_connection_that_fell_silent_is_no_lost_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks as soon as the session is there again, and nobody is told."""
    scene = Scene(BROKERS["nats"])
    scene.begin()
    for session in list(scene.brokers[0].sessions.values()):
        if session.wire is not None:
            session.wire.cut()

    def connect(wire: ForeignWire, body: bytes) -> None:
        joined(wire, body)
        if wire._session is not None and wire._session.lasting:
            scene.kernel.after(0.01, lambda: wire._end.sever(silently=True))

    joined = ForeignWire._connect
    monkeypatch.setattr(ForeignWire, "_connect", connect)
    scene.run(2.0)
    monkeypatch.undo()
    scene.settle()
    assert scene.attachment().counters.sessions_lost == 0
