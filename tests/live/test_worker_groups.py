"""A worker whose node has several processes: not announced before it is linked, its load that of all of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sterna.adaptation.draining import DrainEvent, DrainingTuning
from sterna.adaptation.picture import WorkerNodeState
from sterna.measure.harness.ports import free_port
from sterna.runtime.adaptation.node_hosts import ProcessHost
from sterna.runtime.adaptation.node_keeper import NodeKeeper
from sterna.runtime.adaptation.worker_settings import WorkerTable

from .nodes import LiveNode

pytestmark = pytest.mark.slow

PROCESSES = 2
_GROUP = """
[node]
data = "{directory}/data"
processes = {processes}
[journal]
durability = "os"
[[listener]]
bind = "127.0.0.1:0"
[admin]
bind = "unix:{directory}/node.sock"
[network]
name = "live"
bind = "127.0.0.1:{own}"
key_file = "{directory}/key"
neighbours = ["127.0.0.1:{port}"]
"""
_CLOUD = """
[admin]
bind = "127.0.0.1:0"
[node]
name = "cloud"
data = "{directory}/cloud/data"
[network]
name = "live"
bind = "127.0.0.1:{port}"
key_file = "{directory}/key"
"""


def _linked(view: dict[str, Any]) -> bool:
    """To its sibling, and to nobody else."""
    assert view["paths"].keys() <= {"edge-2"}
    return bool(view["paths"]) and set(view["streams"].values()) == {"synced"}


async def _until_linked(keeper: NodeKeeper) -> None:
    deadline = time.monotonic() + 120
    while not await keeper._admin.is_ready() or not _linked(await keeper._admin.network()):
        assert time.monotonic() < deadline
        await keeper.look()
        assert keeper.state is WorkerNodeState.STARTING, keeper.trouble


def _check_load(host: ProcessHost) -> None:
    """Two processes that have begun, and one that has little to do but to look after them."""
    group = host.remembered.pid
    members = [int(one) for one in Path(f"/proc/{group}/task/{group}/children").read_text().split()]
    assert len(members) == host.processes() == PROCESSES
    used = {pid: _used_s(pid) for pid in (group, *members)}
    told = host.cpu_s()
    assert told is not None
    assert min(used.values()) > 0.1  # they have all imported the program
    assert told >= sum(used.values())


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _look_until(keeper: NodeKeeper, what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline, f"its node is {keeper.state}: {keeper.trouble}"
        await keeper.look()
        await asyncio.sleep(0.05)


def test_a_group_is_announced_when_it_is_linked_and_its_load_is_that_of_all_processes(tmp_path: Path) -> None:
    port = free_port()
    file, key = tmp_path / "node.toml", tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    file.write_text(_GROUP.format(directory=tmp_path, processes=PROCESSES, port=port, own=free_port()))
    worker = WorkerTable(name="edge", data=tmp_path, node_file=file, admin=f"unix:{tmp_path}/node.sock")
    cloud = LiveNode(tmp_path / "cloud", _CLOUD.format(directory=tmp_path, port=port))

    async def start_and_stop() -> None:
        keeper = NodeKeeper(worker, DrainingTuning(ready_s=300))
        host = keeper._host
        assert isinstance(host, ProcessHost)
        try:
            assert await keeper.order(DrainEvent.START_ORDERED) == ""
            await _until_linked(keeper)
            for _ in range(5):
                await keeper.look()
            assert keeper.state is WorkerNodeState.STARTING, "its processes are linked to each other alone"
            cloud.start()
            await _look_until(keeper, lambda: keeper.state is WorkerNodeState.SERVING)
            assert set((await keeper._admin.network())["paths"]) == {"edge-2", "cloud"}
            _check_load(host)
        finally:
            await keeper.end_node(60)
            if cloud.is_running:
                cloud.kill()
        assert not await host.is_alive()

    asyncio.run(start_and_stop())
