"""Blocks of commands and of files, executed as they stand, with ports and paths of this machine in place of theirs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import argon2
import pytest

from live.certificates import Authority
from live.clients import Paho, Settings
from live.foreign_brokers import ForeignProcess, needs
from live.nodes import LiveNode, wait_until
from sterna.broker.access.passwords import hash_password
from sterna.measure.harness.ports import free_port
from sterna.measure.ildm.scenario import read_scenario

DOCS = Path(__file__).parents[2] / "docs"
CHEAP = argon2.PasswordHasher(1, 8, 1)


def blocks(page: str, beginning: str) -> list[str]:
    found = re.findall(r"^```[\w-]*\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if block.startswith(beginning)]


def shape(text: str) -> list[str]:
    """Lines without numbers, addresses and ports."""
    return [re.sub(r"\d[\d,.:]*", "N", line) for line in text.splitlines()]


@contextmanager
def running(line: str, directory: Path) -> Iterator[Path]:
    """A command that goes on until it is told to stop; the file of its log.  Its admin port is any that is free."""
    words = [sys.executable, "-m", *shlex.split(line)]
    log = directory / "log"
    environment = os.environ | {"STERNA_ADMIN_BIND": "127.0.0.1:0"}
    with (
        log.open("wb") as out,
        subprocess.Popen(words, cwd=directory, stdout=out, stderr=out, env=environment) as process,
    ):
        try:
            wait_until(lambda: " listening " in log.read_text() or process.poll() is not None, "the command serves")
            assert process.poll() is None, log.read_text()
            yield log
        finally:
            process.terminate()
    assert process.returncode == 0


def hear_each_other(*ports: int) -> None:
    """A message at QoS 1 from a client at each port comes to clients at all ports, once."""
    with ExitStack() as stack:
        clients = []
        for port in ports:
            clients.append(Paho("127.0.0.1", port, Settings()))
            stack.callback(clients[-1].close)
            clients[-1].subscribe("plant/heard/#", 1)
        for number, client in enumerate(clients):
            client.publish(f"plant/heard/{number}", str(number).encode(), 1)
        for client in clients:
            assert sorted(client.payloads(len(ports))) == [str(number).encode() for number in range(len(ports))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"), [("interworking.md", 0), ("interworking.md", 1), ("coming-from-mosquitto.md", 0)]
)
def test_a_broker_is_joined_by_the_command_of_the_page(page: str, number: int, tmp_path: Path) -> None:
    needs("mosquitto")
    line = blocks(page, "sterna interwork")[number]
    (there,) = re.findall(r"--broker 127\.0\.0\.1:(\d+)", line)
    (here,) = re.findall(r"--port (\d+)", line)
    assert there != here, "both cannot have one port"
    port = free_port()
    with ForeignProcess("mosquitto", tmp_path / "mosquitto") as broker:
        line = line.replace(f":{there}", f":{broker.port}").replace(f"--port {here}", f"--port {port}")
        with running(line, tmp_path) as log:
            wait_until(lambda: " INFO attached " in log.read_text(), "the broker is attached")
            hear_each_other(broker.port, port)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["coming-from-mosquitto.md", "configuration.md"])
def test_a_configuration_of_mosquitto_becomes_a_node(page: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    (block,) = blocks(page, "sterna import")
    import_, check, *start = block.replace("/etc/mosquitto/", f"{tmp_path}/").splitlines()
    for line in (import_, check):
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)], capture_output=True, cwd=tmp_path, timeout=240
        )
        assert done.returncode == 0, done.stderr
    for line in start:
        with running(line, tmp_path):
            hear_each_other(port)


@pytest.mark.slow
def test_a_bridge_as_the_page_has_it_carries_messages_both_ways(tmp_path: Path) -> None:
    needs("mosquitto")
    (bridge,) = blocks("configuration.md", "connection plant")
    with LiveNode(tmp_path / "node") as node:
        here, replaced = re.subn(r"(?<=address )\S+", f"127.0.0.1:{node.port}", bridge)
        assert replaced == 1
        with ForeignProcess("mosquitto", tmp_path / "mosquitto", here) as broker:
            wait_until(lambda: node.events("client connected"), "the bridge has come")
            there = Paho("127.0.0.1", broker.port, Settings())
            try:
                there.subscribe("plant/#", 1)
                probe = Paho("127.0.0.1", node.port, Settings())
                while not there.messages:  # until the bridge has subscribed at the node
                    probe.publish("plant/probe", b"probe", 1)
                probe.close()
            finally:
                there.close()
            hear_each_other(broker.port, node.port)


@pytest.mark.slow
def test_files_of_adaptation_are_made_and_checked(tmp_path: Path) -> None:
    """The files of the page, in the order of its commands: made, then found good."""
    for toml in blocks("adaptation.md", "# "):
        name = toml.splitlines()[0].removeprefix("# ").split()[0]
        if name.endswith(".toml"):
            (tmp_path / name).write_text(toml)
    commands = "".join(blocks("adaptation.md", "head") + blocks("adaptation.md", "sterna worker"))
    script = f'sterna() {{ {sys.executable} -m sterna "$@"; }}\n{commands}'
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    users = [line.partition(":")[0] for line in (tmp_path / "passwords").read_text().splitlines()]
    assert users == ["coordinator", "worker", "gate-7"]
    for said in ('node_file = "', 'name = "coordinator-1"', 'name = "gate-7"'):
        assert said in done.stdout


@pytest.mark.slow
def test_a_reload_says_what_the_page_shows(tmp_path: Path) -> None:
    command, *expected = blocks("configuration.md", "$ sterna reload")[0].splitlines()
    passwords = tmp_path / "passwords"
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    rules = "".join(f'[[authorization.rule]]\nfilters = ["{place}/#"]\n' for place in ("hall", "oven", "roof", "plant"))

    def configuration(limits: str) -> str:
        listener = f'[[listener]]\nbind = "127.0.0.1:0"\ncertificate = "{certificate}"\nkey = "{key}"\n'
        access = f'[authentication]\npassword_file = "{passwords}"\n{rules}'
        return f'{listener}{access}[limits]\n{limits}\n[admin]\nbind = "127.0.0.1:0"\n'

    def write_passwords(count: int) -> None:
        users = [f"user-{number}" for number in range(count)]
        lines = [hash_password(user, user, random_bytes=lambda size: bytes(size), hasher=CHEAP) for user in users]
        passwords.write_text("\n".join([*lines, ""]))

    write_passwords(13)
    with LiveNode(tmp_path / "node", configuration("connections = 100_000")) as node:
        gone = Paho(*node.address, Settings(username="user-12", password="user-12", tls=authority.context()))
        try:
            write_passwords(12)
            authority.issue("server")
            node.file.write_text(node._completed(configuration("connections = 20_000\nreceive_maximum = 1000")))
            words = [sys.executable, "-m", *shlex.split(command.removeprefix("$ ")), "--admin", node.admin]
            done = subprocess.run(words, capture_output=True, text=True, timeout=240)
            gone.wait_for_end()
        finally:
            gone.close()
    said = done.stdout.replace("level info, json", "level info, text")  # tests read logs as JSON
    assert (done.returncode, shape(said)) == (0, shape("\n".join(expected)))


def test_the_scenario_of_the_page_is_one(tmp_path: Path) -> None:
    (text,) = blocks("experiments.md", "about =")
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    assert read_scenario(file).nodes == 2
