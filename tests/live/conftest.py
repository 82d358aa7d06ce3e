"""Fixtures: a node to talk to, clients that are closed when the test is over, names that no other test uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from .clients import Paho, Settings
from .nodes import LiveNode

Join = Callable[..., Paho]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """An ordinary node with the default durability, shared by every test that harms nobody."""
    with LiveNode(tmp_path_factory.mktemp("node"), '[admin]\nbind = "127.0.0.1:0"\n') as node:
        yield node


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[[str], LiveNode]]:
    """Starts a node of the test's own from a TOML snippet."""
    nodes: list[LiveNode] = []

    def start(toml: str = "") -> LiveNode:
        nodes.append(LiveNode(tmp_path / f"node-{len(nodes)}", toml))
        return nodes[-1].start()

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture
def join() -> Iterator[Join]:
    """`join(node, version=4, client_id="a")`: a connected paho client; the words are those of `Settings`."""
    clients: list[Paho] = []

    def join(at: LiveNode | int | Path, **settings: Any) -> Paho:
        host, port = (str(at), 0) if isinstance(at, Path) else ("127.0.0.1", at if isinstance(at, int) else at.port)
        client = Paho(host, port, Settings(**settings))
        clients.append(client)
        return client

    yield join
    for client in clients:
        client.close()


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Both protocol levels: a test that asks for it holds in both."""
    return int(request.param)


@pytest.fixture
def topic() -> str:
    return f"live/{uuid4().hex[:12]}"


@pytest.fixture
def client_id() -> str:
    return f"client-{uuid4().hex[:12]}"
