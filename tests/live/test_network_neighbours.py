"""Who may belong to a network, and neighbours that come and go by command under traffic."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Join
from .crowd import Crowd
from .networks import LiveNetwork, hears, linked
from .nodes import START_S, LiveNode, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("pair"), ["ab"], more='key = "the key of this network"') as network:
        yield network
        network.check_logs()


def sterna(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def is_told(node: LiveNode, reason: str) -> bool:
    """Does its log say why a link was refused, whoever refused it?"""
    refusals = [event for event in node.events() if event["event"].startswith("link refused")]
    return any(reason in event["reason"] for event in refusals)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("f", ('"subscription-flooding"', '"advertisement"'), "a network uses one strategy"),
        ("g", ("the key of this network", "another key altogether"), "key"),
        ("h", ('name = "live"', 'name = "elsewhere"'), "belongs to network"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_and_both_sides_say_why(
    pair: LiveNetwork, name: str, change: tuple[str, str], reason: str
) -> None:
    stranger = pair.make(name, [pair.door("a")], pair.strategy)
    toml = stranger.file.read_text()
    assert change[0] in toml
    stranger.file.write_text(toml.replace(*change))
    with stranger:
        wait_until(lambda: is_told(stranger, reason), "the stranger is told why")
        wait_until(lambda: is_told(pair["a"], reason), "the node says why")
        assert linked(stranger.network()) == []
        (state,) = stranger.network()["dialled"].values()
        assert reason in state
    assert linked(pair["a"].network()) == ["b"]


def test_two_nodes_of_one_name_are_refused(pair: LiveNetwork) -> None:
    namesake = pair.make("i", [pair.door("a")], pair.strategy)
    namesake.file.write_text(namesake.file.read_text().replace('name = "i"', 'name = "a"'))
    with namesake:
        wait_until(lambda: is_told(namesake, "named a"), "it is told why")


def test_the_commands_show_and_change_a_running_node(pair: LiveNetwork) -> None:
    node = pair["b"]
    status, out, err = sterna("network", "--admin", node.admin)
    assert (status, err) == (0, "")
    assert "node b" in out
    assert "network live" in out
    assert "subscription-flooding" in out
    assert "synced" in out
    assert json.loads(sterna("network", "--admin", node.admin, "--json")[1])["node"] == "b"
    status, out, _ = sterna("neighbours", "list", "--admin", node.admin)
    assert (status, out) == (0, f"{pair.door('a')}\tlinked with node a\n")
    status, _, err = sterna("neighbours", "add", "127.0.0.1:1", "nonsense", "--admin", node.admin)
    assert (status, "nonsense" in err) == (1, True)
    status, _, err = sterna("neighbours", "remove", pair.door("a"), "127.0.0.1:1", "--admin", node.admin)
    assert (status, "127.0.0.1:1" in err) == (1, True)
    assert json.loads(node.ask("/neighbours")[1])["neighbours"] == [pair.door("a")]


def test_a_command_without_an_answer_says_what_to_look_at() -> None:
    status, out, err = sterna("network", "--admin", "127.0.0.1:1")
    assert (status, out) == (1, "")
    assert "is the node running" in err


def test_beyond_its_token_nothing_is_changed(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a token for the admin port\n")
    network = LiveNetwork(tmp_path, ["ab"])
    node = network["a"]
    toml = node.file.read_text()
    node.file.write_text(toml.replace("[admin]\n", f'[admin]\ntoken_file = "{secret}"\n'))
    with node:
        words = ("neighbours", "add", "127.0.0.1:1", "--admin", node.admin)
        status, _, err = sterna(*words)
        assert (status, "--token-file" in err) == (1, True)
        assert json.loads(node.ask("/neighbours")[1])["neighbours"] == []
        status, out, err = sterna(*words, "--token-file", str(secret))
        assert (status, err) == (0, "")
        assert out.startswith("127.0.0.1:1\t")


def test_neighbours_added_and_removed_under_traffic_lose_nothing(tmp_path: Path) -> None:
    """Node c moves from the end of a row to its beginning and back, and d and e join and leave together."""
    network = LiveNetwork(tmp_path, ["ab", "bc", "cd", "ce"])
    for name in "abcde":
        file = network[name].file
        lines = file.read_text().splitlines()
        file.write_text("\n".join("neighbours = []" if line.startswith("neighbours") else line for line in lines))
    network.pairs = ()
    for node in network.nodes.values():
        node.launch()
    try:
        for node in network.nodes.values():
            wait_until(node.is_up, "a node listens", START_S)
        _rearrange(network)
        network.check_logs()
    finally:
        for node in network.nodes.values():
            node.kill()


def _rearrange(network: LiveNetwork) -> None:
    def change(at: str, verb: str, *others: str) -> None:
        status, _, err = sterna("neighbours", verb, *map(network.door, others), "--admin", network[at].admin)
        assert status == 0, err

    change("b", "add", "a", "c", "d", "e")  # a star, all at once
    network.wait_until_settled()
    with Crowd([network[name] for name in "abcde"], random.Random(1), 150) as crowd:

        def live(seconds: float = 0.5) -> None:
            crowd.run(lambda: False, seconds)

        live()
        change("c", "add", "a")  # a ring, if both stood
        live()
        change("b", "remove", "c")
        live()
        change("b", "remove", "d", "e")  # cut off, both
        live(1.0)
        change("c", "add", "d", "e")
        assert crowd.run(lambda: all(hears(node, network.nodes) for node in network.nodes.values()), START_S)
        crowd.drain()
        crowd.check()
        crowd.check_retained()
    assert linked(network["c"].network()) == ["a", "d", "e"]


def test_a_node_that_joins_later_hears_and_is_heard(pair: LiveNetwork, join: Join, topic: str) -> None:
    join(pair["a"]).publish(f"{topic}/state", b"kept", 1, retain=True)
    with pair.make("k", [pair.door("b")], pair.strategy) as late:
        wait_until(lambda: hears(late, "abk"), "the new node hears the others")
        visitor = join(late)
        visitor.subscribe(f"{topic}/#", 1)
        assert visitor.payloads() == [b"kept"]
        join(pair["a"]).publish(f"{topic}/news", b"there", 1)
        assert visitor.payloads(2) == [b"kept", b"there"]
        listener = join(pair["a"])
        listener.subscribe(f"{topic}/back", 1)
        join(late).publish(f"{topic}/back", b"here", 1)
        assert listener.payloads() == [b"here"]
    wait_until(lambda: "k" not in pair["a"].network()["paths"], "the others know that it is gone")
