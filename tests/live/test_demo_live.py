"""The end of the demo at a terminal: a network in which clients roam, to be seen on its dashboard."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from rich.console import Console

from sterna.cli.demo_live import ROAMING, WatchedDemoNode, live
from sterna.cli.demo_nodes import DemoNode, follow, joined

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PATIENCE_S = 120.0
WHOLE_S = 1200.0
"""All parts of the demo, on a busy machine."""
MANY = 100
"""Messages, of seconds in which Spark would have counted."""
KILL_EVERY_S, DEAD_S = 5.0, 2.0
CTRL_C = b"\x03"
LIVES = """
import sys
from pathlib import Path
from sterna.cli.demo import _live
from sterna.cli.demo_nodes import DemoNode
first = DemoNode(Path(sys.argv[1]), "first")
other = DemoNode(Path(sys.argv[1]), "other", first)
try:
    first.start()
    other.start()
    _live((first, first))
finally:
    other.stop()
    first.stop()
"""
"""The last step of the demo at a terminal; it was not told of one node of the network."""


def test_clients_roam_a_node_dies_and_returns_and_the_dashboard_shows_it(tmp_path: Path) -> None:
    first = DemoNode(tmp_path, "first")
    nodes = (first, DemoNode(tmp_path, "second", first))
    deadline = time.monotonic() + PATIENCE_S
    seen: dict[str, int] = {}
    epochs: set[int] = set()
    wanted = {"clients": ROAMING, "moved": 1, "expressions": 1, "silent": 1, "starts": 2}

    @contextmanager
    def join(name: str, node: WatchedDemoNode) -> Iterator[paho.Client]:
        with joined(name, node, []) as client:
            follow(client)
            yield client

    def note(**now: int) -> None:
        seen.update({name: max(number, seen.get(name, 0)) for name, number in now.items()})

    def is_seen() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{first.admin_port}/dashboard/picture", timeout=30) as answer:
            rows = json.load(answer)["nodes"]
        alive = [row for row in rows if row["age_s"] == 0]
        epochs.update(row["epoch"] for row in alive if row["node"] == "second")
        note(
            clients=sum(row["totals"]["clients_connected"] for row in alive),
            moved=sum(len(row["moved"]) for row in alive),
            expressions=sum(row["totals"]["expressions"] for row in alive),
            silent=len(rows) - len(alive),
            starts=len(epochs),
        )
        return all(seen[name] >= number for name, number in wanted.items()) or time.monotonic() > deadline

    with ExitStack() as running:
        for node in nodes:
            running.callback(node.stop)
            node.start()
        live(nodes, join, Console(quiet=True), is_seen, kill_every_s=KILL_EVERY_S, dead_s=DEAD_S)
    assert {name: seen[name] >= number for name, number in wanted.items()} == dict.fromkeys(wanted, True), seen


@contextmanager
def at_a_terminal(*words: str, **environment: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A program at a terminal of its own, and this end of it."""
    terminal, line = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=line, stdout=line, stderr=line, preexec_fn=lambda: fcntl.ioctl(line, termios.TIOCSCTTY, 0),
        start_new_session=True, env=os.environ | environment,
    )  # fmt: skip
    os.close(line)
    try:
        yield terminal, process
    finally:
        process.terminate()  # by which it ends what it started
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)


def test_at_a_terminal_it_tells_the_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with at_a_terminal("-c", LIVES, str(tmp_path)) as (terminal, process):
        said = _read(terminal, b"Ctrl-C ends it")
        assert b"The network lives on" in said
        assert b"http://127.0.0.1:" in said
        os.write(terminal, CTRL_C)
        _read(terminal, b"stopping")
        assert process.wait(PATIENCE_S) == 0


def test_a_client_goes_where_people_send_it_also_to_a_node_that_the_demo_does_not_list(tmp_path: Path) -> None:
    with at_a_terminal("-c", LIVES, str(tmp_path)) as (terminal, _):
        address = _address(_read(terminal, b"Ctrl-C ends it"))
        row, deadline = "clients_connected", time.monotonic() + PATIENCE_S
        while not _totals(address, "other").get(row, 0):
            assert time.monotonic() < deadline, "no client came to the other node"
            _order(address, "/move", {"client": "roamer-00", "to": "other"})


def test_the_whole_demo_at_a_terminal_ends_with_an_address_that_stays_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    words = ("-m", "sterna", "demo", "--spark-patience", "0")
    with at_a_terminal(*words, TMPDIR=str(tmp_path)) as (terminal, process):
        said = _read(terminal, b"dies and returns.\r\n", WHOLE_S)
        assert re.search(rb"The page was up [\d.]+ s after the start", said)
        address = _address(said)
        with urllib.request.urlopen(urllib.request.Request(f"{address}/", headers={"Accept": "text/html"})) as answer:
            assert b"<title>Sterna" in answer.read()
        begun, deadline = _received(address), time.monotonic() + PATIENCE_S
        while _received(address) < begun + MANY:
            assert time.monotonic() < deadline, "the clients do not publish"
            time.sleep(0.2)
        os.write(terminal, CTRL_C)
        assert _read(terminal, b"stopping").strip() in (b"stopping", b"^C\r\nstopping"), "the address scrolled away"
        assert process.wait(PATIENCE_S) == 0
        assert list(tmp_path.iterdir()) == []
        assert _processes_with(f"TMPDIR={tmp_path}") == []


def _received(address: str) -> int:
    return sum(_totals(address, node).get("publish_received", 0) for node in ("north", "middle", "south"))


def _processes_with(variable: str) -> list[str]:
    """Their command lines, by a variable of their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_text())
    return found


def _address(said: bytes) -> str:
    """The last one that it said."""
    found: list[bytes] = re.findall(rb"http://127.0.0.1:\d+", said)
    assert found, said
    return found[-1].decode()


def _totals(address: str, node: str) -> dict[str, int]:
    """Of the last second; empty while it does not answer."""
    with urllib.request.urlopen(f"{address}/dashboard/picture", timeout=PATIENCE_S) as answer:
        rows = json.load(answer)["nodes"]
    return next((row["totals"] for row in rows if row["node"] == node and row["age_s"] == 0), {})


def _order(address: str, page: str, body: Mapping[str, object]) -> None:
    """One that cannot be obeyed now is refused."""
    words = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}{page}", json.dumps(body).encode(), words, method="POST")
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass


def _read(terminal: int, until: bytes, patience_s: float = PATIENCE_S) -> bytes:
    said = b""
    deadline = time.monotonic() + patience_s
    while until not in said:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{until!r} was not said: {said!r}"
        said += os.read(terminal, 65536)
    return said
