"""A drain is proved by a probe: every node that can be reached says whether it has all that this one has sent."""

from __future__ import annotations

import pytest

from conformance.packets import Publish
from node.joined_nodes import Town
from sterna.migration.drain_proof import DrainProof, prove_drain
from sterna.routing.origin_streams import StreamState
from sterna.routing.probes import Answers
from sterna.routing.strategies import STRATEGIES


def probed(town: Town, name: str) -> Answers:
    heard: list[Answers] = []
    town[name].network.router.when_answered(heard.append)
    town.pass_time(2)
    (answers,) = heard
    return answers


def proof(town: Town, name: str, readers_behind: int = 0) -> DrainProof:
    moving = town[name].network.moving

    told: list[DrainProof] = []
    prove_drain(moving, lambda: readers_behind, told.append)
    for _ in range(3):
        town.pass_time(1)
    return told[0]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "mobile"])
def test_nodes_that_want_nothing_prove_a_drain_too(strategy: str) -> None:
    """Their vectors stand still: comparing those with the end of the journal would wait for ever."""
    town = Town("ABC", strategy)
    town.connect("AB", "BC")
    assert town["C"].join("reader").subscribe("wanted", 1) == 1
    writer = town["A"].join("writer")
    for topic in ("wanted", "unwanted"):
        writer.publish(topic, b"x", 1)
    answers = probed(town, "A")
    assert answers.readers == {"B", "C"} == set(answers.frontiers)


def test_a_node_that_is_behind_is_named() -> None:
    town = Town("AB")
    town.connect("AB")
    town["A"].join("writer").publish("t", b"x", 1)
    town["B"].network.router.streams._streams["A"].state = StreamState.FETCHING
    assert probed(town, "A").readers == set()


def test_a_node_that_is_empty_and_closed_is_drained() -> None:
    town = Town("ABC")
    town.connect("AB", "BC")
    town["A"].resume("c", gateway=True)
    writer = town["A"].resume("w", gateway=True)
    assert town["C"].join("reader").subscribe("t", 1) == 1
    writer.publish("t", b"x", 1)
    serving = proof(town, "A")
    assert (serving.sessions, serving.is_empty, serving.is_drained) == (2, False, False)
    town["A"].network.moving.plans.evacuate(100.0)
    town.pass_time(5)
    drained = proof(town, "A")
    assert drained.is_empty
    assert drained.is_drained
    assert (drained.absent, drained.unanswered, drained.unsynced) == ([], [], [])
    assert not proof(town, "A", readers_behind=3).is_drained


def test_a_node_that_is_away_is_named_because_something_may_be_owed_to_it() -> None:
    town = Town("ABC")
    town.connect("AB", "BC")
    town["C"].join("writer").publish("t", b"x", 1)
    town.pass_time(1)
    town.cut("B", "C")
    found = proof(town, "A")
    assert (found.absent, found.unanswered) == (["C"], [])


def test_what_was_published_before_the_probe_is_with_its_readers_when_it_is_back() -> None:
    town = Town("AB")
    town.connect("AB")
    reader = town["B"].join("reader")
    assert reader.subscribe("t", 1) == 1
    heard: list[Answers] = []
    town["A"].join("writer").publish("t", b"x", 1)
    town["A"].network.router.when_answered(heard.append)
    while not heard:
        town.pass_time(0.01)
    assert [message.payload for message in reader.messages() if isinstance(message, Publish)] == [b"x"]
