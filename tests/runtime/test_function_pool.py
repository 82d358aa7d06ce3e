"""Data processing functions in real processes: slow, broken, deadly and greedy ones, and what comes of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from sterna.operators.functions import Functions
from sterna.runtime.functions import pool as pools
from sterna.runtime.functions.pool import START_S_MAX, FunctionPool, functions_of
from sterna.runtime.functions.settings import FunctionTable, OwnFunction

T = TypeVar("T")

MODULE = """
import ctypes, os, sys, time

def length(payload):
    print("to standard output"); sys.stdout.flush(); os.write(1, b"there too")
    return len(payload)

def process(payload):
    return os.getpid()

def fails(payload):
    raise ValueError("no such thing")

def text(payload):
    return "many"

def nan(payload):
    return float("nan")

def sleeps(payload):
    time.sleep(60)

def exits(payload):
    os._exit(3)

def leaves(payload):
    raise SystemExit(1)

def crashes(payload):
    ctypes.string_at(0)

def greedy(payload):
    return len(bytearray(1 << 40))

class Model:
    @staticmethod
    def people(payload):
        return True
"""


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def table(directory: Path, *names: str, **more: object) -> FunctionTable:
    (directory / "plant_vision.py").write_text(MODULE)
    own = tuple(OwnFunction(name.upper().split(".")[-1], f"plant_vision:{name}", name) for name in names)
    return FunctionTable(own=own, directory=directory, **{"time_out_s": 100.0, **more})  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    settings: FunctionTable, within_s: float = START_S_MAX
) -> AsyncIterator[tuple[FunctionPool, Functions]]:
    """On a busy machine a process takes longer to start than a node waits for it."""
    functions = functions_of(settings)
    pool = FunctionPool(settings, functions, lambda piece: piece())
    await pool.start(within_s)
    try:
        yield pool, functions
    finally:
        await pool.stop()


async def asked(pool: FunctionPool, name: str, payload: bytes = b"") -> tuple[float | None, str]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[float | None, str]] = loop.create_future()
    assert pool.submit(name, payload, lambda value, reason: answer.set_result((value, reason)))
    assert not answer.done(), "told at once"
    return await asyncio.wait_for(answer, 120.0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_numbers_come_back_whatever_the_function_prints(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(table(tmp_path, "length", "nan", "Model.people")) as (pool, _):
            assert await asked(pool, "LENGTH", b"x" * 1_000_000) == (1_000_000.0, "")
            assert await asked(pool, "LENGTH", b"") == (0.0, "")
            assert await asked(pool, "PEOPLE", b"") == (1.0, "")
            value, reason = await asked(pool, "NAN")
            assert value != value  # for the engine to refuse
            assert not reason

    _run(run())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fails", "function-failed"),
        ("text", "function-failed"),
        ("greedy", "function-failed"),
        ("exits", "function-died"),
        ("leaves", "function-died"),
        ("crashes", "function-died"),
        pytest.param("sleeps", "function-timed-out", marks=pytest.mark.slow),
    ],
)
def test_what_gives_no_number_is_told_why_and_hurts_nobody_else(tmp_path: Path, name: str, reason: str) -> None:
    async def run() -> None:
        limit_s = 4.0 if name == "sleeps" else 100.0
        settings = table(tmp_path, name, "length", time_out_s=limit_s, memory_bytes=1 << 30)
        async with running(settings) as (pool, _):
            for _ in range(2):
                assert await asked(pool, name.upper()) == (None, reason)
                while (answer := await asked(pool, "LENGTH", b"abc")) == (None, "function-timed-out"):
                    assert name == "sleeps"  # and the machine is so busy that nothing is done in four seconds
                assert answer == (3.0, "")

    _run(run())


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(table(tmp_path, "process")) as (pool, _):
            first, _ = await asked(pool, "PROCESS")
            assert first is not None
            os.kill(int(first), signal.SIGKILL)
            await until(lambda: not pool._workers)
            second, _ = await asked(pool, "PROCESS")
            assert second not in (None, first)

    _run(run())


def test_there_is_room_for_so_many_and_no_more_and_processes_share_the_work(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(table(tmp_path, "process", workers=2)) as (pool, _):
            answers: list[float | None] = []
            accepted = [pool.submit("PROCESS", b"", lambda value, _: answers.append(value)) for _ in range(6)]
            assert accepted == [True] * 4 + [False] * 2
            await until(lambda: len(answers) == 4)
            assert 1 <= len(set(answers)) <= 2
            assert pool.submit("PROCESS", b"", lambda value, _: answers.append(value))

    _run(run())


def test_what_cannot_be_loaded_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        settings = table(tmp_path, "length", "missing")
        elsewhere = OwnFunction("ELSEWHERE", "no_such_module:function", "nothing")
        settings = FunctionTable(own=(*settings.own, elsewhere), directory=tmp_path)
        async with running(settings) as (pool, functions):
            assert functions.names() == ["COUNTBLOBS", "COUNTPEOPLE", "LENGTH"]
            assert await asked(pool, "LENGTH", b"ab") == (2.0, "")

    _run(run())
    told = [record.__dict__["function"] for record in caplog.records if record.msg == "a function cannot be loaded"]
    assert sorted(told) == ["ELSEWHERE", "MISSING"]


def test_a_module_that_kills_whoever_imports_it_ends_in_reasons_not_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(1)\n")
    monkeypatch.setattr(pools, "START_AGAIN_S", 0.01)
    settings = FunctionTable(own=(OwnFunction("X", "deadly:x", "x"),), directory=tmp_path)

    async def run() -> None:
        async with running(settings) as (pool, _):
            assert await asked(pool, "X") == (None, "function-died")
            assert await asked(pool, "X") == (None, "function-died")

    _run(run())


def test_a_module_that_takes_forever_to_import_does_not_keep_the_node_from_starting(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(3600)\n")
    settings = FunctionTable(own=(OwnFunction("X", "endless:x", "x"),), directory=tmp_path)

    async def run() -> None:
        async with asyncio.timeout(120.0), running(settings, within_s=0.1) as (pool, _):
            assert pool.submit("X", b"", lambda value, reason: None)

    _run(run())


def test_processes_end_with_the_pool(tmp_path: Path) -> None:
    async def run() -> int:
        async with running(table(tmp_path, "process")) as (pool, _):
            number, _ = await asked(pool, "PROCESS")
            assert number is not None
            return int(number)

    worker = Path(f"/proc/{_run(run())}")
    _run(until(lambda: not worker.exists()))


def test_bundled_functions_start_no_process_until_one_is_needed() -> None:
    astronaut = (Path(str(files("skimage"))) / "data" / "astronaut.png").read_bytes()

    async def run() -> None:
        async with running(FunctionTable(time_out_s=100.0)) as (pool, functions):
            assert functions.names() == ["COUNTBLOBS", "COUNTPEOPLE"]
            assert not pool._workers
            assert await asked(pool, "COUNTBLOBS", b"no image") == (None, "function-failed")
            assert await asked(pool, "COUNTPEOPLE", astronaut) == (1.0, "")
            assert len(pool._workers) == 1

    _run(run())


def test_a_bundled_function_is_there_only_with_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "find_spec", lambda package: None if package == "cv2" else object())
    functions = functions_of(FunctionTable())
    assert functions.names() == ["COUNTBLOBS"]
    assert "install sterna[images] at the node, or plug one in" in str(functions.refusal("COUNTPEOPLE"))
