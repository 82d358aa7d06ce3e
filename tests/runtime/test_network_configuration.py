"""The `[network]` table: what it takes, what it refuses, and that its key stays a secret."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import inf
from pathlib import Path
from random import Random

import pytest

from live.certificates import Authority
from sterna.overlay.kinds import OVERLAYS
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.neighbours import Member
from sterna.runtime.config.loading import load
from sterna.runtime.config.network_settings import link_settings
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.config.schema import Bind, keys_of
from sterna.runtime.config.secrets import NETWORK_KEY
from sterna.runtime.config.settings import Configuration, NetworkTable

KEY = "sixteen bytes or more"


def _load(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> Configuration:
    file = directory / "sterna.toml"
    file.write_text(text)
    return load(file, environ or {})


def _network(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> NetworkTable:
    network = _load(directory, f"[network]\nname = 'n'\n{text}", environ).network
    assert network is not None
    return network


def _problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        _load(directory, f"[network]\nname = 'n'\n{text}")
    return [str(problem).removeprefix(f"{directory}/sterna.toml:") for problem in caught.value.problems]


def test_without_the_table_a_node_is_alone() -> None:
    assert load(None, {}).network is None


def test_a_network_on_loopback_needs_a_name_and_nothing_else(tmp_path: Path) -> None:
    network = _network(tmp_path, "bind = '127.0.0.1:7883'\nneighbours = ['127.0.0.1:7884', 'localhost:7885']")
    assert network.bind == Bind("127.0.0.1", 7883)
    assert network.neighbours == ("127.0.0.1:7884", "localhost:7885")
    assert NETWORK_KEY.read(network) == b""
    with pytest.raises(InvalidConfiguration, match=r"\[network\] name: is missing"):
        _load(tmp_path, "[network]\nbind = '127.0.0.1:7883'")


def test_the_links_go_by_what_is_configured(tmp_path: Path) -> None:
    (tmp_path / "network.key").write_text(KEY + "\n")
    text = "key_file = 'network.key'\nbind = '0.0.0.0:1'\nstrategy = 'advertisement'\nresume_s = 7.5\nack_bytes = 5000"
    links = link_settings(_network(tmp_path, text), "a", 3)
    assert (links.network, links.node, links.epoch, links.strategy) == ("n", "a", 3, "advertisement")
    assert (links.key, links.resume_s, links.ack_bytes) == (KEY.encode(), 7.5, 5000)


def test_every_link_setting_is_a_key_with_the_same_default(tmp_path: Path) -> None:
    links = link_settings(_network(tmp_path, ""), "a", 1)
    tunable = [found for found in dataclasses.fields(LinkSettings) if found.default is not dataclasses.MISSING]
    assert len(tunable) >= 9
    assert {found.name: getattr(links, found.name) for found in tunable} == {
        found.name: found.default for found in tunable
    }
    # `certified` follows from check_nodes in [network.tls]; versions are those of the release.
    assert {found.name for found in tunable} - {"certified", "speaks"} <= set(keys_of(NetworkTable))


def test_the_key_may_come_from_the_environment_and_is_never_printed(tmp_path: Path) -> None:
    environ = {"STERNA_NETWORK_NAME": "n", "STERNA_NETWORK_KEY": KEY, "STERNA_NETWORK_NEIGHBOURS": "h:1,[::1]:2"}
    configuration = load(None, environ)
    network = configuration.network
    assert network is not None
    assert NETWORK_KEY.read(network) == KEY.encode()
    assert network.neighbours == ("h:1", "[::1]:2")
    assert KEY not in as_toml(configuration)
    assert KEY not in repr(link_settings(network, "a", 1))


def test_the_printed_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("a")
    (tmp_path / "network.key").write_text(KEY)
    text = f"""
