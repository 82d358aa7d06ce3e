"""Expressions over the messages of a whole simulated network: whatever happened to nodes and wires, the answer at rest
counts every topic that was acknowledged, once."""

from __future__ import annotations

import pytest
from town import Town

from sterna.broker.expressions.parts import ExpressionPart

STRATEGIES = ("subscription-flooding", "advertisement")
TOPICS = 5


class CountedTown(Town):
    """Somebody at the first node counts the topics that have a value; all nodes have some, and one in common."""

    def __init__(self, strategy: str, seed: int) -> None:
        super().__init__(4, strategy, seed=seed)
        self.watcher = self.subscribers["node1"]
        self.watcher.subscribe(b"$COUNT/c/#", 1)

    def count(self, seconds: float) -> None:
        for name, publisher in self.publishers.items():
            for number in range(TOPICS):
                topic = b"c/%b/%d" % (name.encode(), number)
                self.scene.kernel.after(seconds * number / TOPICS, publisher.publish, topic, 1 + number % 2)
                self.scene.kernel.after(seconds * (number + 0.5) / TOPICS, publisher.publish, b"c/all", 2)

    def part(self) -> ExpressionPart:
        running = self.machine("node1").running
        assert running is not None
        (part,) = [part for part in running.node.broker.routes.computations.parts if part.computations]
        return part

    def answer(self) -> float | None:
        part = self.part()
        assert part.is_settled
        assert part.merge is not None
        return part.merge.answer(int(self.machine("node1").clock.wall() * 1e6))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crashes_in_turn_cost_no_topic(strategy: str, seed: int) -> None:
    town = CountedTown(strategy, seed)
    town.begin()
    town.count(14.0)
    for number, name in enumerate(town.names):
        town.scene.run(1.0)
        town.machine(name).kill(power=number % 2 == 1)
        town.scene.run(2.5)
        town.machine(name).boot()
    town.end()
    assert town.answer() == 4 * TOPICS + 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_partition_costs_no_topic_and_the_dead_are_in_no_table(strategy: str, seed: int) -> None:
    town = CountedTown(strategy, seed)
    town.begin()
    town.count(10.0)
    heal = town.scene.network.partition([["node1", "node2"], ["node3", "node4"]])
    town.scene.run(8.0)
    heal()
    town.scene.run(4.0)
    town.end()
    assert town.answer() == 4 * TOPICS + 1
    town.watcher.unsubscribe(b"$COUNT/c/#")
    town.scene.run(20.0)
    for machine in town.scene.machines:
        assert machine.running is not None
        assert len(machine.running.node.broker.routes.computations.parts) == 0
