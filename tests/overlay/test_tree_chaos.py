"""Trees under random faults: whatever happens, circles do not last, and afterwards there is one tree again."""

from __future__ import annotations

from random import Random

import pytest
from datagram_world import DatagramWorld, Weather
from tree_shape import capability_of, crowd, settled_after, views_of, way_up

CIRCLE_S = 0.3
"""Nodes that change roots at the same moment may follow each other until they hear of it: a one-way trip or two."""


def strike(net: DatagramWorld, rng: Random, size: int) -> None:
    """One random fault, or the end of one."""
    names = [f"n{number:02}" for number in range(size)]
    down = [name for name in names if name not in net.hosts]
    choice = rng.choice(["kill", "kill", "boot", "boot", "partition", "heal", "weather", "block"])
    if choice == "kill" and len(net.hosts) > 1:
        net.kill(rng.choice(list(net.hosts)), silently=rng.random() < 0.5)
    elif choice == "boot" and down:
        name = rng.choice(down)
        clock = (rng.uniform(-1e5, 1e5), rng.uniform(0.995, 1.005))
        net.boot(name, capability_of(net.seed, int(name[1:])), clock=clock)
    elif choice == "partition":
        rng.shuffle(names)
        cut = rng.randint(1, size - 1)
        net.partition(names[:cut], names[cut:])
    elif choice == "heal":
        net.heal()
        net.blocked.clear()
    elif choice == "weather":
        net.weather = Weather(rng.uniform(0, 0.3), rng.uniform(0, 0.3), rng.uniform(0, 1), rng.uniform(0, 0.3))
    elif choice == "block":
        a, b = sorted(rng.sample(names, 2))
        net.blocked[a, b] = None


def longest_circle(net: DatagramWorld, seconds: float) -> float:
    """Run; how long parents led in a circle without a break."""
    longest, since, end = 0.0, net.now, net.now + seconds
    while net.now < end:
        net.run(0.02)
        views = views_of(net)
        if not any(way_up(views, name)[-1] == "circle" for name in views):
            since = net.now
        longest = max(longest, net.now - since)
    return longest


def survives(seed: int, size: int, faults: int) -> None:
    rng = Random(f"{seed}/faults")
    net = crowd(seed, size)
    for _ in range(faults):
        strike(net, rng, size)
        assert longest_circle(net, rng.uniform(0.1, 2.0)) < CIRCLE_S, f"seed {seed} at {net.now}"
    net.heal()
    net.blocked.clear()
    net.weather = Weather(loss=0.02)
    assert settled_after(net, 8.0) < 5.0, f"seed {seed}"


@pytest.mark.parametrize("seed", range(8))
def test_after_faults_there_is_one_tree_again(seed: int) -> None:
    survives(seed, 5, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_after_many_faults_there_is_one_tree_again(seed: int) -> None:
    survives(seed, 5 + seed % 4, 20)
