"""The reference of the documentation names every metric and admin page that running processes have."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from .adaptations import lone_process
from .certificates import Authority
from .gateways import LiveGateway
from .nodes import LiveNode

ROOT = Path(__file__).parents[2]
HELP = re.compile(r"^# HELP (sterna_\w+) ", re.MULTILINE)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def docs_pages() -> ModuleType:
    loader = SourceFileLoader("docs_pages", str(ROOT / "scripts/docs-pages"))
    spec = importlib.util.spec_from_loader("docs_pages", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_every_metric_of_a_node_and_of_a_gateway_is_in_the_reference(tmp_path: Path, docs_pages: ModuleType) -> None:
    """The node has everything switched on: a network, a feed, a foreign broker, TLS."""
    certificate, key = Authority(tmp_path / "authority", "authority").issue("node")
    (tmp_path / "key").write_text("k" * 32)
    toml = (
        f'[node]\nname = "live"\ndata = "{tmp_path}/data"\n[admin]\nbind = "127.0.0.1:0"\n'
        f'[[listener]]\nbind = "127.0.0.1:0"\ncertificate = "{certificate}"\nkey = "{key}"\n'
        f'[network]\nname = "live"\nbind = "127.0.0.1:0"\nkey_file = "{tmp_path}/key"\n'
        '[feed]\nbind = "127.0.0.1:0"\n[interworking]\nbroker = "127.0.0.1:1"\n'
    )
    reference = set(re.findall(r"^\| `(sterna_\w+)", docs_pages.metric_reference(), re.MULTILINE))
    with LiveNode(tmp_path / "node", toml) as node, LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
        metrics = node.ask("/metrics")[1]
        of_node, of_gateway = set(HELP.findall(metrics)), set(HELP.findall(gateway.ask("/metrics")[1]))
    for family in (
        "build_info",
        "certificate_expiry_timestamp_seconds",
        "streams",
        "feed_lag",
        "interworking_attached",
    ):
        assert f"sterna_{family}" in of_node
    assert of_node <= reference
    assert of_gateway
    assert of_gateway <= reference
    assert re.search(r'^sterna_build_info\{compiled="\w+",python="[\d.]+",version="[\d.]+"\} 1', metrics, re.MULTILINE)


@pytest.mark.parametrize("command", ["worker", "coordinator"])
def test_every_metric_of_a_worker_and_of_a_coordinator_is_in_the_reference(
    command: str, tmp_path: Path, docs_pages: ModuleType
) -> None:
    with lone_process(command, tmp_path / command) as process:
        metrics = process.ask("/metrics")[1]
    found = set(HELP.findall(metrics))
    assert len(found) > 5
    assert found <= set(re.findall(r"^\| `(sterna_\w+)", docs_pages.metric_reference(), re.MULTILINE))
    figures = {"worker": 'sterna_worker_node_state{state="off"} 1.0', "coordinator": "sterna_coordinator_acting 0.0"}
    assert figures[command] in metrics.splitlines()


def test_admin_pages_of_every_process_are_in_the_reference(docs_pages: ModuleType) -> None:
    text = docs_pages.page_reference()
    for words in ("## Gateway", "## Worker", "## Coordinator", "| `/measuring` |", "| `/freeze` |", "| `/users` |"):
        assert words in text
