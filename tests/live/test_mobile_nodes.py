"""Nodes that move, as processes in network namespaces: cables come and go, and nobody has an address of anybody.

Each node has a namespace of its own; a cable is a pair of virtual Ethernet devices.  Nodes find each other by hellos on
IPv6 link-local addresses.  Clients come by Unix sockets, which no cut can reach.  Needs root.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .crowd import Crowd
from .nodes import START_S, LiveNode, wait_until
from .steadfast import Steadfast
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


def hears(one: LiveNode, others: Iterable[str]) -> bool:
    """Does it reach these, and nobody else, and lack nothing of theirs?"""
    view = one.network()
    others = set(others) - {view["node"]}
    return set(view["paths"]) == others and all(view["streams"].get(name) in ("synced", "doubtful") for name in others)


def all_hear(nodes: dict[str, LiveNode]) -> bool:
    return all(hears(one, nodes) for one in nodes.values() if one.is_running)


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


FIGURE = ("ab", "ac", "bd", "be", "cf", "cg", "ef", "bc")
"""The tree of the thesis' Figure 4.2, a to g for b1 to b7, and the two links that are made in it."""


def test_figure_4_2_under_load_loses_nothing(tmp_path: Path) -> None:
    with Wires(FIGURE) as wires:
        wires.cut("ef")
        wires.cut("bc")
        nodes = {name: node(wires, name, tmp_path / name) for name in "abcdefg"}
        with running(nodes):
            wait_until(lambda: all_hear(nodes), "all nodes hear all others")
            with Crowd(list(nodes.values()), random.Random(2), 60) as crowd:
                live(crowd, 1.0)
                wires.cut("ac")
                wires.cut("cf")
                assert crowd.run(lambda: "f" not in nodes["a"].network()["paths"], 60)
                wires.heal("ef")
                assert crowd.run(lambda: "f" in nodes["a"].network()["paths"], 60)
                wires.heal("bc")
                assert crowd.run(lambda: all_hear(nodes), 60)
                assert nodes["a"].network()["paths"]["f"] == "b"
                crowd.drain()
                crowd.check()
                crowd.check_retained()


def test_a_convoy_that_passes_a_base_leaves_nothing_behind(tmp_path: Path) -> None:
    """Base a; vehicles b, c and d in a line: each is within reach of the base for a while, the last ones together."""
    with Wires(("ab", "ac", "ad", "bc", "cd")) as wires:
        for cable in ("ab", "ac", "ad"):
            wires.cut(cable)
        carry = '[network.routing]\ncarry = "all"\n'
        nodes = {name: node(wires, name, tmp_path / name, more=carry) for name in "abcd"}
        with running(nodes):
            wait_until(lambda: all(hears(nodes[name], "bcd") for name in "bcd"), "the vehicles hear each other")
            with Crowd(list(nodes.values()), random.Random(4), 60) as crowd:
                live(crowd, 1.0)
                for near, far in (("ab", ""), ("ac", "ab"), ("ad", "ac")):
                    wires.heal(near)
                    assert crowd.run(lambda: all_hear(nodes), 60)
                    if far:
                        wires.cut(far)
                        live(crowd, 1.0)
                wires.cut("ad")
                assert crowd.run(lambda: not nodes["a"].network()["paths"], 60)
                nodes["c"].kill()  # out of reach of the base, the convoy breaks in two
                assert crowd.run(lambda: hears(nodes["b"], "b"), 60)
                nodes["c"].launch()
                live(crowd, 1.0)
                wires.heal("ac")
                assert crowd.run(lambda: all_hear(nodes), 60)
                crowd.drain()
                crowd.check()
                crowd.check_retained()


def _give_and_take(client: Steadfast, one: LiveNode, done: Callable[[], bool], what: str) -> None:
    def step() -> bool:
        if client.fileno() is None:
            client.connect(one.entrance)
        client.pump()
        return done()

    wait_until(step, what)


@pytest.mark.parametrize("have_met", [True, False])
def test_a_carrier_between_two_bases_delivers_when_the_origin_is_switched_off(have_met: bool, tmp_path: Path) -> None:
    """A session that begins while the origin is away may have an older one there: it gets QoS 1 alone until then."""
    with Wires(("ab", "bc")) as wires:
        if not have_met:
            wires.cut("bc")
        carry = '[network.routing]\ncarry = "all"\n'
        nodes = {name: node(wires, name, tmp_path / name, more=carry) for name in "abc"}
        with running(nodes):
            publisher, reader = Steadfast("publisher"), Steadfast("reader")
            met = "abc" if have_met else "ab"
            wait_until(lambda: all(hears(nodes[name], met) for name in met), "those that can meet have met")
            reader.subscribe("base/#", 2)
            _give_and_take(reader, nodes["c"], lambda: bool(reader.subscriptions), "the reader subscribes")
            if have_met:
                wires.cut("bc")
                wait_until(lambda: hears(nodes["b"], "ab"), "the reader is away")
            for number in range(50):
                publisher.publish("base/news", b"%d" % number, 1 + (number % 2 if have_met else 0))
            done = lambda: publisher.acknowledged == 50  # noqa: E731
            _give_and_take(publisher, nodes["a"], done, "everything is acknowledged")
            wait_until(lambda: nodes["b"].network()["carried"]["messages"] == 50, "the carrier has everything")
            nodes["a"].kill()
            assert reader.given == []
            wires.cut("ab")
            wires.heal("bc")
            arrived = lambda: len(reader.given) >= 50  # noqa: E731
            _give_and_take(reader, nodes["c"], arrived, "the reader has everything")
            for qos in (1, 2):  # each in order, and once
                wanted = [number for number in range(50) if qos == 1 + (number % 2 if have_met else 0)]
                assert [int(given.payload) for given in reader.given if given.qos == qos] == wanted
            assert nodes["b"].network()["carried"]["handed_on"] == 50
            publisher.vanish()
            reader.vanish()


def test_the_two_laptops_of_the_documentation_hear_each_other(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "mobile.md"
    files = re.findall(r"```toml\n# (laptop-\d): sterna.toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["laptop-1", "laptop-2"]
    with Wires(("ab",)) as wires:
        nodes = {}
        for (name, toml), space in zip(files, "ab", strict=True):
            directory = tmp_path / name
            directory.mkdir()
            (directory / "secret").write_text("a key for two laptops\n")
            # As printed, but for the doors of clients: they are outside the namespace here.
            doors = toml.replace('bind = "127.0.0.1:1883"', f'bind = "unix:{directory}/mqtt"')
            admin = f'[admin]\nbind = "unix:{directory}/admin"\n'
            nodes[name] = LiveNode(directory, doors + admin, within=("ip", "netns", "exec", wires.space(space)))
        with running(nodes):
            wait_until(lambda: all(hears(one, nodes) for one in nodes.values()), "both hear each other")
            with Crowd(list(nodes.values()), random.Random(3), 60) as crowd:
                live(crowd, 1.0)
                wires.cut("ab")
                live(crowd, 3.0)
                wires.heal("ab")
                assert crowd.run(lambda: all(hears(one, nodes) for one in nodes.values()), 60)
                crowd.drain()
                crowd.check()
