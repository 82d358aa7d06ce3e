"""The `[feed]` table and `[journal] keep`: what is refused, with which advice, and what is never printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sterna.runtime.config.feed_rules import feed_address, feed_peers
from sterna.runtime.config.loading import load
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import FEED_TOKEN

TOKEN = "a token of sixteen bytes or more"


def loaded(tmp_path: Path, toml: str, **environ: str):  # type: ignore[no-untyped-def]
    file = tmp_path / "sterna.toml"
    file.write_text(toml)
    return load(file, environ)


@pytest.mark.parametrize("toml", ["[feed]", "[journal]\ndeliveries = true"])
def test_without_arrows_library_the_command_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str
) -> None:
    loaded(tmp_path, toml)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidConfiguration, match=r"pyarrow is missing; run: pip install '.\[feed\]'"):
        loaded(tmp_path, toml)


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        (
            '[feed]\nbind = "0.0.0.0:7885"',
            "shows every message to everybody who can reach it; use 127.0.0.1",
        ),
        ('[feed]\nbind = "unix:/tmp/feed"', "readers do not come over Unix sockets"),
        ('[feed]\ntoken = "short"', "the token of the feed has 5 bytes"),
        (f'[feed]\ntoken = "{TOKEN}"\ntoken_file = "x"', "there is a token and a token_file"),
        ('[feed]\ntoken_file = "nowhere"', "nowhere cannot be read"),
        ('[feed]\ncertificate = "server.pem"', "TLS needs a certificate and its key"),
        ('[feed]\npeers = ["10.0.0.2:7885"]', "names no node and its feed"),
        ('[feed]\npeers = ["b=10.0.0.2"]', "10.0.0.2"),
        ('[feed]\nadvertise = "here"', "here"),
        ("[feed]\nconnections = 0", "0 is out of range"),
        ("[feed]\nidle_s = 0", "0.0 is out of range"),
        ("[feed]\nhold_bytes = -1", "-1 is out of range"),
        ('[feed]\nparquet = "p"\n[journal]\ndurability = "memory"', "a journal in memory begins empty"),
        ('[feed]\nbind = "127.0.0.1:1883"', "127.0.0.1:1883 is already taken"),
        ('[operators]\nengine = "auto"', "Spark reads the feeds of nodes, and this one has none; add a table [feed]"),
        ('[operators]\nengine = "gpu"', "engine"),
        (
            '[[operators.engines]]\nfilter = "a/#"\nengine = "spark"',
            "Spark reads the feeds of nodes, and this one has none",
        ),
        ('[[operators.engines]]\nfilter = "a/#/b"\nengine = "node"', '"a/#/b" is no topic filter'),
        ('[[operators.engines]]\nfilter = "a/#"\nengine = "gpu"', "engine"),
        ('[[operators.engines]]\nfilter = "a/#"', "is missing; add engine"),
        ('[journal]\nkeep = ["a/#/b"]', '"a/#/b" is no topic filter'),
        ('[journal]\nkeep = ["$share/g/t"]', "is no topic filter"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(tmp_path: Path, toml: str, text: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        loaded(tmp_path, toml)
    assert text in str(caught.value)


def test_without_the_table_there_is_no_feed(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").feed is None
    assert loaded(tmp_path, "[feed]").feed.bind == Bind("127.0.0.1", 7885)


def test_the_token_is_read_from_where_it_is_and_never_printed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{TOKEN}\n")
    from_file = loaded(tmp_path, '[feed]\nbind = "0.0.0.0:1"\ntoken_file = "secret"')
    from_environment = loaded(tmp_path, "[feed]", STERNA_FEED_TOKEN=TOKEN)
    for configuration in (from_file, from_environment):
        assert FEED_TOKEN.read(configuration.feed) == TOKEN.encode()
        assert TOKEN not in as_toml(configuration)


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    toml = '[feed]\npeers = ["b=10.0.0.2:7885"]\nparquet = "p"\n[journal]\nkeep = ["a/#", "b"]'
    configuration = loaded(tmp_path, toml)
    assert feed_peers(configuration.feed) == {"b": "10.0.0.2:7885"}
    assert configuration.journal.keep == ("a/#", "b")
    assert loaded(tmp_path, as_toml(configuration)) == configuration


def test_filters_to_keep_can_come_from_the_environment(tmp_path: Path) -> None:
    assert loaded(tmp_path, "", STERNA_JOURNAL_KEEP="a/#,b").journal.keep == ("a/#", "b")


@pytest.mark.parametrize(
    ("toml", "bind", "address"),
    [
        ("[feed]", Bind("127.0.0.1", 7885), "127.0.0.1:7885"),
        ('[feed]\nadvertise = "feeds.plant:80"', Bind("10.0.0.1", 7885), "feeds.plant:80"),
        ('[network]\nname = "n"\nbind = "127.0.0.1:7"\n[feed]', Bind("0.0.0.0", 99), "127.0.0.1:99"),
        ('[network]\nname = "n"\nadvertise = "[::1]:7"\n[feed]', Bind("0.0.0.0", 99), "[::1]:99"),
        ('[network]\nname = "n"\n[feed]', Bind("0.0.0.0", 99), ""),
    ],
)
def test_other_nodes_are_told_an_address_that_works_from_there(
    tmp_path: Path, toml: str, bind: Bind, address: str
) -> None:
    assert feed_address(loaded(tmp_path, toml), bind) == address
