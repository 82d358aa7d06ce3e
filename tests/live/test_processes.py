"""Several processes as one node: one port, one admin port, one name; a killed process costs nobody a message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sterna.measure.harness.ports import free_port

from .clients import Paho, Refused
from .conftest import Join
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

StartNode = Callable[[str], LiveNode]

_TOML = """[node]
name = "plant"
data = "{data}"
processes = {processes}

[admin]
bind = "127.0.0.1:0"
"""


def toml(data: Path, processes: int = 3, more: str = "") -> str:
    return _TOML.format(data=data, processes=processes) + more


def started(start_node: StartNode, text: str) -> LiveNode:
    node = start_node(text)
    wait_until(lambda: node.events("all processes serve"), "all processes serve", 120)
    wait_until(lambda: node.ask("/readyz") == (200, "ready\n"), "all of them are ready")
    links = text.partition("processes = ")[2].partition("\n")[0]
    wait_until(lambda: connected(node) == int(links) - 1, "all of them are linked")
    return node


def connected(node: LiveNode) -> int:
    return sum(link["connected"] for link in node.network()["links"])


def places(node: LiveNode) -> dict[str, str]:
    """Client -> the process that it is connected to, by name."""
    return {one["client"]: one["node"] for one in json.loads(node.ask("/clients")[1]) if one.get("connected")}


def process_of(node: LiveNode, name: str) -> int:
    """The process identifier of a member."""
    number = name.partition("-")[2] or "1"
    for child in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if words[words.index(b"--member") + 1] == number.encode():
            return int(child)
    raise AssertionError(f"no process of {name}")


def test_clients_of_all_processes_are_clients_of_one_broker(
    start_node: StartNode, join: Join, tmp_path: Path, topic: str
) -> None:
    node = started(start_node, toml(tmp_path / "data"))
    readers = [join(node, client_id=f"reader-{number}", persistent=True) for number in range(24)]
    for reader in readers:
        assert reader.subscribe(topic, 1) == 1
    assert set(places(node)) == {f"reader-{number}" for number in range(24)}
    assert len(set(places(node).values())) > 1  # all in one of three by chance: one in 10^11
    writers = [join(node, client_id=f"writer-{number}") for number in range(6)]
    for number, writer in enumerate(writers):
        writer.publish(topic, b"%d" % number, 1)
    for reader in readers:
        assert sorted(message.payload for message in reader.receive(6)) == [b"%d" % number for number in range(6)]
    received = {str(process): node.metric("sterna_connections_total", process=str(process)) for process in (1, 2, 3)}
    assert sum(received.values()) == 30, received
    assert json.loads(node.ask("/gateways")[1])["plain"] == 30
    owed = json.loads(node.ask("/drain")[1])
    assert (owed["node"], owed["sessions"], owed["closed"]) == ("plant", 30, False)


def test_a_killed_process_is_started_again_and_loses_nothing(
    start_node: StartNode, join: Join, tmp_path: Path, topic: str
) -> None:
    node = started(start_node, toml(tmp_path / "data"))
    reader = join(node, client_id="reader", persistent=True)
    reader.subscribe(topic, 2)
    writer = join(node, client_id="writer")
    for number in range(20):
        writer.publish(topic, b"%d" % number, 2)
    before = [message.payload for message in reader.receive(20)]
    lost = places(node)["reader"]
    killed = process_of(node, lost)
    if places(node)["writer"] == lost:
        writer.close()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: node.events("a process ended and is started again"), "the group notices")

    def comes_back(client_id: str, *, persistent: bool) -> bool:
        nonlocal reader, writer
        try:
            client = join(node, client_id=client_id, persistent=persistent)
        except (Refused, OSError, AssertionError):
            return False
        if persistent:
            reader = client
        else:
            writer = client
        return True

    wait_until(lambda: comes_back("writer", persistent=False), "the writer is let in", 120)
    for number in range(20, 40):
        writer.publish(topic, b"%d" % number, 2)
    wait_until(lambda: comes_back("reader", persistent=True), "the reader is let in", 120)
    if not reader.session_present:
        reader.subscribe(topic, 2)
    after = [message.payload for message in reader.receive(20)]
    assert sorted(before + after, key=int) == [b"%d" % number for number in range(40)]
    wait_until(lambda: process_of(node, lost) != killed, "it runs again")


def sterna(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=120)
    assert run.returncode == status, run.stderr
    return run


class Wanderers:
    """Persistent clients that connect again and again, so that their sessions go from process to process."""

    def __init__(self, node: LiveNode, join: Join, count: int) -> None:
        self.names = [f"wanderer-{number}" for number in range(count)]
        self._node, self._join = node, join
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._wander, args=(name,)) for name in self.names]

    def _wander(self, name: str) -> None:
        while not self._is_over.is_set():
            with suppress(Refused, OSError):
                self._join(self._node, client_id=name, persistent=True).close()

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def test_a_backup_has_the_sessions_of_all_processes(
    start_node: StartNode, join: Join, tmp_path: Path, topic: str
) -> None:
    node = started(start_node, toml(tmp_path / "data"))
    wanderers = Wanderers(node, join, 4)
    absent = [f"absent-{number}" for number in range(12)]
    readers = [join(node, client_id=name, persistent=True) for name in [*absent, *wanderers.names]]
    for reader in readers:
        reader.subscribe(topic, 1)
    assert len(set(places(node).values())) > 1  # all in one of three by chance: one in 10^7
    for reader in readers:
        reader.close()
    writer = join(node, client_id="writer")
    sent = [b"%d" % number for number in range(20)]
    for payload in sent:
        writer.publish(topic, payload, 1)
    with wanderers:
        path = sterna("backup", "whole", "--admin", node.admin).stdout.strip()
    assert "exists already" in sterna("backup", "whole", "--admin", node.admin, status=1).stderr
    assert sorted(part.name for part in Path(path).glob("process-*")) == ["process-2", "process-3"]
    node.kill()
    assert "--processes 3" in sterna("restore", path, str(tmp_path / "restored")).stderr
    copy = started(start_node, toml(tmp_path / "restored"))
    for name in absent:
        reader = comes_back(copy, join, name)
        assert reader.session_present, name
        assert [message.payload for message in reader.receive(20)] == sent
    for name in wanderers.names:  # they have read some before the backup
        assert comes_back(copy, join, name).session_present, name


def comes_back(node: LiveNode, join: Join, client_id: str) -> Paho:
    """As soon as it is let in: its session may be at another process."""
    found: list[Paho] = []

    def is_in() -> bool:
        with suppress(Refused, OSError, AssertionError):
            found.append(join(node, client_id=client_id, persistent=True))
        return bool(found)

    wait_until(is_in, f"{client_id} is let in", 120)
    return found[0]


def linked(name: str, data: Path, processes: int, port: int, neighbours: list[str]) -> str:
    """The configuration of a node that is open to others at that port."""
    more = f'[network]\nname = "live"\nbind = "127.0.0.1:{port}"\nneighbours = {neighbours}\n'
    return toml(data, processes, more).replace('"plant"', f'"{name}"')


def test_a_port_for_links_that_is_left_to_the_system_is_the_same_for_all_processes(
    start_node: StartNode, tmp_path: Path
) -> None:
    plant = started(start_node, linked("plant", tmp_path / "plant", 2, 0, []))
    assert connected(plant) == 1


def test_an_evacuation_is_over_when_all_processes_are_empty(start_node: StartNode, join: Join, tmp_path: Path) -> None:
    port = free_port()
    plant = started(start_node, linked("plant", tmp_path / "plant", 3, port, []))
    names = {f"absent-{number}" for number in range(12)}
    clients = [join(plant, client_id=name, persistent=True) for name in names]
    assert len(set(places(plant).values())) > 1  # all in one of three by chance: one in 10^5
    for client in clients:
        client.close()
    admin = ("--admin", plant.admin)
    assert "no other node that can be reached" in sterna("evacuate", "plant", *admin, status=1).stderr
    assert json.loads(plant.ask("/evacuate")[1])["evacuation"] is None

    other = start_node(linked("other", tmp_path / "other", 1, free_port(), [f"127.0.0.1:{port}"]))
    wait_until(lambda: set(other.network()["streams"].values()) == {"synced"}, "the other node hears all processes")
    wait_until(lambda: "other" in plant.network()["paths"], "and is heard")
    answer = json.loads(sterna("evacuate", "plant", "--json", "--rate", "30", *admin).stdout)
    assert answer["node"] == "plant"
    evacuation = answer["evacuation"]
    assert (evacuation["left"], evacuation["total"] >= 12, evacuation["rate"]) == (0, True, pytest.approx(30))
    # A session has left when the other node has it; the move is counted when that is in the journal.
    wait_until(lambda: json.loads(plant.ask("/evacuate")[1])["evacuation"]["moved"] >= 12, "all moves are counted")
    assert {one["client"] for one in json.loads(other.ask("/clients")[1]) if one["node"] == "other"} == names
    assert sterna("migrations", *admin).stdout.startswith("node plant: departed ")
    assert "takes clients" in sterna("evacuate", "plant", "--stop", *admin).stdout


def test_stopping_the_group_stops_every_process(start_node: StartNode, tmp_path: Path) -> None:
    node = started(start_node, toml(tmp_path / "data", 2))
    members = [process_of(node, name) for name in ("plant", "plant-2")]
    assert node.stop() == 0
    for member in members:
        assert not Path(f"/proc/{member}").exists()
    assert len(node.events("node stopped")) == 2


def test_members_of_a_killed_group_stop_by_themselves(start_node: StartNode, tmp_path: Path) -> None:
    node = started(start_node, toml(tmp_path / "data", 2))
    members = [process_of(node, name) for name in ("plant", "plant-2")]
    node.kill()
    wait_until(lambda: len(node.events("node stopped")) == 2, "both have stopped")
    wait_until(lambda: not any(Path(f"/proc/{member}").exists() for member in members), "both are gone")


def test_a_reload_reaches_every_process(start_node: StartNode, tmp_path: Path) -> None:
    node = started(start_node, toml(tmp_path / "data", 2))
    node.hang_up()
    wait_until(lambda: len(node.events("reloaded")) == 2, "both have reloaded")


def test_a_port_in_use_and_an_overlay_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = LiveNode(tmp_path / "taken", toml(tmp_path / "data", 2, f'[[listener]]\nbind = "127.0.0.1:{port}"\n'))
        node.launch()
        wait_until(lambda: not node.is_running, "it gives up")
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in node.log()
    tree = '[network]\nname = "plant"\nbind = "127.0.0.1:0"\noverlay = "spanning-tree"\n'
    node = LiveNode(tmp_path / "tree", toml(tmp_path / "data", 2, tree))
    node.launch()
    wait_until(lambda: not node.is_running, "it gives up")
    assert 'set overlay = \\"static\\"' in node.log()
