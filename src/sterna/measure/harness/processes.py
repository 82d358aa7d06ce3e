"""Processes that are measured or that measure: started, waited for, killed, and gone with this process.

A `Process` is a broker or a gateway and writes a log.  A `WorkerProcess` is a Python module that takes one request as
JSON on stdin and answers it with JSON on stdout; the module calls `serve`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter

STOP_S = 10.0
LOG_TAIL_BYTES = 2000
PR_SET_PDEATHSIG = 1
PLACE = "STERNA_FOREIGN_BROKERS"
"""Names a directory with brokers of other makes.  No process is given it: a node would take it for a setting."""
_libc = ctypes.CDLL(None)
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


def tie_to_parent(core: int | None = None) -> None:
    """In a new process, before its program: stay on the core, and die when the parent does."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    meter.pin(0, core)


class Process:
    """One broker.  `start` may be called again after `kill`."""

    def __init__(self, name: str, command: list[str], directory: Path, core: int | None = None) -> None:
        self.name = name
        self._command = command
        self._core = core
        self.log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: tie_to_parent(self._core),
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != PLACE},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no farewell."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self, within_s: float = STOP_S) -> None:
        if self._process is None:
            return
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.terminate()
                self._process.wait(within_s)
        finally:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        if not self.is_running:
            raise MeasurementError(f"{self.name} is not running; its last words: {self.last_words()}")

    def last_words(self) -> str:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:] if self.log.exists() else b""
        return tail.decode(errors="replace").strip() or "(none)"


class WorkerProcess:
    """One Python module at work on one request."""

    def __init__(self, module: str, request: object, core: int | None = None) -> None:
        with tempfile.TemporaryFile() as asked:
            asked.write(msgspec.json.encode(request))
            asked.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=lambda: tie_to_parent(core),
            )

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def result(self, answer: type[_Answer], name: str, within_s: float) -> _Answer:
        """Wait for its end."""
        try:
            told, complaint = self._process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"{name} did not finish in time") from None
        if self._process.returncode:
            raise MeasurementError(f"{name}: {complaint.decode(errors='replace').strip()}")
        return msgspec.json.decode(told, type=answer)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve(request: type[_Request], work: Callable[[_Request], object]) -> int:
    """The main function of a `WorkerProcess`'s module; its exit status."""
    try:
        answer = work(msgspec.json.decode(sys.stdin.buffer.read(), type=request))
    except (MeasurementError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    return 0


def wait_until(holds: Callable[[], bool], what: str, within_s: float, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise MeasurementError(f"waited {within_s:g} s in vain until {what}")
        time.sleep(every_s)


def answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def program(name: str, advice: str) -> str:
    """Where a program is that Debian keeps out of the way of users."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise MeasurementError(f"{name} is not installed; {advice}")
    return found
