"""How a worker runs its node: programs of the operator's that fail, hang and lie; processes that are adopted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sterna.adaptation.draining import DrainEvent, DrainingTuning
from sterna.adaptation.picture import WorkerNodeState
from sterna.runtime.adaptation.node_hosts import CommandHost, HostFailure, ProcessHost, Remembered
from sterna.runtime.adaptation.node_keeper import NodeKeeper, is_joined
from sterna.runtime.adaptation.worker_settings import WorkerTable

TRUE, FALSE = ("/bin/true",), ("/bin/false",)
IMPATIENT = DrainingTuning(ready_s=1.0, stop_s=1.0, bar_s=1.0)


def host(start: tuple[str, ...] = TRUE, stop: tuple[str, ...] = TRUE, status: tuple[str, ...] = TRUE) -> CommandHost:
    return CommandHost(start, stop, status, 0.5)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/bin/sh", "-c", "echo no room >&2; exit 3"), "the start command ended with 3: no room"),
        (("/bin/sleep", "60"), "the start command took longer than 0.5 s"),
        (("/no/such/program",), "the start command cannot be run"),
        (("/bin/sh", "-c", "yes | head -c 100000; exit 1"), "the start command ended with 1: "),
    ],
)
def test_a_command_that_fails_or_hangs_is_told_of(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(HostFailure, match=said):
        asyncio.run(host(start=command).start())


def test_a_status_that_fails_hangs_or_is_missing_means_that_the_node_does_not_run() -> None:
    for status, runs in ((TRUE, True), (FALSE, False), (("/bin/sleep", "60"), False), (("/no/program",), False)):
        assert asyncio.run(host(status=status).is_alive()) is runs


class Watched(NodeKeeper):
    """A keeper that looks until something has happened."""

    async def until(self, state: WorkerNodeState) -> None:
        deadline = time.monotonic() + 60
        while self.state is not state:
            assert time.monotonic() < deadline, f"waited in vain for {state}; it is {self.state}"
            await self.look()
            await asyncio.sleep(0.05)


def keeper(directory: Path, start: tuple[str, ...], status: tuple[str, ...], *, fixed: bool = False) -> Watched:
    directory.mkdir(exist_ok=True)
    table = WorkerTable(
        name="w",
        data=directory,
        host="command",
        start=start,
        stop=TRUE,
        status=status,
        command_s=0.5,
        admin="127.0.0.1:1",
        clients="127.0.0.1:1883",
        fixed=fixed,
    )
    return Watched(table, IMPATIENT)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(_awaited(work))


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def test_a_node_that_does_not_start_is_left_out_with_a_growing_pause(tmp_path: Path) -> None:
    one = keeper(tmp_path / "w", ("/bin/sh", "-c", "echo no room; exit 1"), FALSE)

    async def work() -> None:
        pauses = []
        for _ in range(2):
            assert await one.order(DrainEvent.START_ORDERED) == ""
            await one.until(WorkerNodeState.OFF)
            assert "no room" in one.trouble
            pauses.append(one.life.barred_until - time.monotonic())
            assert "barred for" in await one.order(DrainEvent.START_ORDERED)
            one.life.barred_until = 0.0
        assert pauses[1] > pauses[0] + 0.5

    run(work)


def test_a_status_that_lies_does_not_make_a_node(tmp_path: Path) -> None:
    """It says that the node runs; nobody answers at its admin port, and it does not end either."""
    one = keeper(tmp_path / "w", TRUE, TRUE)

    async def work() -> None:
        assert await one.order(DrainEvent.START_ORDERED) == ""
        await one.until(WorkerNodeState.STUCK)
        assert one.trouble != ""
        assert await one.order(DrainEvent.START_ORDERED) != ""

    run(work)


def test_a_start_that_lies_does_not_make_a_node(tmp_path: Path) -> None:
    one = keeper(tmp_path / "w", TRUE, FALSE)

    async def work() -> None:
        assert await one.order(DrainEvent.START_ORDERED) == ""
        await one.until(WorkerNodeState.OFF)
        assert one.life.failures == 1

    run(work)


def test_a_fixed_node_is_not_stopped_by_order(tmp_path: Path) -> None:
    one = keeper(tmp_path / "w", TRUE, TRUE, fixed=True)
    one.life.state = WorkerNodeState.SERVING
    assert asyncio.run(one.order(DrainEvent.STOP_ORDERED)) == "its node is fixed"


def test_a_worker_remembers_and_begins_anew_if_its_memory_is_damaged(tmp_path: Path) -> None:
    one = keeper(tmp_path / "w", TRUE, TRUE)
    one.life.state = WorkerNodeState.SERVING
    one.life.owed = {"x"}
    one.save()
    again = keeper(tmp_path / "w", TRUE, TRUE)
    assert (again.state, again.life.owed) == (WorkerNodeState.SERVING, {"x"})
    (tmp_path / "w" / "state.json").write_bytes(b"\xff{")
    assert keeper(tmp_path / "w", TRUE, TRUE).state is WorkerNodeState.OFF


def test_a_process_is_known_by_its_start_not_by_its_number(tmp_path: Path) -> None:
    """The number may be another process's by now."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        remembered = Remembered(other.pid, 1)
        stranger = ProcessHost(tmp_path / "node.toml", tmp_path / "log", {}, remembered)
        assert not asyncio.run(stranger.is_alive())
        asyncio.run(stranger.stop())
        assert other.poll() is None
        fields = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
        known = ProcessHost(tmp_path / "node.toml", tmp_path / "log", {}, Remembered(other.pid, int(fields[19])))
        assert asyncio.run(known.is_alive())
        assert (known.cpu_s() or 0.0) >= 0.0
        os.kill(other.pid, 9)
        other.wait()
        assert not asyncio.run(known.is_alive())


