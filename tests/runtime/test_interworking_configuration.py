"""The `[interworking]` table: what is wrong in it is named with its line and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sterna.cli.main import assemble
from sterna.runtime.config.loading import load
from sterna.vocabulary.errors import ConfigurationError

LISTENER = '[[listener]]\nbind = "127.0.0.1:1883"\n'


def read(tmp_path: Path, table: str) -> object:
    file = tmp_path / "sterna.toml"
    file.write_text(f"{LISTENER}[interworking]\n{table}\n")
    return load(file, {}).interworking


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("", "broker"),
        ('broker = "mosquitto"', "is not an address: write host:port"),
        ('broker = "127.0.0.1:1883"', "127.0.0.1:1883 is this node itself"),
        ('broker = "localhost:1883"', "is this node itself"),
        ('broker = "h:1"\nmode = "relay"', '"attach"'),
        ('broker = "h:1"\nmode = "proxy"\n[[listener]]\nserves = "broken"', '"broker"'),
        ('broker = "h:1"\nmode = "proxy"\n[node]\nprocesses = 2', "set processes = 1 in [node]"),
        (
            'broker = "h:1"\nmode = "proxy"\n[[listener]]\nbind = "0.0.0.0:1884"',
            "as if they were this one; set require_certificate and client_ca, or say anonymous = true",
        ),
        ('broker = "h:1"\n[[listener]]\nbind = "127.0.0.1:1884"\nserves = "broker"', 'set mode = "proxy"'),
        ('broker = "h:1"\nmode = "proxy"\nwitness_window = 0', "out of range"),
        ('broker = "h:1"\nfrom_broker = ["a/#/b"]', "is no topic filter"),
        ('broker = "h:1"\nfrom_broker = ["a/+", "+/b"]', "match some of the same topics: write one filter"),
        ('broker = "h:1"\nto_broker = ["$SYS/#"]', "belong to one broker and never cross"),
        ('broker = "h:1"\nto_broker = ["$share/g/a"]', "leave out `$share/group/`"),
        ('broker = "h:1"\nonly_wanted = true', "nobody tells the node what the broker's clients want"),
        ('broker = "h:1"\nfrom_broker = []\nto_broker = []', 'write ["#"] for all topics'),
        ('broker = "h:1"\nin_doubt = "perhaps"', '"repeat"'),
        ('broker = "h:1"\npassword_file = "nowhere"', "cannot be read"),
        ('broker = "h:1"\nca = "nowhere.pem"', "set tls = true"),
        ('broker = "h:1"\nfence_s = 0', "out of range"),
        ('broker = "h:1"\npause_s = 10\npause_max_s = 1', "is below pause_s"),
        ('broker = "h:1"\nbrokers = 2', "brokers"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, table: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, table)
    assert complaint in str(error.value)
    assert "sterna.toml" in str(error.value)


def test_in_proxy_mode_listeners_relay_unless_they_say_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    more = '[[listener]]\nbind = "127.0.0.1:1884"\nserves = "node"\n'
    table = '[interworking]\nbroker = "h:1"\nmode = "proxy"\n[authentication]\npassword_file = "users"\n'
    (tmp_path / "users").write_text("")
    file.write_text(LISTENER + more + table)
    found = load(file, {}).listeners
    assert [listener.serves for listener in found] == ["broker", "node"]
    assert [listener.anonymous for listener in found] == [True, False], "the foreign broker checks its own users"


def test_a_proxy_that_relays_nobody_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(f'{LISTENER}serves = "node"\n[interworking]\nbroker = "h:1"\nmode = "proxy"\n')
    with pytest.raises(ConfigurationError, match="no listener relays clients to the broker"):
        load(file, {})


def test_filters_that_others_cover_are_no_mistake(tmp_path: Path) -> None:
    assert read(tmp_path, 'broker = "h:1"\nfrom_broker = ["a/#", "a/b", "c"]')


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "name the broker"),
        (["--broker", "nonsense"], "is not an address"),
        (["--broker", "127.0.0.1:1883"], "is this node itself"),
        (["--broker", "h:1", "--mode", "sideways"], "is no mode: use attach or proxy"),
    ],
)
def test_the_command_names_what_is_wrong(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(assemble("interwork"), ["interwork", *words])
    assert result.exit_code == 2
    assert complaint in result.output
