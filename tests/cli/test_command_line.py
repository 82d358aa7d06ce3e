"""The `sterna` command itself, its configuration check and its password file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.commands import run
from sterna import __version__
from sterna.broker.access.passwords import PasswordFile
from sterna.cli.main import COMMANDS, EXTRAS, assemble
from sterna.cli.node import overridden
from sterna.runtime.config.loading import load
from sterna.vocabulary.extras import how_to_add


def test_help_lists_every_command_and_h_is_not_help() -> None:
    code, out, err = run("sterna", "--help")
    assert (code, err) == (0, "")
    assert all(f" {name} " in out.decode() for name in COMMANDS)
    assert run("sterna", "pub", "-h")[0] == 1


def test_help_is_plain_text() -> None:
    """No marks for what would draw it, no types behind flags that take no value, and no flag cut."""

    def every(command: Any) -> Iterator[str | None]:
        yield command.help
        yield from (getattr(parameter, "help", None) for parameter in command.params)
        for one in getattr(command, "commands", {}).values():
            yield from every(one)

    texts = [text for text in every(typer.main.get_command(assemble(""))) if text]
    assert any("[" in text for text in texts)
    assert [text for text in texts if "\\[" in text] == []
    shown = run("sterna", "sub", "--help")[1].decode()
    assert "--disable-clean-session " in shown
    assert "<bool>" not in shown
    assert "…" not in shown


def test_completion_has_a_script_and_completes_commands_and_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        code, out, _ = run("sterna")
        assert code == 0, "as shells want it"
        return out.decode().split()

    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # there is no shell above a test
    code, script, _ = run("sterna", "--show-completion", "bash")
    assert code == 0
    assert b"complete -o default -F _sterna_completion sterna" in script
    monkeypatch.setenv("_STERNA_COMPLETE", "complete_bash")
    assert set(completed("sterna ")) == set(COMMANDS)
    assert completed("sterna mi") == ["migrations"]
    assert completed("sterna pub --ret") == ["--retain"]
    assert "archive" in completed("sterna pipeline ")


def test_the_plan_of_an_expression_can_be_had_as_json() -> None:
    code, out, err = run("sterna", "operators", "explain", "$AVG/room/+/temp", "--json")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert plan["expression"] == "$AVG/room/+/temp"
    assert plan["accepted"] is True
    assert [step["step"] for step in plan["steps"]] == ["messages", "$AVG", "result", "engine"]
    assert plan["steps"][0]["gives"] == "room/+/temp"
    code, out, err = run("sterna", "operators", "explain", "$AVGG/room/+/temp", "--json")
    assert (code, err) == (1, "")
    fault = {"operator": "$AVGG", "byte": 0, "error": "unknown operator; write $AVG"}
    assert json.loads(out) == {"expression": "$AVGG/room/+/temp", "accepted": False} | fault


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evacuate", ""), "the name of the node is empty"),
        (("evacuate", "a", "--rate", "nan"), "--rate is more than 0"),
        (("evacuate", "a", "--rate", "0"), "--rate is more than 0"),
        (("move", "", "--to", "a"), "the client identifier is empty"),
        (("move", "c", "--to", ""), "the name of the node is empty"),
        (("move", os.fsdecode(b"\xff"), "--to", "a"), "the client identifier is not UTF-8"),
    ],
)
def test_an_order_that_names_nobody_is_not_sent(words: tuple[str, ...], said: str) -> None:
    code, out, err = run("sterna", *words, "--admin", "127.0.0.1:1")
    assert (code, out) == (1, b"")
    assert err.startswith(said)


def test_version_prints_the_version_of_the_package() -> None:
    assert run("sterna", "--version") == (0, f"sterna {__version__}\n".encode(), "")
    assert version("sterna") == __version__


def test_a_misspelt_command_gets_a_hint() -> None:
    code, _, err = run("sterna", "nod")
    assert code == 2
    assert "Did you mean 'node'" in err


def test_pub_loads_neither_broker_nor_journal() -> None:
    program = (
        "import sys; from sterna.cli.main import assemble; assemble('pub');"
        "print([name for name in sys.modules if name in ('pyarrow', 'uvloop', 'rich', 'msgspec')"
        " or name.startswith(('sterna.runtime', 'sterna.broker', 'sterna.journal', 'sterna.measure'))])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert out == b"[]\n"


def test_check_config_prints_the_effective_configuration(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text('[node]\nname = "n"\ndata = "d"\n')
    code, out, err = run("sterna", "check-config", file)
    assert (code, err) == (0, "")
    assert tomllib.loads(out.decode())["node"] == {"name": "n", "data": str(tmp_path / "d"), "processes": 1}
    code, out, _ = run("sterna", "check-config", file, "--json")
    assert code == 0
    assert json.loads(out)["configuration"]["limits"]["inflight"] == 64


def test_check_config_explains_every_error_and_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text('[[listener]]\nbind = "127.0.0.1:70000"\n[logs]\n')
    expected = [
        f"{file}:2: [[listener]] bind: port 70000 is out of range; use 1..65535",
        f"{file}:3: [logs]: unknown table; did you mean log?",
    ]
    assert run("sterna", "check-config", file) == (1, b"", "\n".join([*expected, ""]))
    code, out, _ = run("sterna", "check-config", file, "--json")
    document = json.loads(out)
    assert (code, document["valid"]) == (1, False)
    assert document["problems"][0] == {
        "source": str(file),
        "line": 2,
        "place": "[[listener]] bind",
        "text": "port 70000 is out of range",
        "fix": "use 1..65535",
    }


@pytest.mark.parametrize(
    ("table", "check"),
    [
        ("upstream", "sterna check-config --gateway"),
        ("worker", "sterna worker --check --config"),
        ("coordinator", "sterna coordinator --check --config"),
    ],
)
def test_check_config_knows_the_files_of_other_processes(table: str, check: str, tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(f"[{table}]\n")
    code, out, err = run("sterna", "check-config", file)
    assert (code, out) == (1, b"")
    owner = "gateway" if table == "upstream" else table
    assert err.splitlines()[-1] == f"this looks like the file of a {owner}; check it with: {check} {file}"


def test_node_refuses_a_bad_configuration_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text("[limits]\ninflite = 1\n")
    code, out, err = run("sterna", "node", "--config", file)
    assert (code, out) == (1, b"")
    assert err == f"{file}:2: [limits] inflite: unknown key; did you mean inflight?\n"


def test_port_and_data_on_the_command_line_win(tmp_path: Path) -> None:
    configuration = overridden(load(None, {"STERNA_LISTENER_0_BIND": "[::1]:5"}), 7, tmp_path)
    assert str(configuration.listeners[0].bind) == "[::1]:7"
    assert configuration.node.data == tmp_path
    with pytest.raises(typer.BadParameter, match="has no port"):
        overridden(load(None, {"STERNA_LISTENER_0_BIND": "unix:/s"}), 7, None)


@pytest.mark.slow
def test_passwd_adds_changes_and_removes_users(tmp_path: Path) -> None:
    file = tmp_path / "passwords"

    def users() -> PasswordFile:
        return PasswordFile.parse(file.read_text(), "")

    assert run("sterna", "passwd", file, "alice", given=b"one\n") == (0, b"", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(f"# our users\n{file.read_text()}")
    os.chmod(file, 0o640)
    assert run("sterna", "passwd", file, "bob", "--scram", given=b"two\n")[0] == 0
    assert run("sterna", "passwd", file, "alice", given=b"three\n")[0] == 0
    assert users().verify("alice", b"three", now=0)
    assert not users().verify("alice", b"one", now=0)
    assert users().verify("bob", b"two", now=0)
    assert users().offers("SCRAM-SHA-256")
    assert file.read_text().startswith("# our users\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert run("sterna", "passwd", file, "bob", "--delete")[0] == 0
    assert len(users()) == 1
    assert [found.name for found in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.slow
def test_passwd_makes_a_file_anew_as_mosquitto_passwd_does(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    assert run("sterna", "passwd", "-c", file, "alice", given=b"one\n") == (0, b"", "")
    code, _, err = run("sterna", "passwd", "-c", file, "bob", given=b"\n")
    assert (code, "the password is empty" in err) == (1, True)
    assert PasswordFile.parse(file.read_text(), "").verify("alice", b"one", now=0), "the old file stands"
    code, out, err = run("sterna", "passwd", "-c", file, "bob", given=b"two\n")
    assert (code, out, err) == (0, b"", f"{file}: written anew; bob is its only user\n")
    users = PasswordFile.parse(file.read_text(), "")
    assert (len(users), users.verify("bob", b"two", now=0)) == (1, True)
    code, _, err = run("sterna", "passwd", "-c", "-D", file, "bob")
    assert (code, err) == (1, "--create and --delete exclude each other\n")


@pytest.mark.slow
def test_passwd_refuses_what_would_not_work(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    for user, given, complaint in [
        ("alice", b"\n", "the password is empty"),
        ("a:b", b"x\n", "user name 'a:b' cannot be used"),
        ("*", b"x\n", "user name '*' cannot be used"),
    ]:
        code, _, err = run("sterna", "passwd", file, user, given=given)
        assert code == 1
        assert complaint in err
        assert not file.exists()
    assert "there is no user carol" in run("sterna", "passwd", file, "carol", "--delete")[2]
    assert "cannot be changed: Is a directory" in run("sterna", "passwd", tmp_path, "alice", given=b"x\n")[2]
    file.write_text("broken\n")
    assert "line 1" in run("sterna", "passwd", file, "alice", given=b"x\n")[2]
    assert file.read_text() == "broken\n"


def test_an_expression_is_explained_and_a_wrong_one_pointed_at() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    code, out, _ = run("sterna", "operators", "explain", "$GT;25$HOURLYMAX/plant/#")
    assert code == 0
    assert out.decode() in page
    code, _, err = run("sterna", "operators", "explain", "$AVG$AVGG/x")
    assert code == 1
    assert err.splitlines() == ["$AVG$AVGG/x", "    ^", "$AVGG: unknown operator; write $AVG"]
    code, _, err = run("sterna", "operators", "explain", "$MAX$CNTFEM/camera/+")
    assert code == 1
    own = '[[functions.own]] with name = "COUNTFEMALE", call = "module:function" and a description'
    assert err.splitlines() == [
        f"$CNTFEM: no function computes $COUNTFEMALE here; plug one in: {own} (docs/operators.md)"
    ]
    assert run("sterna", "operators", "explain", "$MAX$CNTPPL/camera/+")[0] == 0


def plain(*words: str) -> subprocess.CompletedProcess[str]:
    """A command where none of the packages of extras is installed."""
    missing = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))"
    script = f"{missing}; from sterna.cli.main import main; main({list(words)!r})"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_without_the_packages_of_extras_help_is_there_and_commands_name_what_they_lack() -> None:
    help_ = plain("--help")
    assert help_.returncode == 0, help_.stderr
    assert all(f"  {name} " in help_.stdout for name in COMMANDS)
    assert "Not installed: needs the package" in help_.stdout
    readers = plain("readers", "list")
    assert (readers.returncode, readers.stderr) == (
        1,
        f"this needs the package pyarrow; {how_to_add('feed')}\n",
    )
    archive = plain("pipeline", "archive", "plant", "--nodes", "127.0.0.1:1")
    assert archive.returncode == 1
    assert archive.stderr.endswith(f"; {how_to_add('pipeline')}\n"), "one extra, not one package after the other"
