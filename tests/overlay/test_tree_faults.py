"""Trees that are hurt: nodes killed, cut off, restarted, half reachable; the rest is one tree again, quickly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from datagram_world import DEFAULTS, DatagramWorld, Weather, pair_of
from tree_shape import ROUGH, capability_of, crowd, settled_after, shortcomings, views_of

RE_FORMED_S = 3.0
"""The promise for the default timers, after a killed node."""


@pytest.mark.parametrize("silently", [False, True], ids=["links break", "silently"])
@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (5, 3)])
def test_whoever_is_killed_the_rest_is_one_tree_within_three_seconds(size: int, seed: int, silently: bool) -> None:
    for victim in range(size):
        net = crowd(seed, size)
        settled_after(net, 3.0)
        net.kill(f"n{victim:02}", silently=silently)
        assert settled_after(net, 5.0) < RE_FORMED_S


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True], ids=["links break", "silently"])
@pytest.mark.parametrize(("size", "seed"), [(9, 4), (13, 5)])
def test_larger_trees_re_form_within_three_seconds(size: int, seed: int, silently: bool) -> None:
    net = crowd(seed, size)
    settled_after(net, 3.0)
    for victim in range(0, size, 2):
        net.kill(f"n{victim:02}", silently=silently)
        assert settled_after(net, 4.0) < RE_FORMED_S
        net.boot(f"n{victim:02}", capability_of(seed, victim))
        assert settled_after(net, 4.0) < RE_FORMED_S


def test_a_broken_link_tells_of_the_death_of_the_root_in_under_a_second() -> None:
    net = crowd(3, 5, weather=Weather())
    settled_after(net, 3.0)
    root = str(views_of(net)["n00"]["root"])
    net.kill(root)
    survivor = next(iter(net.hosts))
    while net.hosts[survivor].overlay.view()["root"] == root and net.now < 10:
        net.run(0.01)
    assert net.now - 3.0 < 1.0


def test_a_link_that_breaks_between_the_living_moves_nobody() -> None:
    net = crowd(3, 5, weather=Weather())
    settled_after(net, 4.0)
    seen = len(net.trace)
    for pair in list(net.links):
        net.break_link(*pair)
    net.run(3.0)
    assert [line for line in net.trace[seen:] if "changed" in line or "lost" in line] == []
    assert shortcomings(net) == []


def test_a_node_that_says_goodbye_is_missed_at_once() -> None:
    net = crowd(3, 5, weather=Weather())
    settled_after(net, 3.0)
    root = str(views_of(net)["n00"]["root"])
    net.hosts[root].overlay.stop()
    net.kill(root, silently=True)
    assert settled_after(net, 4.0) < 0.6


@pytest.mark.parametrize("seed", range(3))
def test_each_side_of_a_partition_has_its_tree_and_healing_makes_them_one(seed: int) -> None:
    net = crowd(seed, 7)
    settled_after(net, 3.0)
    one, other = ["n00", "n01", "n02"], ["n03", "n04", "n05", "n06"]
    net.partition(one, other)
    net.run(3.0)
    settled_after(net, 3.0, one)
    assert shortcomings(net, other) == []
    net.heal()
    assert settled_after(net, 5.0) < RE_FORMED_S


def test_a_partition_heals_after_minutes_too() -> None:
    net = crowd(1, 4)
    settled_after(net, 3.0)
    net.partition(["n00", "n01"], ["n02", "n03"])
    net.run(180.0)
    net.heal()
    assert settled_after(net, 5.0) < RE_FORMED_S


def test_a_root_that_restarts_at_once_is_root_again() -> None:
    net = crowd(3, 5)
    settled_after(net, 3.0)
    root = str(views_of(net)["n00"]["root"])
    net.kill(root)
    net.run(0.1)
    net.boot(root, capability_of(3, int(root[1:])))
    assert settled_after(net, 5.0) < RE_FORMED_S
    assert {view["root"] for view in views_of(net).values()} == {root}


def test_a_node_that_cannot_reach_the_root_itself_goes_through_one_that_can() -> None:
    net = DatagramWorld(4, weather=ROUGH)
    net.blocked[pair_of("a", "c")] = None
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    assert {name: view["parent"] for name, view in views_of(net).items()} == {"a": None, "b": "a", "c": "b"}


def test_losing_sight_of_the_root_leads_to_a_way_round_and_its_death_is_noticed_all_the_same() -> None:
    net = DatagramWorld(4, weather=ROUGH)
    for name, capability in (("a", 4), ("b", 3), ("c", 2), ("d", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    net.blocked[pair_of("a", "d")] = None
    net.run(6.0)
    settled_after(net, 2.0)
    net.kill("a", silently=True)
    assert settled_after(net, 6.0) < 2 * RE_FORMED_S


def test_a_peer_that_speaks_but_does_not_hear_is_given_up() -> None:
    net = DatagramWorld(2)
    net.boot("a", 2)
    net.boot("b", 1)
    settled_after(net, 2.0)
    deaf = net.hosts["a"].overlay
    deaf.datagram = lambda sender, data: None  # type: ignore[method-assign]  # the fault itself: a one-way network
    net.run(6.0)
    assert net.hosts["b"].overlay.view()["root"] == "b"


def test_a_parent_that_gives_no_link_is_passed_over() -> None:
    net = DatagramWorld(6, weather=Weather())
    net.no_link[pair_of("a", "c")] = None
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    net.run(3 + DEFAULTS.link_patience_s)
    assert views_of(net)["c"]["parent"] == "b"
    assert shortcomings(net) == []
    assert any("parent-passed-over" in line for line in net.trace)


def test_links_still_in_use_stay_up_while_the_tree_re_forms() -> None:
    net = DatagramWorld(1, weather=Weather())
    # c hangs on b for its nearness; when the root a dies, b is the next root and c need not move.
    net.latency = {("a", "b"): 0.005, ("a", "c"): 0.1, ("b", "c"): 0.005}
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    seen = len(net.trace)
    net.kill("a")
    assert settled_after(net, 4.0) < RE_FORMED_S
    assert [line for line in net.trace[seen:] if "link b c" in line or "link c b" in line] == []
    assert list(net.links) == [("b", "c")]


def test_many_peers_slow_the_pings_down() -> None:
    net = DatagramWorld(3, weather=Weather())
    slow = replace(DEFAULTS, pings_per_s=10.0)
    for number in range(12):
        net.boot(f"n{number:02}", 1.0, settings=slow)
    net.run(8.0)
    before = net.hosts["n05"].overlay.view()["datagrams"]
    net.run(10.0)
    after = net.hosts["n05"].overlay.view()["datagrams"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # Ten pings and as many answers a second; every other second a call, answers to eleven, and introductions for them.
    assert after["sent"] - before["sent"] <= 10 * (10 + 10 + 0.5 * (1 + 11 + 11)) * 1.05
    assert shortcomings(net) == []
