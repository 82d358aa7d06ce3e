"""How often the papers' protocols end with wrong tables: random moves of brokers on ideal links, quiet in between.

"Wrong" means: all brokers are connected, nothing is under way, and events of some broker would not reach a subscriber.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sterna.simulation.papers.ideal_tree import BrokerFactory, IdealTree
from sterna.simulation.papers.messages import Name

FIGURE_TREE: dict[Name, Name | None] = {
    "b1": None, "b2": "b1", "b3": "b1", "b4": "b2", "b5": "b2", "b6": "b3", "b7": "b3",
}  # fmt: skip
"""Of Figures 3.1 to 4.2."""


def move_one(world: IdealTree, rng: Random) -> None:
    """A broker gets another parent that is not below it."""
    child = rng.choice([name for name, parent in world.parents.items() if parent is not None])
    world.cut(child)
    world.join(child, rng.choice([name for name in world.parents if world.component(name) != child]))
    world.settle()


def cut_or_merge(world: IdealTree, rng: Random) -> None:
    """A partition splits, or two become one."""
    roots = [name for name, parent in world.parents.items() if parent is None]
    if len(roots) > 1 and rng.random() < 0.5:
        merge_two(world, rng)
    elif len(roots) < len(world.parents):
        world.cut(rng.choice([name for name, parent in world.parents.items() if parent is not None]))


def merge_two(world: IdealTree, rng: Random) -> None:
    touching = rng.choice(list(world.parents))
    others = [name for name in world.parents if world.component(name) != world.component(touching)]
    world.merge(touching, rng.choice(others))


def ends_wrong(broker: BrokerFactory, seed: int, steps: int, step: Callable[[IdealTree, Random], None]) -> bool:
    """After so many steps, and after all partitions have merged."""
    rng = Random(seed)
    world = IdealTree(FIGURE_TREE, broker)
    for _ in range(steps):
        step(world, rng)
    while len([name for name, parent in world.parents.items() if parent is None]) > 1:
        merge_two(world, rng)
    return bool(world.wrong())
