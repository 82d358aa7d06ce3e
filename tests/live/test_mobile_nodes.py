"""Nodes that move, as processes in network namespaces: cables come and go, and nobody has an address of anybody.

Each node has a namespace of its own; a cable is a pair of virtual Ethernet devices.  Nodes find each other by hellos on
IPv6 link-local addresses.  Clients come by Unix sockets, which no cut can reach.  Needs root.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .crowd import Crowd
from .networks import hears
from .nodes import START_S, LiveNode, wait_until
from .wires import Wires, needs_namespaces

pytestmark = [pytest.mark.slow, needs_namespaces]

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
name = "convoy"
bind = "{bind}"
key = "the key of this network"
overlay = "mobile"
strategy = "{strategy}"
{more}
"""
IPV6 = "[::]:7883"
IPV4 = "0.0.0.0:7883"


def node(
    wires: Wires, name: str, directory: Path, *, strategy: str = "mobile", bind: str = IPV6, more: str = ""
) -> LiveNode:
    toml = _TOML.format(name=name, directory=directory, strategy=strategy, bind=bind, more=more)
    return LiveNode(directory, toml, within=("ip", "netns", "exec", wires.space(name)))


@contextmanager
def running(nodes: dict[str, LiveNode]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in nodes.values():
            one.launch()
            stack.callback(_end, one)
        for one in nodes.values():
            wait_until(one.is_up, "a node listens", START_S)
        yield
        for one in nodes.values():
            assert "Traceback" not in one.log()


def _end(one: LiveNode) -> None:
    if one.is_running:
        one.kill()


def all_hear(nodes: dict[str, LiveNode]) -> bool:
    return all(hears(one, "".join(nodes)) for one in nodes.values() if one.is_running)


def live(crowd: Crowd, seconds: float) -> None:
    end = time.monotonic() + seconds
    crowd.run(lambda: time.monotonic() > end, seconds + 1)


@pytest.mark.parametrize("bind", [IPV6, IPV4], ids=["ipv6", "ipv4"])
def test_nodes_find_each_other_on_every_interface_without_an_address(bind: str, tmp_path: Path) -> None:
    with Wires(("ab", "bc")) as wires:
        nodes = {
            name: node(wires, name, tmp_path / name, strategy="subscription-flooding", bind=bind) for name in "abc"
        }
        with running(nodes):
            wait_until(lambda: all_hear(nodes), "all nodes hear all others")
            view = nodes["b"].network()["overlay"]
            assert sorted(view["peers"]) == ["a", "c"]
            if bind == IPV6:
                assert all(
                    peer["address"].startswith("[fe80::") and "%" in peer["address"] for peer in view["peers"].values()
                )
            with Crowd(list(nodes.values()), random.Random(1), 100) as crowd:
                live(crowd, 1.0)
                wires.cut("bc")
                wait_until(lambda: "c" not in nodes["b"].network()["paths"], "b has given c up")
                live(crowd, 1.0)
                wires.heal("bc")
                assert crowd.run(lambda: all_hear(nodes), 60)
                crowd.drain()
                crowd.check()
                crowd.check_retained()
