"""Nodes that start and stop by themselves among random faults: every promise is kept, and what breaks one is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sterna.adaptation.draining import DrainEvent
from sterna.cli.simulate import ANY, of_seed, replay_command
from sterna.migration.drain_proof import DrainProof, prove_drain
from sterna.simulation.adaptive_scenario import MachineHand
from sterna.simulation.adaptive_worker import SimulatedWorker
from sterna.simulation.chaos import Chaos, Outcome, StormPlan
from sterna.simulation.faults import KINDS

PLAN = of_seed(
    StormPlan(
        1, seconds=40, faults=KINDS, fault_pause_s=1.5, strategy=ANY, overlay="static", gateways=3, adaptive=True
    ),
    1,
)


def told(outcome: Outcome) -> str:
    lines = [f"{violation.claim}: {violation.detail}" for violation in outcome.violations[:10]]
    return "\n".join((replay_command(outcome.plan), *lines))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(1, 7), 40])
def test_nodes_start_and_stop_and_every_promise_is_kept(seed: int) -> None:
    outcome = Chaos(of_seed(replace(PLAN, seed=seed, nodes=2 + seed % 3, roamers=1, expressions=1), seed)).run()
    assert outcome.kept, told(outcome)
    assert outcome.arrived > outcome.acknowledged


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_with_stops_in_it() -> None:
    plan = replace(PLAN, seed=8, fault_pause_s=1000.0)
    first, second = Chaos(plan).run(), Chaos(plan).run()
    assert first == second
    assert first.stops
    assert first.kept, told(first)


@pytest.mark.slow
def test_a_node_that_is_ended_before_it_is_empty_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes any proof for the best one."""

    def prove(self: MachineHand, told: Callable[[DrainProof], None]) -> None:
        running, moving = self._moving

        def lie(proof: DrainProof) -> None:
            told(replace(proof, closed=True, sessions=0, remains=0, moves=0, unanswered=[], unsynced=[], absent=[]))

        running.work(prove_drain, moving, lambda: 0, lie)

    monkeypatch.setattr(MachineHand, "prove", prove)
    chaos = Chaos(replace(PLAN, seed=8, fault_pause_s=1000.0))
    worker = chaos.scene.machines[1].watch
    assert isinstance(worker, SimulatedWorker)

    def stop() -> None:
        assert worker.running is not None
        worker.running._carry_out(worker.running.life.ordered(DrainEvent.STOP_ORDERED, worker.kernel.now) or ())

    for at in (5.0, 10.0, 15.0):
        worker.kernel.at(at, stop)
    assert any(violation.claim == "stopped owing" for violation in chaos.run().violations)
