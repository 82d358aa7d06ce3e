"""A gateway's settings: defaults that work, every mistake at once, and nothing open to strangers unless said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.gateway.settings import GatewayConfiguration, load_gateway


def loaded(tmp_path: Path, toml: str, **environ: str) -> GatewayConfiguration:
    file = tmp_path / "gateway.toml"
    file.write_text(toml)
    return load_gateway(file, environ)


def problems(tmp_path: Path, toml: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as invalid:
        loaded(tmp_path, toml)
    return [f"{problem.place}: {problem.text}" for problem in invalid.value.problems]


def test_without_a_file_it_stands_beside_a_node_of_this_machine() -> None:
    configuration = load_gateway(None, {})
    assert configuration.upstream.nodes == ("127.0.0.1:1883",)
    assert str(configuration.listeners[0].bind) == "127.0.0.1:1884"
    assert str(configuration.admin.bind) == "127.0.0.1:9884"


def test_file_and_environment_are_laid_over_the_defaults(tmp_path: Path) -> None:
    toml = "[limits]\npacket_bytes = 4096\n[patience]\nstay_s = 2\n[[listener]]\nanonymous = true\n"
    configuration = loaded(tmp_path, toml, STERNA_UPSTREAM_NODES="a:1, b:2", STERNA_PATIENCE_PING_S="1.5")
    assert configuration.limits.packet_bytes == 4096
    assert configuration.patience.stay_s == 2
    assert configuration.patience.ping_s == 1.5
    assert configuration.upstream.nodes == ("a:1", "b:2")
    assert str(configuration.listeners[0].bind) == "127.0.0.1:1884"


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, "[admin]\nbind = ''\n[upstream]\nnodes = ['[::1]:1883']\n")
    assert loaded(tmp_path, as_toml(configuration)) == configuration


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[upstream]\nnodes = []\n", "[upstream] nodes: there are none"),
        ("[upstream]\nnodes = ['nowhere']\n", "[upstream] nodes: 'nowhere' is not an address"),
        ("[upstream]\ncertificate = 'c.pem'\n", "[upstream] certificate: "),
        ("[upstream]\nca = 'missing.pem'\n", "[upstream] ca: "),
        ("[gateway]\nname = 'a b'\n", '[gateway] name: "a b" is no name'),
        ("[patience]\nwindow = 20000\n", "[patience] window: 20000 is out of range"),
        ("[patience]\nping_s = 10.0\n", "[patience] dead_after_s: one ping that is late would drop a node"),
        ("[limits]\nunacknowledged = 0\n", "[limits] unacknowledged: 0 is out of range"),
        ("[limits]\nsessions = 3\n", "[limits] sessions: unknown key"),
        ("[node]\nname = 'n'\n", "[node]: unknown table"),
        (
            "[[listener]]\nbind = '0.0.0.0:1884'\n",
            "[[listener]] bind: 0.0.0.0:1884 lets other machines reach the nodes",
        ),
        ("[admin]\nbind = '0.0.0.0:9884'\n", "[admin] bind: "),
        ("listener = []\n", "[listener]: there is none"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, toml: str, expected: str) -> None:
    assert any(problem.startswith(expected) for problem in problems(tmp_path, toml)), problems(tmp_path, toml)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    assert (
        len(problems(tmp_path, "[upstream]\nnodes = ['x']\n[patience]\nretry_s = -1\n[limits]\nconnections = 0\n")) == 3
    )