[network]
name = "n"
bind = "0.0.0.0:7883"
key_file = "network.key"
overlay = "spanning-tree"
[network.tls]
certificate = "{certificate}"
key = "{key}"
ca = "{authority.file}"
"""
    configuration = _load(tmp_path, text)
    assert configuration.network is not None
    assert configuration.network.tls is not None
    assert _load(tmp_path, as_toml(configuration)) == configuration


def test_a_key_that_is_switched_off_is_printed_as_empty(tmp_path: Path) -> None:
    configuration = _load(tmp_path, "[network]\nname = 'n'\n[network.tree]\nmulticast = ''\n[admin]\nbind = ''")
    assert configuration.network is not None
    assert configuration.network.tree.multicast is None
    assert _load(tmp_path, as_toml(configuration)) == configuration


def test_every_overlay_can_be_configured_and_has_the_table_it_names(tmp_path: Path) -> None:
    for name, kind in OVERLAYS.items():
        network = _network(tmp_path, f"overlay = '{name}'\nbind = '127.0.0.1:7883'")
        tuning = getattr(network, kind.table) if kind.table else None
        assert isinstance(tuning, type(kind.tuning()))
        member = Member(network.name, "a", b"key", "127.0.0.1:7883")
        overlay = kind.configured(member, tuning)(
            _World(), now=lambda: 0.0, schedule=lambda _at, _do: None, rng=Random(1)
        )
        assert overlay.name == name


class _World:
    """An overlay that has not been started asks nothing of it."""

    def send_datagram(self, address: str, data: bytes) -> None:
        raise AssertionError

    def send_discovery(self, data: bytes) -> None:
        raise AssertionError

    def drop_link(self, peer: str, reason: str) -> None: ...

    def hold_links(self, dial: dict[str, str]) -> None:
        raise AssertionError

    def silent_s(self, peer: str) -> float:
        return inf

    def report(self, event: str, **fields: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name_ = 'x'", "3: [network] name_: unknown key; did you mean name?"),
        ("bind = '0.0.0.0:1'", "3: [network] bind: 0.0.0.0:1 can be reached from other machines and nothing checks"),
        (
            "neighbours = ['h:1']",
            "3: [network] neighbours: nothing checks who answers at h:1; set key_file (head -c 32",
        ),
        ("neighbours = ['h']", "3: [network] neighbours: 'h' is not an address: write host:port"),
        ("advertise = 'h:0'", "3: [network] advertise: 'h:0' has no usable port"),
        ("bind = 'unix:/s'", "3: [network] bind: nodes do not link over Unix sockets"),
        ("overlay = 'tree'", '3: [network] overlay: "tree" is none of "static", "spanning-tree", "mobile"; choose one'),
        ("overlay = 'spanning-tree'", "1: [network] bind: is missing, and in a tree every node may become a parent"),
        (
            "overlay = 'mobile'\nbind = '[::1]:1'\n[network.mobile]\nmulticast = '239.1.1.1:1'",
            "6: [network.mobile] multicast: 239.1.1.1:1 and bind [::1]:1 are of different families; use bind",
        ),
        (
            "overlay = 'mobile'\nbind = '[::1]:1'\nneighbours = ['h:1']",
            "5: [network] neighbours: a mobile overlay finds",
        ),
        ("[network.routing]\ncarry = 'all'", '4: [network.routing] carry: carries nothing with strategy = "sub'),
        ("strategy = 'flooding'", '3: [network] strategy: "flooding" is none of "publication-flooding", "subscription'),
        ("key = 'short'", "3: [network] key: the network key has 5 bytes, and who records a handshake could guess it"),
        ("key_file = 'none'", "3: [network] key_file: "),
        (f"key = '{KEY}'\nkey_file = 'sterna.toml'", "3: [network] key: there is a key and a key_file; keep one"),
        (
            "keep_alive_s = 2",
            "1: [network] dead_after_s: one keep-alive that is late would drop the link; use 4 or more",
        ),
        ("keep_alive_s = 0", "3: [network] keep_alive_s: 0.0 is out of range; use 0.05..3600"),
        ("connections = 17", "3: [network] connections: 17 is out of range; use 1..16"),
        ("batch_bytes = 2000000", "3: [network] batch_bytes: 2000000 is out of range; use 1024..1048576"),
        (
            "[network.routing]\nfilters_per_link = 5",
            "4: [network.routing] filters_per_link: 5 is out of range; use 1000..",
        ),
        ("[network.tree]\nping_s = -1", "4: [network.tree] ping_s: -1.0 is out of range; use 0 or more"),
        ("[network.tree]\nround_s = inf", "4: [network.tree] round_s: inf is out of range; use 0 or more"),
        ("resend_bytes = 3000000", "3: [network] resend_bytes: two frames of frame_bytes would not fit; use 8388608"),
        ("dial_s = 9", "1: [network] dial_max_s: is below dial_s; use 9 or more"),
        ("[limits]\npacket_bytes = 5000000", "1: [network] frame_bytes: a message of 5000000 bytes, which [limits]"),
        ("bind = '127.0.0.1:1883'", "3: [network] bind: 127.0.0.1:1883 is already taken; use another port"),
        ("[network.tls]\nkey = 'k'\nca = 'c'", "3: [network.tls] certificate: is missing; add certificate = ..."),
        ("[network.tls]\ncertificate = 'p'\nkey = 'k'\nca = 'c'", "4: [network.tls] certificate: "),
        ("[network.tls]\ncertificate = 'p'\nkey = 'k'\nca = 'sterna.toml'", "6: [network.tls] ca: "),
    ],
)
def test_a_problem_names_its_place_and_its_fix(tmp_path: Path, text: str, problem: str) -> None:
    found = _problems(tmp_path, text)
    assert any(line.startswith(problem) for line in found), found


def test_a_name_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r'\[network\] name: "a b" is no name'):
        _load(tmp_path, "[network]\nname = 'a b'")
