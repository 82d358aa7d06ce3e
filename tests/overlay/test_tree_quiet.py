"""A steady tree whispers: its upkeep is small, grows with its nodes, and costs nothing in attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from datagram_world import DEFAULTS, DatagramWorld, Host, Weather, address_of
from tree_shape import capability_of, settled_after, shortcomings, views_of

from sterna.overlay.spanning_tree import SpanningTreeOverlay
from sterna.overlay.tree_settings import TreeSettings

HEADER_BYTES = 14 + 20 + 8
"""Ethernet, IP and UDP."""
STEADY_S = 120.0


class MeteredHost(Host):
    net: MeteredWorld

    def send_datagram(self, address: str, data: bytes) -> None:
        self.net.sent(data)
        super().send_datagram(address, data)

    def send_discovery(self, data: bytes) -> None:
        if self.net.multicast:
            self.net.sent(data)
        super().send_discovery(data)


class MeteredWorld(DatagramWorld):
    """Counts what passes on the wire; a call into the group is one packet."""

    datagrams = 0
    octets = 0

    def sent(self, data: bytes) -> None:
        self.datagrams += 1
        self.octets += HEADER_BYTES + len(data)

    def boot_metered(self, name: str, capability: float, settings: TreeSettings = DEFAULTS) -> Host:
        own = replace(settings, node=name, address=address_of(name), cpu=capability)
        host = self.hosts[name] = MeteredHost(self, name, own, (0.0, 1.0))
        host.overlay.start()
        return host

    def bytes_per_s(self, seconds: float) -> float:
        before = self.octets
        self.run(seconds)
        return (self.octets - before) / seconds


def steady(size: int, *, loss: float = 0.0, multicast: bool = True, settings: TreeSettings = DEFAULTS) -> MeteredWorld:
    net = MeteredWorld(size, weather=Weather(loss=loss), multicast=multicast)
    for number in range(size):
        net.boot_metered(f"node-{number}", capability_of(size, number), settings)
    settled_after(net, 8.0)
    return net


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_five_steady_nodes_stay_below_a_kilobyte_a_second_in_all(loss: float) -> None:
    net = steady(5, loss=loss)
    assert net.bytes_per_s(STEADY_S) <= 1000
    assert shortcomings(net) == []


def test_the_upkeep_grows_with_nodes_not_with_pairs() -> None:
    rates = {size: steady(size).bytes_per_s(STEADY_S) for size in (5, 10, 20)}
    print(rates)
    per_link = {size: rate / (size - 1) for size, rate in rates.items()}
    # Of a handful the calls of the root weigh more, so a link of the larger ones comes cheaper.
    assert per_link[10] <= 1.05 * per_link[5]
    assert per_link[20] <= 1.05 * per_link[10]


def test_seed_addresses_that_have_answered_are_seldom_called_again() -> None:
    everybody = tuple(address_of(f"node-{number}") for number in range(5))
    net = steady(5, multicast=False, settings=replace(DEFAULTS, seeds=everybody))
    assert net.bytes_per_s(STEADY_S) <= 1000
    assert all(len(host.overlay.addresses) == 5 for host in net.hosts.values())


def test_a_seed_that_comes_up_late_is_found_within_the_time_between_two_calls() -> None:
    net = MeteredWorld(3, multicast=False)
    for name in ("a", "b"):
        net.boot_metered(name, 1.0, replace(DEFAULTS, seeds=(address_of("a"), address_of("late"))))
    net.run(60.0)
    net.boot_metered("late", 0.5)
    net.run(DEFAULTS.discover_s + 1.0)
    assert shortcomings(net) == []


def test_two_trees_that_never_met_hear_each_other_within_the_time_between_two_calls() -> None:
    net = MeteredWorld(4)
    one, other = ["a", "b", "c"], ["d", "e", "f"]
    net.partition(one, other)
    for number, name in enumerate([*one, *other]):
        net.boot_metered(name, float(number))
    net.run(60.0)
    assert shortcomings(net, one) == shortcomings(net, other) == []
    net.heal()
    assert settled_after(net, 6.0) < DEFAULTS.discover_s + 1.0


def test_a_silent_death_is_known_to_everybody_though_only_neighbours_watch() -> None:
    net = steady(10)
    leaf = next(name for name, view in views_of(net).items() if not view["children"] and view["parent"])
    net.run(30.0)
    net.kill(leaf, silently=True)
    net.run(3.0)
    for host in net.hosts.values():
        peers = host.overlay.view()["peers"]
        assert isinstance(peers, dict)
        assert peers[leaf]["state"] == "dead"


def test_a_much_shorter_way_that_appears_is_found_in_the_end() -> None:
    net = MeteredWorld(1, weather=Weather())
    net.latency = {("a", "b"): 0.005, ("a", "c"): 0.050, ("b", "c"): 0.100}
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot_metered(name, capability)
    settled_after(net, 4.0)
    assert views_of(net)["c"]["parent"] == "a"
    net.latency["b", "c"] = 0.005
    net.run(4 * DEFAULTS.sample_s)
    assert views_of(net)["c"]["parent"] == "b"


def test_coordinates_tell_about_how_far_all_the_others_are() -> None:
    net = MeteredWorld(2, weather=Weather())
    names = [f"node-{number}" for number in range(8)]
    # On a line, 5 ms from one to the next, one way.
    net.latency = {(a, b): 0.005 * (int(b[-1]) - int(a[-1])) for a in names for b in names if a < b}
    for name in names:
        net.boot_metered(name, float(name[-1]))
    net.run(300.0)
    wrong = []
    for name, view in views_of(net).items():
        peers = view["peers"]
        assert isinstance(peers, dict)
        true_ms = {peer: 10.0 * abs(int(peer[-1]) - int(name[-1])) for peer in peers}
        wrong += [abs(told["estimate_ms"] - true_ms[peer]) / true_ms[peer] for peer, told in peers.items()]
    assert sorted(wrong)[len(wrong) // 2] < 0.3


def test_hosts_with_dead_friends_whisper_too() -> None:
    net = steady(6)
    for name in ("node-4", "node-5"):
        net.kill(name)
    net.run(10.0)
    # One question a second each, to one of the dead.
    assert net.bytes_per_s(30.0) <= 1000 + 4 * 250


def test_an_interrupted_connection_is_asked_about_at_once() -> None:
    net = steady(3)
    root = str(views_of(net)["node-0"]["root"])
    child = next(name for name, view in views_of(net).items() if view["parent"] == root)
    before = net.datagrams
    overlay = net.hosts[child].overlay
    assert isinstance(overlay, SpanningTreeOverlay)
    overlay.link_interrupted(root)
    assert net.datagrams == before + 1
    net.run(1.0)
    assert shortcomings(net) == []
