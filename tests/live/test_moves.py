"""Real clients change their nodes: by themselves, by order, and behind a gateway, while messages fly."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Join
from .gateways import LiveGateway
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

MESSAGES_MIN = 100


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("moves"), ("ab", "bc")) as network:
        yield network
        network.check_logs()


def sterna(*words: str) -> str:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout


def is_at(node: LiveNode, client_id: str) -> bool:
    return any(line.split("\t")[0] == client_id for line in sterna("clients", "--admin", node.admin).splitlines())


def test_a_client_finds_its_session_at_another_node(
    network: LiveNetwork, join: Join, topic: str, client_id: str, version: int
) -> None:
    client = join(network["a"], client_id=client_id, persistent=True, version=version)
    client.subscribe(topic, 2)
    client.vanish()
    publisher = join(network["b"])
    for number in range(20):
        publisher.publish(topic, b"%d" % number, 2)
    client = join(network["c"], client_id=client_id, persistent=True, version=version)
    assert client.payloads(20) == [b"%d" % number for number in range(20)]
    publisher.publish(topic, b"more", 2)
    assert client.payloads(21)[20:] == [b"more"]


def test_sterna_move_brings_a_client_s_session_to_another_node(
    network: LiveNetwork, join: Join, topic: str, client_id: str
) -> None:
    client = join(network["a"], client_id=client_id, persistent=True)
    client.subscribe(topic, 1)
    said = sterna("move", client_id, "--to", "c", "--admin", network["b"].admin)
    assert "node a moves" in said
    assert client.wait_for_end() is None, "its connection ends without a DISCONNECT"
    join(network["b"]).publish(topic, b"meanwhile", 1)
    client = join(network["c"], client_id=client_id, persistent=True)
    assert client.payloads() == [b"meanwhile"]
    assert "departed" in sterna("migrations", "--admin", network["a"].admin)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_behind_a_gateway_is_moved_under_load_and_notices_nothing(
    network: LiveNetwork, join: Join, topic: str, client_id: str, qos: int, tmp_path: Path
) -> None:
    with LiveGateway(tmp_path / "gateway", [network["a"].port]) as gateway:
        client = join(gateway, client_id=client_id, persistent=True, version=4)
        client.subscribe(topic, qos)
        publisher = join(network["b"])
        stop = threading.Event()
        published: list[bytes] = []

        def publish() -> None:
            while not stop.is_set():
                published.append(b"%d" % len(published))
                publisher.publish(topic, published[-1], qos)

        publishing = threading.Thread(target=publish)
        publishing.start()
        for name in "cbacb":
            sterna("move", client_id, "--to", name, "--admin", network["a"].admin)
            wait_until(lambda name=name: is_at(network[name], client_id), "the client has moved")  # type: ignore[misc]
        wait_until(lambda: len(published) > MESSAGES_MIN, "enough was published, at its speed")
        stop.set()
        publishing.join()
        assert client.payloads(len(published)) == published


def test_an_order_that_cannot_be_followed_is_refused_with_a_reason(network: LiveNetwork) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "sterna", "move", "nobody", "--to", "b", "--admin", network["a"].admin],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 1
    assert "no node has a session" in run.stderr