@pytest.mark.parametrize("back", ["serving", "starting", "stuck"])
def test_a_node_that_owes_something_is_started_when_the_other_is_back_and_not_for_strangers(
    tmp_path: Path, back: str
) -> None:
    """Without what it is owed that one may not get as far as to serve."""
    one = keeper(tmp_path / "w", TRUE, FALSE)
    one.life.owed = {"away"}

    async def work() -> None:
        states = []
        for name, state in (("stranger", "serving"), ("away", "off"), ("away", back)):
            one.heard_of(name, state)
            await one.look()
            states.append(one.state)
        assert states == [WorkerNodeState.OFF, WorkerNodeState.OFF, WorkerNodeState.DRAINING]

    run(work)
    assert one._back() == {"away"}
    one._reads_at["away"] -= 60
    assert one._back() == frozenset()


@pytest.mark.parametrize(
    ("streams", "siblings", "joined"),
    [
        ({"cloud": "synced"}, {}, True),
        ({"cloud": "fetching"}, {}, False),
        ({}, {}, False),
        ({"w-2": "synced"}, {"w-2": {"w": "synced"}}, False),
        ({"w-2": "synced", "cloud": "synced"}, {"w-2": {"w": "synced"}}, False),
        ({"w-2": "synced", "cloud": "synced"}, {"w-2": {"w": "synced", "cloud": "fetching"}}, False),
        ({"w-2": "synced", "cloud": "synced"}, {"w-2": {"w": "synced", "cloud": "synced"}}, True),
        ({"w-2": "synced"}, {}, True),
    ],
)
def test_a_node_is_joined_when_all_its_processes_hear_nodes_beyond_themselves(
    streams: dict[str, str], siblings: dict[str, dict[str, str]], joined: bool
) -> None:
    """The last: a node of another worker that only bears such a name."""
    view = {"paths": dict.fromkeys(streams, "link"), "streams": streams, "siblings": siblings}
    assert is_joined(view) is joined
