"""Questions of operators by command: at a lone node, and at any of three."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow


def sterna(*words: str, status: int = 0) -> str:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=60)
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
    client.close()

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


def test_what_is_not_there_is_said(nodes: tuple[LiveNode, LiveNode]) -> None:
    asked, _ = nodes
    assert "no node that answers has a session of client nobody" in sterna(
        "client", "nobody", "--admin", asked.admin, status=1
    )
    assert "no topic filter" in sterna("subscriptions", "a/#/b", "--admin", asked.admin, status=1)
    assert sterna("retained", "no/such/topic", "--admin", asked.admin) == ""
