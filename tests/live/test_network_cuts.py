"""Links that are cut and healed under load, in network namespaces: nothing is lost, whatever a wire does.

Each node has a namespace of its own, and each link is a pair of virtual Ethernet devices, so a cut is what a pulled
cable is: bytes vanish and nobody is told.  Clients come by Unix sockets, which no cut can reach.  Needs root.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .crowd import Crowd
from .networks import hears
from .nodes import START_S, LiveNode, wait_until
from .wires import Wires, needs_namespaces

MESSAGES_PER_S = 150
PAIRS = ("ab", "bc")

_TOML = """
[node]
name = "{name}"
data = "{directory}/data"
[journal]
durability = "os"
segment_bytes = 65536
[[listener]]
bind = "unix:{directory}/mqtt"
[admin]
bind = "unix:{directory}/admin"
[network]
name = "cuts"
bind = "0.0.0.0:7883"
key = "the key of this network"
neighbours = {neighbours}
"""


pytestmark = [pytest.mark.slow, needs_namespaces]


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires(PAIRS) as wires:
        yield wires


@pytest.fixture
def nodes(wires: Wires, tmp_path: Path) -> Iterator[dict[str, LiveNode]]:
    """Three in a row, each in its own namespace."""
    with ExitStack() as stack:
        nodes = {name: _node(wires, name, tmp_path / name) for name in "abc"}
        for node in nodes.values():
            node.launch()
            stack.callback(node.kill)
        for node in nodes.values():
            wait_until(node.is_up, "a node listens", START_S)
        wait_until(lambda: all(hears(node, "abc") for node in nodes.values()), "all nodes hear all others")
        yield nodes
        for node in nodes.values():
            assert "Traceback" not in node.log()


@pytest.fixture
def crowd(nodes: dict[str, LiveNode]) -> Iterator[Crowd]:
    with Crowd(list(nodes.values()), random.Random(1), MESSAGES_PER_S) as crowd:
        yield crowd


def _node(wires: Wires, name: str, directory: Path) -> LiveNode:
    neighbours = [f"{wires.address(pair, pair[0])}:7883" for pair in wires.pairs if pair[1] == name]
    toml = _TOML.format(name=name, directory=directory, neighbours=neighbours)
    return LiveNode(directory, toml, within=("ip", "netns", "exec", wires.space(name)))


def _live(crowd: Crowd, seconds: float) -> None:
    end = time.monotonic() + seconds
    crowd.run(lambda: time.monotonic() > end, seconds + 1)


def _account(crowd: Crowd, nodes: dict[str, LiveNode]) -> None:
    assert crowd.run(lambda: all(hears(node, "abc") for node in nodes.values()), START_S)
    crowd.drain()
    crowd.check()
    crowd.check_retained()


def test_a_cut_that_is_healed_in_time_costs_a_pause(wires: Wires, nodes: dict[str, LiveNode], crowd: Crowd) -> None:
    before = {name: {link["peer"]: link["session"] for link in node.network()["links"]} for name, node in nodes.items()}
    _live(crowd, 0.5)
    wires.cut("ab")
    _live(crowd, 0.3)
    wires.heal("ab")
    _live(crowd, 0.5)
    _account(crowd, nodes)
    after = {name: {link["peer"]: link["session"] for link in node.network()["links"]} for name, node in nodes.items()}
    assert after == before


def test_a_cut_that_lasts_is_made_up_for_when_it_is_healed(
    wires: Wires, nodes: dict[str, LiveNode], crowd: Crowd
) -> None:
    _cut_off("a", "ab", crowd, wires, nodes)
    _cut_off("c", "bc", crowd, wires, nodes)
    _account(crowd, nodes)


def _cut_off(name: str, pair: str, crowd: Crowd, wires: Wires, nodes: dict[str, LiveNode]) -> None:
    """For so long that everybody has given the node up."""
    others = [node for other, node in nodes.items() if other != name]
    _live(crowd, 0.5)
    wires.cut(pair)
    assert crowd.run(lambda: all(name not in node.network()["paths"] for node in others), START_S), "nobody noticed"
    wires.heal(pair)
    assert crowd.run(lambda: all(hears(node, "abc") for node in nodes.values()), START_S), "they do not find together"


def test_a_node_killed_while_its_link_is_cut_loses_nothing(
    wires: Wires, nodes: dict[str, LiveNode], crowd: Crowd
) -> None:
    _live(crowd, 0.5)
    wires.cut("bc")
    _live(crowd, 0.3)
    nodes["b"].kill()
    wires.heal("bc")
    nodes["b"].launch()
    assert crowd.run(nodes["b"].is_up, START_S)
    _account(crowd, nodes)


def test_a_bad_wire_loses_nothing_that_was_promised(wires: Wires, nodes: dict[str, LiveNode], crowd: Crowd) -> None:
    wires.spoil("ab", "loss", "5%", "delay", "5ms", "3ms")
    _live(crowd, 3)
    _account(crowd, nodes)


def test_a_loose_contact_loses_nothing_that_was_promised(
    wires: Wires, nodes: dict[str, LiveNode], crowd: Crowd
) -> None:
    for number in range(12):
        wires.cut(wires.pairs[number % 2])
        _live(crowd, 0.1)
        wires.heal(wires.pairs[number % 2])
        _live(crowd, 0.2)
    _account(crowd, nodes)
