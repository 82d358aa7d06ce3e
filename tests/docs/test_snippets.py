"""The documentation's snippets, executed: configuration is loaded, commands are run against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from live.certificates import Authority
from live.nodes import LiveNode
from sterna.broker.access.passwords import hash_password
from sterna.runtime.adaptation.coordinator_settings import CoordinatorConfiguration, load_coordinator
from sterna.runtime.adaptation.worker_settings import WorkerConfiguration, load_worker
from sterna.runtime.config.loading import load
from sterna.runtime.config.schema import is_table, keys_of, table_in_list
from sterna.runtime.config.settings import Configuration
from sterna.runtime.gateway.settings import GatewayConfiguration, load_gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


_READERS: dict[str, Callable[[Path, dict[str, str]], Any]] = {
    "[upstream]": load_gateway,
    "[worker]": load_worker,
    "[coordinator]": load_coordinator,
}
#: The file of a worker's node.
_NODE = '[network]\nname = "plant"\n'


def snippets(kind: str) -> list[ParameterSet]:
    """Every fenced block of this kind, named by page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: block.start()].count("\n") + 1
            found.append(pytest.param(block[1], id=f"{page.name}:{line}"))
    assert found, f"no {kind} snippet in the documentation"
    return found


@pytest.mark.parametrize("toml", snippets("toml"))
def test_a_configuration_snippet_is_valid(toml: str, tmp_path: Path) -> None:
    Authority(tmp_path, "snippets").issue("server")
    (tmp_path / "clients.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    (tmp_path / "secret").write_text("s" * 40)
    (tmp_path / "passwords").write_text(hash_password("alice", "secret", random_bytes=os.urandom) + "\n")
    file = tmp_path / "sterna.toml"
    file.write_text(toml)
    (tmp_path / "node.toml").write_text(_NODE)
    for table, read in _READERS.items():
        if table in toml:
            assert read(file, {}).log.level
            return
    assert load(file, {}).listeners


@pytest.mark.parametrize("session", snippets("console"))
def test_a_console_snippet_prints_what_it_shows(session: str, tmp_path: Path) -> None:
    """`$` lines are commands; the others are lines their output must have, in any order."""
    lines = session.splitlines()
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    expected = [line for line in lines if line and not line.startswith("$ ")]
    with LiveNode(tmp_path) as node:
        # The snippets speak of the default port; here the node has another.
        sterna = f'sterna() {{ {sys.executable} -m sterna "$@" -p {node.port}; }}\n'
        script = sterna + "\n".join(commands) + "\nwait\n"
        result = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("kind", [Configuration, GatewayConfiguration, WorkerConfiguration, CoordinatorConfiguration])
def test_every_key_is_documented(kind: type) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    missing = [key for key in _keys(kind) if not re.search(rf"[`.]{key}`", page)]
    assert not missing


def _keys(table: type) -> list[str]:
    keys: list[str] = []
    for name, key in keys_of(table).items():
        inner = key.kind if is_table(key.kind) else table_in_list(key.kind)
        keys += _keys(inner) if inner else [name]
    return keys
