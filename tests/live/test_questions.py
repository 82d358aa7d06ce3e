"""Questions of operators by command: at a lone node, and at any of three."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

ADMINISTRATIVE = 0x98


def sterna(*words: str, status: int = 0) -> str:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=240)
    assert run.returncode == status, run.stderr
    return run.stdout if status == 0 else run.stderr


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("questions"), ("ab", "bc")) as network:
        yield network
        network.check_logs()


@pytest.fixture(params=["one", "three"])
def nodes(request: pytest.FixtureRequest) -> tuple[LiveNode, LiveNode]:
    """The node that is asked, and the node of the clients."""
    if request.param == "one":
        node: LiveNode = request.getfixturevalue("node")
        return node, node
    network: LiveNetwork = request.getfixturevalue("three")
    return network["a"], network["c"]


def test_a_client_is_shown_and_kicked(
    nodes: tuple[LiveNode, LiveNode], join: Join, client_id: str, topic: str, version: int
) -> None:
    asked, home = nodes
    client = join(home, client_id=client_id, version=version, persistent=True)
    client.subscribe(f"{topic}/+", 1)
    said = sterna("client", client_id, "--admin", asked.admin)
    assert said.startswith(f"client {client_id} at node {home.network()['node']}: connected for ")
    assert f"subscribed to {topic}/+ at QoS 1" in said
    kicked = sterna("kick", client_id, "--admin", asked.admin)
    assert kicked.startswith(f"{client_id} at 127.0.0.1:")
    assert client.wait_for_end() == (ADMINISTRATIVE if version == 5 else None)

    def is_away() -> bool:
        (row,) = json.loads(sterna("client", client_id, "--json", "--admin", asked.admin))["rows"]
        return not row["connected"]

    wait_until(is_away, "the client is known to be away")
    said = sterna("kick", client_id, "--admin", asked.admin, status=1)
    assert f"no node has a connection of client {client_id}" in said


def test_subscriptions_and_retained_messages_are_listed(
    nodes: tuple[LiveNode, LiveNode], join: Join, client_id: str, topic: str
) -> None:
    asked, home = nodes
    client = join(home, client_id=client_id)
    client.subscribe(f"{topic}/#", 2)
    listed = sterna("subscriptions", f"{topic}/a/b", "--admin", asked.admin)
    assert listed.split("\t")[:3] == [f"{topic}/#", "QoS 2", client_id]
    client.publish(f"{topic}/kept", b"21.5", 1, retain=True)

    def retained() -> list[str]:
        return sterna("retained", f"{topic}/+", "--admin", asked.admin).split("\t")

    wait_until(lambda: retained()[0] == f"{topic}/kept", "the retained message has come")
    assert (retained()[1], retained()[2], retained()[4]) == ("QoS 1", "4 bytes", "21.5\n")


def test_a_client_is_traced_live(nodes: tuple[LiveNode, LiveNode], join: Join, client_id: str, topic: str) -> None:
    asked, home = nodes
    words = [
        "trace",
        "--client",
        client_id,
        "--topic",
        f"{topic}/#",
        "--payload",
        "--json",
        "--count",
        "2",
        "--for",
        "60s",
    ]
    command = [sys.executable, "-m", "sterna", *words, "--admin", asked.admin]
    client = join(home, client_id=client_id)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        number = 0
        while running.poll() is None:  # the trace begins when its first question has come
            client.publish(f"{topic}/{number}", b"21.5", 1)
            number += 1
            assert number < 10_000
        assert running.stdout is not None
        assert running.stderr is not None
        rows = [json.loads(line) for line in running.stdout]
        assert (running.returncode, running.stderr.read()) == (0, "--count reached\n")
    assert [(row["client"], row["packet"], row["payload"]) for row in rows] == [(client_id, "PUBLISH", "21.5")] * 2
    assert {row["node"] for row in rows} == {home.network()["node"]}
    assert "say what to trace" in sterna("trace", "--admin", asked.admin, status=1)


def test_messages_are_counted_by_topic(nodes: tuple[LiveNode, LiveNode], join: Join, topic: str) -> None:
    asked, home = nodes
    client = join(home)
    words = [sys.executable, "-m", "sterna", "topics", f"{topic}/#", "--levels", "2", "--for", "3s", "--json"]
    with subprocess.Popen([*words, "--admin", asked.admin], stdout=subprocess.PIPE, text=True) as running:
        number = 0
        while running.poll() is None:
            client.publish(f"{topic}/{number % 7}", b"21.5", 1)
            number += 1
        assert running.stdout is not None
        rows = json.loads(running.stdout.read())["rows"]
    assert [(row["topic"], row["node"]) for row in rows] == [(f"{topic}/#", home.network()["node"])]
    assert 0 < rows[0]["messages"] <= number


def test_what_is_not_there_is_said(nodes: tuple[LiveNode, LiveNode]) -> None:
    asked, _ = nodes
    assert "no node that answers has a session of client nobody" in sterna(
        "client", "nobody", "--admin", asked.admin, status=1
    )
    assert "no topic filter" in sterna("subscriptions", "a/#/b", "--admin", asked.admin, status=1)
    assert sterna("retained", "no/such/topic", "--admin", asked.admin) == ""
    words = [sys.executable, "-m", "sterna", "topics", "no/such/#", "--for", "1s", "--admin", asked.admin]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    said = "nobody published on no/such/# while this counted, for 1s; --for counts longer\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clients",), "no clients, and no sessions of any"),
        (("subscriptions",), "no subscriptions"),
        (("retained",), "no retained messages"),
        (("operators", "list"), "no expressions"),
        (("ban",), "no bans"),
        (("users", "list"), "no users"),
        (("neighbours", "list"), "no neighbours are listed; `sterna network` also shows links that other nodes made"),
        (("trace", "--client", "nobody", "--for", "1s"), "--for reached"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_an_empty_answer_is_told_apart_from_silence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with LiveNode(tmp_path, '[admin]\nbind = "127.0.0.1:0"\n') as node:
        run = [sys.executable, "-m", "sterna", *words, "--admin", node.admin]
        done = subprocess.run(run, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{said}\n")


def test_a_feed_without_named_readers_says_so(tmp_path: Path) -> None:
    with LiveNode(tmp_path, '[feed]\nbind = "127.0.0.1:0"\n') as node:
        run = [sys.executable, "-m", "sterna", "readers", "list", "--nodes", str(node.events("feed")[-1]["address"])]
        done = subprocess.run(run, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no named readers\n")
