"""Nodes of a network are upgraded one after the other under load: nothing is lost, nothing of QoS 2 comes twice.

The release before runs from this repository's history, on data directories that the present code then takes over.
Between two upgrades nodes of both releases are linked, sessions move between them both ways, and operators ask both.
A gateway of the release before keeps a client connected all the while.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from sterna.vocabulary import versions
from sterna.vocabulary.versions import Versions

from .clients import Paho, Settings
from .crowd import Crowd
from .gateways import LiveGateway
from .left_out import leave_out
from .networks import LiveNetwork
from .nodes import START_S, STOP_S, LiveNode, wait_until

ROOT = Path(__file__).parents[2]
RELEASE_BEFORE = os.environ.get("STERNA_RELEASE_BEFORE", "177bd59")
"""A commit of the history, or a tag."""
MESSAGES_PER_S = 100
MOVED_S = 60.0
"""How long clients of a node may take to leave it."""
_LINK_VERSIONS = """
try:
    from sterna.vocabulary.versions import LINK
    print(True, *LINK)
except ModuleNotFoundError:
    from sterna.overlay.handshake import VERSION
    print(False, VERSION, VERSION)
"""
"""A release that has no list of versions speaks one, and does not show it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Release:
    sources: Path
    link: Versions
    tells: bool
    """`/network` shows the version of a link."""

    def shown(self, other: Versions) -> int | None:
        """By a node of this release, of a link to one that speaks `other`."""
        return self.link.common(other) if self.tells else None


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("release-before")
    taken = subprocess.run(["git", "archive", RELEASE_BEFORE, "src"], cwd=ROOT, capture_output=True)
    if taken.returncode:
        asked = subprocess.run(
            ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True
        )
        if asked.stdout.strip() != "false":
            leave_out(f"the history of this clone is cut before {RELEASE_BEFORE}: git fetch --unshallow")
        pytest.fail(f"there is no {RELEASE_BEFORE} in the history: {taken.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", folder], input=taken.stdout, check=True)
    asked = subprocess.run(
        [sys.executable, "-c", _LINK_VERSIONS], env={"PYTHONPATH": str(folder / "src")}, capture_output=True, text=True
    )
    assert asked.returncode == 0, f"{RELEASE_BEFORE} names no version of its links:\n{asked.stderr}"
    tells, oldest, newest = asked.stdout.split()
    return Release(folder / "src", Versions(int(oldest), int(newest)), tells == "True")


def run_from(node: LiveNode, sources: Path) -> None:
    """From now on it is started from these sources."""
    node.program = ("env", f"PYTHONPATH={sources}", sys.executable, "-m", "sterna")


def upgrade(node: LiveNode, crowd: Crowd) -> None:
    """As a service manager does: SIGTERM, and the new release on the same data directory."""
    stop(node, crowd)
    start_upgraded(node, crowd)


def stop(node: LiveNode, crowd: Crowd) -> None:
    os.kill(node.pid, signal.SIGTERM)
    assert crowd.run(lambda: not node.is_running, STOP_S)


def start_upgraded(node: LiveNode, crowd: Crowd) -> None:
    run_from(node, ROOT / "src")
    node.launch()
    assert crowd.run(node.is_up, START_S)


def upgrade_as_the_page_says(network: LiveNetwork, name: str, crowd: Crowd) -> None:
    """The steps of docs/upgrading.md, "A network of nodes", with commands of the release that runs."""
    node, elsewhere = network[name], next(other for at, other in network.nodes.items() if at != name)
    command(crowd, node, "backup", "before-upgrade")
    at_home = [client for client in crowd.everybody if crowd.homes[client.client_id] is node]
    for client in at_home:
        crowd.homes[client.client_id] = elsewhere
    command(crowd, node, "evacuate", name)
    assert node.metric("sterna_clients_connected") == 0
    stop(node, crowd)
    command(crowd, None, "check-config", str(node.file))
    start_upgraded(node, crowd)
    command(crowd, node, "evacuate", name, "--stop")
    for client in at_home:
        move(crowd, client.client_id, node)


