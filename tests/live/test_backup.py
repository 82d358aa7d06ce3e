"""Backups of a node under load: everything acknowledged before the order is in them, and a node starts from them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .clients import Paho
from .conftest import Join
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

StartNode = Callable[[str], LiveNode]


def sterna(*words: str, status: int = 0) -> str:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=120)
    assert run.returncode == status, run.stderr
    return run.stdout if status == 0 else run.stderr


def has_all(reader: Paho) -> bool:
    return reader.payloads()[-1] == b"end"


def config(data: Path, more: str = "") -> str:
    return f'[node]\nname = "saved"\ndata = "{data}"\n[admin]\nbind = "127.0.0.1:0"\n{more}'


def test_a_node_starts_from_a_backup_made_under_load(start_node: StartNode, join: Join, tmp_path: Path) -> None:
    small = "[journal]\nsegment_bytes = 65536\n"
    node = start_node(config(tmp_path / "data", small))
    absent = join(node, client_id="reader", persistent=True)
    absent.subscribe("t/load", 1)
    absent.subscribe("t/end", 1)
    absent.close()
    publisher = join(node)
    publisher.publish("t/kept", b"21", 1, retain=True)
    acknowledged, done = [0], threading.Event()

    def load() -> None:
        while not done.is_set():
            publisher.publish("t/load", str(acknowledged[0]).encode() + b" " * 400, 1)
            acknowledged[0] += 1

    loader = threading.Thread(target=load)
    loader.start()
    try:
        paths = []
        for number in range(3):
            before = acknowledged[0]
            paths.append((before, Path(sterna("backup", f"b{number}", "--admin", node.admin).strip())))
    finally:
        done.set()
        loader.join()
    node.kill()
    for number, (before, path) in enumerate(paths):
        sterna("restore", str(path), str(tmp_path / f"restored-{number}"))
        copy = start_node(config(tmp_path / f"restored-{number}", small))
        reader = join(copy, client_id="reader", persistent=True)
        other = join(copy)
        other.subscribe("t/kept", 1)
        (kept,) = other.receive()
        assert (kept.payload, kept.retain) == (b"21", True)
        join(copy).publish("t/end", b"end", 1)
        wait_until(partial(has_all, reader), "all that waited has come")
        numbers = [int(payload) for payload in reader.payloads()[:-1]]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= before
        copy.kill()


def test_orders_that_cannot_be_are_refused(start_node: StartNode, tmp_path: Path) -> None:
    node = start_node(config(tmp_path / "data"))
    sterna("backup", "one", "--admin", node.admin)
    assert "exists already" in sterna("backup", "one", "--admin", node.admin, status=1)
    assert "no name for a backup" in sterna("backup", "../up", "--admin", node.admin, status=1)
    backup = tmp_path / "data" / "backups" / "one"
    assert sorted(path.name for path in backup.iterdir()) == ["journal", "sessions.sqlite"]
    assert not (backup / "journal" / "identity").exists()
    assert "is not empty" in sterna("restore", str(backup), str(tmp_path / "data"), status=1)
    assert "is no backup" in sterna("restore", str(tmp_path), str(tmp_path / "new"), status=1)
    shutil.rmtree(backup)
    memory = start_node(config(tmp_path / "memory", '[journal]\ndurability = "memory"\n'))
    assert "nothing to back up" in sterna("backup", "--admin", memory.admin, status=1)
    assert json.loads(memory.ask("/backup")[1]) == {"state": "none"}
