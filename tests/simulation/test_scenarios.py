"""Scenarios with a script: nodes join, leave, crash in turn, fall apart and find each other, while messages fly."""

from __future__ import annotations

import pytest
from town import Town

from sterna.simulation.links import LINK_PORT
from sterna.simulation.machine import WALL, SimulatedMachine

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")

pytestmark = pytest.mark.parametrize("strategy", STRATEGIES)


def test_nodes_find_each_other_within_two_seconds(strategy: str) -> None:
    town = Town(5, strategy)
    assert town.begin() < 2.0
    town.publish(10, 1.0)
    town.scene.run(1.0)
    assert town.end() == []


def test_a_node_that_joins_later_is_served_like_the_others(strategy: str) -> None:
    town = Town(4, strategy)
    town.begin("node1", "node2", "node3")
    town.begin("node4")
    town.publish(10, 1.0)
    town.scene.run(1.0)
    assert town.end() == []


def test_every_node_crashes_in_turn_and_nothing_is_lost(strategy: str) -> None:
    town = Town(4, strategy)
    town.begin()
    town.publish(60, 16.0)
    for number, name in enumerate(town.names):
        town.scene.run(1.0)
        town.machine(name).kill(power=number % 2 == 1)
        town.scene.run(2.5)
        town.machine(name).boot()
    assert town.end() == []


def test_starts_are_numbered_by_the_clock_and_none_is_older_if_that_is_set_back(strategy: str) -> None:
    town = Town(3, strategy)
    town.begin()
    town.publish(60, 16.0)
    machine = town.machine("node2")
    before = epoch(machine)
    assert before == int(WALL + machine.clock.skew_s)
    for skew_s in (0.0, -600.0, -600.0, 600.0, 0.0):
        machine.clock.skew_s = skew_s
        town.scene.run(1.0)
        machine.kill(power=skew_s < 0)
        town.scene.run(1.5)
        machine.boot()
        assert epoch(machine) == max(before + 1, int(machine.clock.wall()))
        before = epoch(machine)
    assert town.end() == []


def epoch(machine: SimulatedMachine) -> int:
    assert machine.running is not None
    return machine.running.broker.journal.epoch


def test_a_partition_heals_and_both_sides_catch_up(strategy: str) -> None:
    town = Town(4, strategy)
    town.begin()
    town.publish(60, 12.0)
    town.scene.run(1.0)
    heal = town.scene.network.partition([["node1", "node2"], ["node3", "node4"]])
    town.scene.run(8.0)
    heal()
    town.scene.run(4.0)
    assert town.end() == []


def test_a_storm_while_the_tree_forms_anew_loses_nothing(strategy: str) -> None:
    town = Town(5, strategy)
    town.begin()
    for name in ("node2", "node4"):
        town.machine(name).kill(power=True)
    town.publish(150, 2.0)
    town.scene.run(3.0)
    assert town.end() == []


def test_neighbours_may_be_added_and_removed_several_at_once(strategy: str) -> None:
    town = Town(4, strategy, overlay="static")
    town.begin()
    town.publish(60, 10.0)
    for number, name in enumerate(town.names[1:]):
        running = town.machine(name).running
        assert running is not None
        assert running.node.network is not None
        overlay = running.node.network.overlay
        held = overlay.view()["neighbours"]
        assert isinstance(held, list)
        running.work(overlay.remove, *held)
        town.scene.kernel.after(2.0, running.work, overlay.add, f"{town.names[number]}:{LINK_PORT}")
    town.scene.run(10.0)
    assert town.end() == []
