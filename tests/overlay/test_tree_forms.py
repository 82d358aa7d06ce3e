"""Trees that form: whatever the size and the weather, one under the most capable node, quickly, over short paths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from datagram_world import DEFAULTS, DatagramWorld, Weather, address_of
from tree_shape import (
    ROUGH,
    capability_of,
    crowd,
    detours,
    number_in,
    settled_after,
    shortcomings,
    shortest_ms,
    true_cost_ms,
    views_of,
    way_up,
)

START_UP_S = 2.0
"""The promise for the default timers."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_nodes_that_start_together_are_one_tree_within_two_seconds(size: int, seed: int) -> None:
    net = crowd(seed, size)
    assert settled_after(net, 3.0) < START_UP_S


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seed"), [(13, 1), (20, 2), (30, 3)])
def test_a_join_storm_ends_in_one_tree_within_two_seconds(size: int, seed: int) -> None:
    net = crowd(seed, size)
    assert settled_after(net, 3.0) < START_UP_S


def test_a_node_alone_is_its_own_root() -> None:
    net = crowd(1, 1)
    net.run(3.0)
    view = net.hosts["n00"].overlay.view()
    assert (view["state"], view["root"], view["parent"], view["peers"]) == ("root", "n00", None, {})


def test_a_tree_is_forming_until_its_root_is_no_longer_new() -> None:
    net = DatagramWorld(1)
    for name in ("c", "a", "b"):
        net.boot(name, 5.0)
    net.run(0.9)
    assert all(view["forming"] for view in views_of(net).values())
    net.run(2.0)
    assert not any(view["forming"] for view in views_of(net).values())
    net.boot("d", 9.0)  # a root for all
    net.run(0.9)
    assert all(view["forming"] for view in views_of(net).values())


def test_of_equally_capable_nodes_the_first_by_name_is_root() -> None:
    net = DatagramWorld(1)
    for name in ("c", "a", "b"):
        net.boot(name, 5.0)
    settled_after(net, 2.0)
    assert {view["root"] for view in views_of(net).values()} == {"a"}


def test_capability_weighs_processor_and_memory() -> None:
    heavy_on_memory = replace(DEFAULTS, cpu=1000, memory=16000, cpu_weight=2.0, memory_weight=0.5)
    assert heavy_on_memory.capability == 2.0 * 1000 + 0.5 * 16000


@pytest.mark.parametrize("seed", range(4))
def test_paths_come_within_the_threshold_of_the_shortest(seed: int) -> None:
    net = crowd(seed, 8)
    settled_after(net, 10.0)
    assert detours(net) == []
    views = views_of(net)
    shortest = shortest_ms(net, str(views["n00"]["root"]))
    for name in views:
        # Each hop may be off by the threshold, so a branch by the threshold to the power of its length.
        way = way_up(views, name)
        allowed = shortest[name] * (1 + DEFAULTS.change_ratio + 0.1) ** (len(way) - 1) + 2 * len(way)
        assert true_cost_ms(net, way) <= allowed, (way, shortest[name])


def test_the_cost_a_node_shows_is_about_the_round_trips_to_the_root() -> None:
    net = crowd(3, 5)
    settled_after(net, 6.0)
    views = views_of(net)
    for name, view in views.items():
        assert number_in(view, "cost_ms") == pytest.approx(true_cost_ms(net, way_up(views, name)), rel=0.25, abs=1.0)


@pytest.mark.parametrize("loss", [0.15, 0.25])
def test_the_tree_forms_though_many_datagrams_are_lost(loss: float) -> None:
    net = crowd(5, 6, weather=replace(ROUGH, loss=loss, doubled=0.1, overtaken=0.2))
    net.run(10.0)
    right = 0
    for _ in range(100):
        net.run(0.1)
        right += not shortcomings(net)
    assert right >= 90


def test_where_there_is_no_multicast_one_seed_address_is_enough() -> None:
    net = DatagramWorld(7, weather=ROUGH, multicast=False)
    seeded = replace(DEFAULTS, seeds=(address_of("n00"),))
    for number in range(8):
        net.boot(f"n{number:02}", capability_of(7, number), settings=seeded)
    assert settled_after(net, 6.0) < 2 * START_UP_S
    assert all(len(view["peers"]) == 7 for view in views_of(net).values() if isinstance(view["peers"], dict))


def test_seeds_added_at_run_time_join_two_networks() -> None:
    net = DatagramWorld(8, multicast=False)
    for name, capability, seed in (("a", 1, "b"), ("b", 2, "a"), ("c", 3, "d"), ("d", 4, "c")):
        net.boot(name, capability, settings=replace(DEFAULTS, seeds=(address_of(seed),)))
    settled_after(net, 3.0, ["a", "b"])
    settled_after(net, 1.0, ["c", "d"])
    net.hosts["a"].overlay.add(address_of("c"), address_of("d"))
    assert settled_after(net, 4.0) < START_UP_S
    assert net.hosts["a"].overlay.view()["seeds"] == [address_of("b"), address_of("c"), address_of("d")]


def test_a_better_node_that_joins_becomes_the_root() -> None:
    net = crowd(2, 5)
    settled_after(net, 3.0)
    net.boot("late", 100.0)
    assert settled_after(net, 4.0) < START_UP_S
    assert {view["root"] for view in views_of(net).values()} == {"late"}


def test_a_lesser_node_that_joins_moves_nobody_else() -> None:
    net = crowd(2, 5, weather=Weather())
    settled_after(net, 4.0)
    parents = {name: view["parent"] for name, view in views_of(net).items()}
    net.latency.update({("late", name): 0.2 for name in parents} | {(name, "late"): 0.2 for name in parents})
    net.boot("late", -1.0)
    assert settled_after(net, 4.0) < START_UP_S
    assert {name: view["parent"] for name, view in views_of(net).items() if name != "late"} == parents


def test_clocks_that_disagree_do_not_matter() -> None:
    net = DatagramWorld(9, weather=ROUGH)
    clocks = [(0.0, 1.0), (1e6, 1.001), (-3600.0, 0.999), (12.5, 1.01), (3.0, 0.99)]
    for number, clock in enumerate(clocks):
        net.boot(f"n{number:02}", capability_of(9, number), clock=clock)
    assert settled_after(net, 4.0) < START_UP_S
    net.run(30.0)
    assert shortcomings(net) == []


def test_a_tree_in_steady_weather_does_not_change() -> None:
    net = crowd(4, 6, weather=replace(ROUGH, jitter=0.3))
    net.run(6.0)
    seen = len(net.trace)
    net.run(40.0)
    assert [line for line in net.trace[seen:] if "changed" in line or "lost" in line] == []


def test_a_path_that_grows_much_longer_is_left() -> None:
    net = DatagramWorld(1, weather=Weather())
    net.latency = {("a", "b"): 0.005, ("a", "c"): 0.005, ("b", "c"): 0.005}
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    assert views_of(net)["c"]["parent"] == "a"
    net.latency["a", "c"] = 0.1
    net.run(6.0)
    assert views_of(net)["c"]["parent"] == "b"
    assert shortcomings(net) == []


def test_a_path_that_grows_a_little_longer_is_kept() -> None:
    net = DatagramWorld(1, weather=Weather())
    net.latency = {("a", "b"): 0.005, ("a", "c"): 0.0095, ("b", "c"): 0.005}
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    assert views_of(net)["c"]["parent"] == "a"
    net.latency["a", "c"] = 0.0115
    net.run(6.0)
    assert views_of(net)["c"]["parent"] == "a"
