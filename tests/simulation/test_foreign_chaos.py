"""Brokers of other makes in a network with random faults: every promise is kept, and what breaks one is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interworking.scene import Scene
from sterna.cli.simulate import replay_command
from sterna.interworking.echoes import ExpectedEchoes
from sterna.interworking.joint import Joint
from sterna.interworking.retained import Found, RetainedComparison
from sterna.routing.strategies import STRATEGIES
from sterna.simulation.chaos import Chaos, Outcome, Plan
from sterna.simulation.faults import FOREIGN_KINDS, KINDS
from sterna.simulation.foreign_broker import KINDS as BROKERS
from sterna.simulation.foreign_broker import ForeignWire, Held
from sterna.simulation.foreign_scenario import any_quirks
from sterna.simulation.kernel import Kernel


def told(outcome: Outcome) -> str:
    lines = [f"{violation.claim}: {violation.detail}" for violation in outcome.violations[:10]]
    return "\n".join((replay_command(outcome.plan), *lines))


def storm(seed: int, seconds: float = 8.0, faults: tuple[str, ...] = (*KINDS, *FOREIGN_KINDS)) -> Outcome:
    strategy = tuple(STRATEGIES)[seed % len(STRATEGIES)]
    overlay = ("static", "spanning-tree")[seed % 2]
    plan = Plan(seed, nodes=3, seconds=seconds, faults=faults, strategy=strategy, overlay=overlay, foreign_brokers=2)
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
    plan = Plan(seed, seconds=18, faults=(*KINDS, *FOREIGN_KINDS), strategy=strategy, overlay=overlay, roamers=1)
    outcome = Chaos(replace(plan, gateways=1, expressions=1, foreign_brokers=2)).run()
    assert outcome.kept, told(outcome)


def test_every_kind_of_broker_and_every_switch_is_met() -> None:
    met = [any_quirks(Kernel(seed).dice("broker1")) for seed in range(300)]
    for name in ("hangs_up", "no_local", "keeps_user_properties", "retained_before_suback", "passes_on_at_pubrel"):
        assert {getattr(one, name) for one in met} == {False, True}, name
    for name in ("levels", "copies", "qos", "retained_for_wildcards", "keep_alive_s"):
        assert {getattr(one, name) for one in met} == {getattr(one, name) for one in BROKERS.values()}, name
    assert {bool(one.queue_max) for one in met} == {one.forgets for one in met} == {False, True}


# -- planted faults --


def claims_broken(faults: tuple[str, ...], seeds: range = range(12)) -> set[str]:
    """What the first scenario that shows anything shows."""
    for seed in seeds:
        outcome = storm(seed, faults=faults)
        if not outcome.kept:
            return {violation.claim for violation in outcome.violations}
    return set()


@pytest.mark.slow
def test_a_node_that_expects_no_echo_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExpectedEchoes, "is_echo", lambda *_: None)
    assert "echo" in claims_broken(())


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

    def compare(comparison: RetainedComparison, topic: bytes, payload: bytes, *, is_ours: bool) -> Found:
        found = honest(comparison, topic, payload, is_ours=is_ours)
        return Found.OLD if found is Found.NEW and comparison._network.retained(topic) is not None else found

    monkeypatch.setattr(RetainedComparison, "_compare", compare)
    assert "retained" in claims_broken(("foreign-break", "foreign-cut"))


def test_a_session_that_was_lost_without_a_word_is_found_out_and_served_anew() -> None:
    """CONNACK that said so went astray: the next one says Session Present 1."""
    scene = Scene(BROKERS["nats"])
    scene.begin()
    scene.publishers[0].publish(b"t/x", 2)
    scene.settle()
    broker = scene.brokers[0]
    broker.kill(forgets=True)
    broker.sessions[b"sterna-simulated-node0"] = Held(lasting=True)
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
