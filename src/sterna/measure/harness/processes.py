"""Processes of an experiment: started with a log of their own, waited for, killed, and gone with this process."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import tie_to_parent

STOP_S = 10.0
LOG_TAIL_BYTES = 2000


class Process:
    """One broker.  `start` may be called again after `kill`."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self._command = command
        self.log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: tie_to_parent(None),
                start_new_session=True,
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

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.terminate()
                self._process.wait(STOP_S)
        finally:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        if not self.is_running:
            raise MeasurementError(f"{self.name} is not running; its last words: {self.last_words()}")

    def last_words(self) -> str:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:] if self.log.exists() else b""
        return tail.decode(errors="replace").strip() or "(none)"

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of this name in a log of JSON lines."""
        whole = self.log.read_bytes().rpartition(b"\n")[0]
        found = (json.loads(line) for line in whole.splitlines() if line.startswith(b"{"))
        return [event for event in found if event.get("event") == name]


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
