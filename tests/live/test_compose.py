"""The nodes of contrib/docker/compose.yaml, as processes here instead of containers: they become one broker."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from sterna.measure.harness.ports import free_port

from .clients import Paho
from .networks import hears
from .nodes import LiveNode, wait_until

DOCKER = Path(__file__).parents[2] / "contrib/docker"
VARIABLE = re.compile(r"^ +(STERNA_\w+): (\S+)$", re.MULTILINE)

pytestmark = pytest.mark.slow


def services() -> dict[str, dict[str, str]]:
    """Name -> environment, the shared part included."""
    head, _, rest = (DOCKER / "compose.yaml").read_text().partition("\nservices:\n")
    shared = dict(VARIABLE.findall(head))
    bodies = re.split(r"^  (\w+):\n", rest.partition("\nvolumes:\n")[0], flags=re.MULTILINE)[1:]
    return {name: shared | dict(VARIABLE.findall(body)) for name, body in zip(bodies[::2], bodies[1::2], strict=True)}


def test_three_nodes_of_the_compose_file_are_one_broker(tmp_path: Path, join: Callable[..., Paho]) -> None:
    found = services()
    assert len(found) == 3
    (tmp_path / "key").write_text("k" * 32)
    ports = {name: free_port() for name in found}

    def here(value: str) -> str:
        """Names of containers are ports of this machine."""
        value = value.replace("/run/secrets/network_key", str(tmp_path / "key"))
        return re.sub(r"\b(\w+):7883", lambda host: f"127.0.0.1:{ports[host[1]]}", value)

    with ExitStack() as stack:
        nodes = {}
        for name, environment in found.items():
            toml = (DOCKER / "node.toml").read_text().replace("/var/lib/sterna", str(tmp_path / name / "data"))
            node = LiveNode(tmp_path / name, re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', toml))
            told = {key: here(value) for key, value in environment.items() if key != "STERNA_NETWORK_BIND"}
            told["STERNA_NETWORK_BIND"] = f"127.0.0.1:{ports[name]}"
            variables = [f"{key}={value}" for key, value in told.items()]
            node.program = ("env", *variables, sys.executable, "-m", "sterna")
            nodes[name] = stack.enter_context(node)
        for node in nodes.values():
            wait_until(lambda node=node: hears(node, nodes), "the nodes hear each other")  # type: ignore[misc]
        reader = join(nodes["west"], client_id="reader")
        reader.subscribe("plant/#", 1)
        join(nodes["south"], client_id="writer").publish("plant/oven", b"181.5", 1)
        assert reader.payloads() == [b"181.5"]