def command(crowd: Crowd, node: LiveNode | None, *words: str) -> None:
    """With the sources that the node runs from, or ours; clients go about their business meanwhile."""
    program = node.program if node is not None else (sys.executable, "-m", "sterna")
    asked = ["--admin", node.admin] if node is not None else []
    with subprocess.Popen([*program, *words, *asked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        ended = crowd.run(lambda: process.poll() is not None, MOVED_S)
        if not ended:
            process.kill()
        assert process.stdout is not None
        said = process.stdout.read().decode()
    assert ended, f"{words} takes too long: {said}"
    assert process.returncode == 0, said


@contextmanager
def behind_a_gateway(network: LiveNetwork, sources: Path, folder: Path) -> Iterator[Paho]:
    """A client that hears everything at QoS 2, by a gateway that runs from these sources."""
    gateway = LiveGateway(folder, [node.port for node in network.nodes.values()])
    run_from(gateway, sources)
    with gateway:
        client = Paho("127.0.0.1", gateway.port, Settings(client_id="behind", persistent=True))
        try:
            client.subscribe("data/#", 2)
            yield client
        finally:
            client.close()


def check_heard(client: Paho, crowd: Crowd) -> None:
    """It was never cut off, and has every message: once if it came in at QoS 2."""
    wanted = {payload for payloads in crowd.published.values() for payload in payloads}
    wait_until(lambda: len({one.payload for one in client.messages}) >= len(wanted), "the gateway's client has all")
    assert client.client.is_connected()
    at_qos_2 = [one.payload for one in client.messages if one.topic.startswith("data/publisher-2")]
    assert len(at_qos_2) == len(set(at_qos_2))
    assert {one.payload for one in client.messages} == wanted


def passes(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def move(crowd: Crowd, client_id: str, to: LiveNode) -> None:
    """The client turns up at another node, and its session follows."""
    crowd.homes[client_id] = to
    next(client for client in crowd.everybody if client.client_id == client_id).vanish()


def ban(node: LiveNode, client_id: str) -> None:
    """An order that nodes of the release before do not know."""
    command = [sys.executable, "-m", "sterna", "ban", "--client", client_id, "--admin", node.admin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, done.stderr


def knows_ban(node: LiveNode, client_id: str) -> bool:
    return client_id in node.ask("/bans")[1]


def link_versions(network: LiveNetwork, name: str) -> dict[str, int]:
    """By neighbour; those of a node of the release before are not known."""
    return {link["peer"]: link.get("version") for link in network[name].network()["links"] if link["connected"]}


@pytest.mark.parametrize(
    ("overlay", "strategy"), [("static", "subscription-flooding"), ("spanning-tree", "advertisement")]
)
def test_three_nodes_are_upgraded_one_after_the_other_under_load(
    tmp_path: Path, release_before: Release, overlay: str, strategy: str
) -> None:
    network = LiveNetwork(tmp_path, ("ab", "ac"), strategy, overlay)
    for node in network.nodes.values():
        run_from(node, release_before.sources)
    with (
        network,
        Crowd(list(network.nodes.values()), random.Random(1), MESSAGES_PER_S) as crowd,
        behind_a_gateway(network, release_before.sources, tmp_path / "gateway") as behind,
    ):
        assert set(link_versions(network, "a").values()) == {release_before.shown(release_before.link)}
        for place, name in enumerate("abc"):
            crowd.run(passes(0.5), START_S)
            upgrade_as_the_page_says(network, name, crowd) if name == "b" else upgrade(network[name], crowd)
            network.wait_until_settled()
            upgraded, earlier = "abc"[: place + 1], "abc"[place + 1 :]
            for peer, version in link_versions(network, name).items():
                assert version == versions.LINK.common(versions.LINK if peer in upgraded else release_before.link)
            if place == 0:
                ban(network[name], "intruder")
            if earlier:
                between_releases(network, crowd, name, earlier[0])
        network.wait_until_settled()
        crowd.drain()
        crowd.check()
        crowd.check_subscriptions()
        crowd.check_retained()
        check_heard(behind, crowd)
        network.check_logs()
        assert set(link_versions(network, "a").values()) == {versions.LINK.newest}
        assert crowd.count > 100
        for node in network.nodes.values():
            wait_until(partial(knows_ban, node, "intruder"), "a ban reaches nodes when they know of bans")
            assert node.network()["nonsense"] == node.network()["spoilt"] == 0


def between_releases(network: LiveNetwork, crowd: Crowd, upgraded: str, earlier: str) -> None:
    """Sessions move both ways, and any node finds them."""
    move(crowd, "reader-2-5", network[earlier])
    move(crowd, "publisher-2-4", network[earlier])
    crowd.run(passes(0.3), START_S)
    move(crowd, "reader-2-5", network[upgraded])
    move(crowd, "reader-1-4", network[upgraded])
    crowd.run(passes(0.3), START_S)
    for name in (upgraded, earlier):
        status, body = network[name].ask("/clients/search?text=reader")
        assert (status, json.loads(body)["silent"]) == (200, []), body
