"""Commands in the documentation exist, with their arguments and options; sessions are run against real nodes."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from typer.main import get_command

from live.clients import Paho, Settings, Will
from live.networks import LiveNetwork
from live.nodes import LiveNode, wait_until
from sterna.cli.main import assemble

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "contrib/README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(sterna [^`]+)`")


def told(page: Path) -> Iterator[tuple[int, str]]:
    """Line and words of every command of ours in a block."""
    text = page.read_text()
    for block in FENCE.finditer(text):
        if block[1] not in ("", "sh", "console", "sh-session", "text"):
            continue
        for number, line in enumerate(
            block[2].replace("\\\n", " ").splitlines(), text[: block.start()].count("\n") + 2
        ):
            for piece in re.split(r"[|;&<]+(?= |$)", line.removeprefix("$ ")):
                if piece.strip().startswith("sterna "):
                    yield number, piece.strip()


def blocks() -> list[ParameterSet]:
    return [
        pytest.param(words, id=f"{page.name}:{number}: {words[:40]}") for page in PAGES for number, words in told(page)
    ]


def spoken_of() -> list[str]:
    return sorted({words for page in PAGES for words in INLINE.findall(FENCE.sub("", page.read_text()))})


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command, and the words that follow its name."""
    commands = get_command(assemble(words[0])).commands  # type: ignore[attr-defined]
    assert words[0] in commands, f"there is no command {words[0]}"
    found, rest = commands[words[0]], words[1:]
    while hasattr(found, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in found.commands, f"{words[0]} has no command {rest[0]}"
        found, rest = found.commands[rest[0]], rest[1:]
    return found, rest


@pytest.mark.parametrize("line", blocks())
def test_a_command_in_a_block_is_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command, rest = command_of([word for word in words if word != "..."])
    with redirect_stderr(io.StringIO()):
        command.make_context(command.name, rest)


@pytest.mark.parametrize("line", spoken_of())
def test_a_command_that_is_spoken_of_exists_with_its_options(line: str) -> None:
    words = line.split()[1:]
    if words[0].startswith("-"):
        return  # an option of all commands: completion, version
    names = [word for word in words if word.isascii() and not word.isupper()]
    command, rest = command_of(names)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    asked = [re.split(r"[=\]]", word)[0] for word in rest if re.match(r"--?[a-z]", word)]
    assert not [option for option in asked if option not in known]


# -- sessions of docs/operating.md, at two nodes --


def session(page: str, beginning: str) -> str:
    """The block that begins with this command."""
    text = (ROOT / "docs" / page).read_text()
    (found,) = [block[2] for block in FENCE.finditer(text) if block[2].startswith(f"$ {beginning}")]
    return found


def shape(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, addresses, paths, the width of columns."""
    text = re.sub(r"/\S*/(?=before-upgrade)", "DIRECTORY/", text)
    text = re.sub(r"\d[\d,.:]*", "N", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]


def commands_and_output(text: str) -> tuple[list[str], list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    return commands, shape("\n".join(line for line in lines if not line.startswith("$ ")))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveNode, LiveNode]]:
    """North, which is asked, and south, where the client is."""
    directory = tmp_path_factory.mktemp("sessions")
    with LiveNetwork(directory, ()) as network:
        north = network.make("north", [], network.strategy)
        south = network.make("south", [network.door("north")], network.strategy)
        network.nodes |= {"north": north, "south": south}
        for node in (north, south):
            node.launch()
        for node in (north, south):
            wait_until(node.is_up, "a node listens", 120)
        network.wait_until_settled()
        yield north, south


def meter(at: LiveNode, *, version: int = 5) -> Paho:
    will = Will("plant/meter-17/state", b"gone")
    settings = Settings(version=version, client_id="meter-17", persistent=True, will=will)
    return Paho("127.0.0.1", at.port, settings)


def run(script: str, at: LiveNode, directory: Path) -> str:
    """By bash, with the ports of a node in place of the default ones."""
    functions = (
        f'sterna() {{ case "$1" in pub|sub|rr) {sys.executable} -m sterna "$@" -p {at.port};; '
        f'restore) {sys.executable} -m sterna "$@";; *) {sys.executable} -m sterna "$@" --admin {at.admin};; esac; }}\n'
    )
    script = script.replace("127.0.0.1:9883", f"127.0.0.1:{at.admin_port}")
    done = subprocess.run(
        ["bash", "-ec", functions + script], capture_output=True, text=True, timeout=120, cwd=directory, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "beginning"),
    [("operating.md", "sterna client meter-17"), ("operating.md", "sterna ban"), ("operating.md", "curl")],
)
def test_a_session_prints_what_the_page_shows(
    nodes: tuple[LiveNode, LiveNode], page: str, beginning: str, tmp_path: Path
) -> None:
    north, south = nodes
    client = meter(south)
    try:
        client.subscribe("plant/meter-17/orders", 1)
        commands, expected = commands_and_output(session(page, beginning))
        assert shape(run("\n".join(commands), north, tmp_path)) == expected
    finally:
        client.close()


@pytest.mark.slow
def test_a_backup_is_made_and_restored_as_the_page_says(nodes: tuple[LiveNode, LiveNode], tmp_path: Path) -> None:
    (backup, restore), expected = commands_and_output(session("operating.md", "sterna backup"))
    path = run(backup, nodes[0], tmp_path)
    assert shape(path) == expected
    words = shlex.split(restore)
    words[2:] = [path.strip(), str(tmp_path / "restored")]
    run(shlex.join(words), nodes[0], tmp_path)
    assert (tmp_path / "restored").is_dir()


@pytest.mark.slow
def test_packets_are_traced_as_the_page_shows(nodes: tuple[LiveNode, LiveNode]) -> None:
    north, south = nodes
    (command,), expected = commands_and_output(session("operating.md", "sterna trace"))
    client = meter(south)
    words = [sys.executable, "-m", *shlex.split(command), "--admin", north.admin]
    try:
        for _ in range(20):  # a trace may begin amid an exchange
            if (said := traced(words, client)) == expected:
                return
        assert said == expected
    finally:
        client.close()


def traced(words: list[str], client: Paho) -> list[str]:
    """Lines of a trace that begins while this client subscribes and publishes, again and again."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tracing:
        try:
            while tracing.poll() is None:
                client.subscribe("plant/meter-17/orders", 1)
                client.publish("plant/meter-17/temp", b"21.5", 1)
                time.sleep(0.3)
        finally:
            tracing.kill()
        assert tracing.stdout is not None
        return shape(tracing.stdout.read())


@pytest.mark.slow
def test_a_node_is_upgraded_as_the_page_says(tmp_path: Path) -> None:
    """In place of systemd the test stops and starts the node; pip's line is what tests/live/test_wheel.py does."""
    text = (ROOT / "docs/upgrading.md").read_text()
    (block,) = [one[2] for one in FENCE.finditer(text) if one[2].startswith("sterna backup")]
    backup, wheel, stop, install, check, start = [line.partition(" #")[0].strip() for line in block.splitlines()]
    unit = (ROOT / "contrib/systemd/sterna-node.service").read_text()
    assert check.split()[-1] in unit, "the unit reads another file"
    assert wheel == "/opt/sterna/bin/pip wheel --no-deps --wheel-dir new ."
    assert install == "/opt/sterna/bin/pip install --upgrade new/*.whl"
    with LiveNode(tmp_path / "node", '[admin]\nbind = "127.0.0.1:0"\n') as node:
        client = meter(node)
        client.subscribe("plant/meter-17/orders", 1)
        client.close()
        run("sterna pub -t plant/meter-17/orders -m start -q 1", node, tmp_path)
        assert run(backup, node, tmp_path).strip().endswith("/before-upgrade")
        again = [sys.executable, "-m", *shlex.split(backup), "--admin", node.admin]
        done = subprocess.run(again, capture_output=True, text=True, timeout=240)
        assert (done.returncode, "exists already; choose another name" in done.stderr) == (1, True)
        assert re.search(r"^1 segment of the journal, ", run("sterna backup 2>&1", node, tmp_path), re.MULTILINE)
        assert stop == "systemctl stop sterna-node"
        assert node.stop() == 0
        words = [*shlex.split(check)[:-1], str(node.file)]
        assert subprocess.run([sys.executable, "-m", *words], capture_output=True, timeout=240).returncode == 0
        assert start == "systemctl start sterna-node"
        node.restart()
        client = meter(node)
        assert (client.session_present, client.payloads()) == (True, [b"start"])
        client.close()


@pytest.mark.slow
def test_a_question_is_answered_as_the_page_says(nodes: tuple[LiveNode, LiveNode], tmp_path: Path) -> None:
    north, south = nodes
    (command,), expected = commands_and_output(session("operating.md", "sterna rr"))
    oven = Paho("127.0.0.1", south.port, Settings(version=5))
    try:
        oven.subscribe("plant/oven/get", 1)

        def answer(_client: object, _data: object, message: Any) -> None:
            asked = message.properties.json()
            mark = message.properties.CorrelationData
            oven.send(asked["ResponseTopic"], b"180", 1, CorrelationData=mark)

        oven.client.on_message = answer
        assert shape(run(command, north, tmp_path)) == expected
    finally:
        oven.close()


@pytest.mark.slow
def test_expressions_are_listed_as_the_page_says(nodes: tuple[LiveNode, LiveNode], tmp_path: Path) -> None:
    north, south = nodes
    commands, expected = commands_and_output(session("operators.md", "sterna operators list"))
    screen = Paho("127.0.0.1", south.port, Settings(version=5, client_id="screen-4"))
    try:
        screen.subscribe("$MAX/plant/#", 0)
        screen.publish("plant/1", b"5", 1)
        screen.receive(1)
        assert shape(run(commands[0], north, tmp_path)) == expected[-1:]
    finally:
        screen.close()


@pytest.mark.slow
def test_the_five_commands_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = [one[2] for one in FENCE.finditer(text) if one[2].startswith("sterna node ")]
    node_line, pub, sub, clients, import_ = [line.partition(" # ")[0].strip() for line in block.splitlines()]
    assert node_line == "sterna node"
    (tmp_path / "mosquitto.conf").write_text("listener 1884\nallow_anonymous true\n")
    with LiveNode(tmp_path / "node", '[admin]\nbind = "127.0.0.1:0"\n') as node:
        assert run(pub, node, tmp_path) == ""
        assert run(f"{sub} -C 1", node, tmp_path) == "plant/oven 181.5\n"
        client = meter(node)
        try:
            assert run(clients, node, tmp_path).startswith("meter-17\t")
        finally:
            client.close()
        imported = subprocess.run(
            [sys.executable, "-m", *import_.split()], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
        assert (imported.returncode, "1884" in imported.stdout) == (0, True)
