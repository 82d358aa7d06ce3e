"""The simulator finds what breaks promises between nodes: each of these networks has one fault, and is caught at it."""

from __future__ import annotations

import pytest

from sterna.node.node import Node
from sterna.routing.origin_streams import OriginStream, Streams, StreamState
from sterna.simulation.chaos import Chaos, StormPlan
from sterna.simulation.links import SimulatedLinkWorld
from sterna.simulation.machine import Running, make_lone_node
from sterna.vocabulary.identity import BEFORE_ALL, VersionVector

SEEDS = range(12)
STRATEGY = "subscription-flooding"


def claims_broken(*faults: str, seconds: float = 10.0) -> set[str]:
    """The claims that the first broken scenario breaks."""
    for seed in SEEDS:
        plan = StormPlan(seed, nodes=3, seconds=seconds, faults=faults, strategy=STRATEGY, fault_pause_s=0.5)
        outcome = Chaos(plan).run()
        if not outcome.kept:
            return {violation.claim for violation in outcome.violations}
    return set()


def test_a_node_that_does_not_ask_for_what_it_missed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def path_changed(streams: Streams, origin: str) -> None:
        stream = streams._streams.get(origin)
        if stream is None:
            stream = streams._streams[origin] = OriginStream(new=origin not in streams.vector)
            streams._fetch(origin, stream)
        else:
            stream.state = StreamState.SYNCED

    monkeypatch.setattr(Streams, "path_changed", path_changed)
    assert "lost" in claims_broken("link-break", "partition")


def test_a_node_that_takes_what_it_has_seen_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Streams._fetch

    def fetch(streams: Streams, origin: str, stream: OriginStream) -> None:
        if origin in streams.vector:
            streams.vector[origin] = BEFORE_ALL
        honest(streams, origin, stream)

    monkeypatch.setattr(Streams, "_fetch", fetch)
    assert "duplicated" in claims_broken("link-break", "crash")


def test_a_node_that_forgets_what_it_could_not_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken_back(streams: Streams, vector: VersionVector) -> None:
        """As if it had been kept."""

    monkeypatch.setattr(Streams, "taken_back", taken_back)
    assert "lost" in claims_broken("disk-full")


def test_a_network_that_does_not_form_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[str] = set()

    def hold_links(world: SimulatedLinkWorld, dial: dict[str, str]) -> None:
        if world.address not in held:
            held.update([world.address] if dial else [])
            honest(world, dial)

    honest = SimulatedLinkWorld.hold_links
    monkeypatch.setattr(SimulatedLinkWorld, "hold_links", hold_links)
    assert "no path" in claims_broken("crash", seconds=3.0)


def without_memory(running: Running) -> Node:
    """It starts without what its expressions remember."""
    sessions = running.machine.disk.checkpoints._sessions
    for name in [name for name in sessions if name.startswith("\0$COUNT")]:
        del sessions[name]
    return make_lone_node(running)


def test_a_node_that_forgets_what_its_expressions_remember_is_caught() -> None:
    claims: set[str] = set()
    for seed in SEEDS:
        plan = StormPlan(seed, nodes=2, seconds=10, faults=("crash",), strategy=STRATEGY, expressions=1)
        claims |= {violation.claim for violation in Chaos(plan, make=without_memory).run().violations}
        if claims:
            break
    assert claims == {"computed"}
