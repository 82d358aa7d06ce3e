"""How a worker runs its node: as a process of this machine, or by commands of the operator's.

A host starts the node, asks it to end, and says whether it runs.  It never kills it.  A node outlives its worker: what
the next worker needs to know is in `Remembered`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import msgspec

from sterna.vocabulary.errors import SternaError

OUTPUT_SHOWN = 300
"""Characters of a failed command's output that the worker tells."""
STATUS_S = 1.0
"""How long the answer of a status command is taken for true."""


class HostFailure(SternaError):
    """The node could not be started or asked to end, and why."""


class Remembered(msgspec.Struct):
    """A process that was started: its number alone could be another one's by now."""

    pid: int = 0
    started_at: int = 0
    """In ticks after the machine's start."""


class NodeHost(Protocol):
    async def start(self) -> None:
        """HostFailure if it cannot be.  That it runs is for `is_alive` to say."""

    async def stop(self) -> None:
        """Ask it to end."""

    async def is_alive(self) -> bool: ...

    def cpu_s(self) -> float | None:
        """Processor time it has used so far; None if that cannot be seen."""

    def processes(self) -> int:
        """Processes that share its work."""


class ProcessHost:
    def __init__(self, node_file: Path, log_file: Path, environment: dict[str, str], remembered: Remembered) -> None:
        self._node_file = node_file
        self._log_file = log_file
        self._environment = environment
        self.remembered = remembered
        self._child: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        if await self.is_alive():
            return
        try:
            self._child = self._launch()
        except OSError as error:
            raise HostFailure(f"the node could not be started: {error}") from None
        self.remembered.pid = self._child.pid
        self.remembered.started_at = _started_at(self._child.pid) or 0

    def _launch(self) -> subprocess.Popen[bytes]:
        """In a session of its own: the node is to outlive this process, whatever ends it.  Variables that set up this
        process are none of the node's."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sterna", "node", "--config", str(self._node_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **self._environment},
                start_new_session=True,
            )

    async def stop(self) -> None:
        if await self.is_alive():
            os.kill(self.remembered.pid, signal.SIGTERM)

    async def is_alive(self) -> bool:
        if self._child is not None:
            self._child.poll()  # or it would stay a zombie
        remembered = self.remembered
        return bool(remembered.pid) and _started_at(remembered.pid) == remembered.started_at

    def cpu_s(self) -> float | None:
        """With that of its members, of which those that ended count as its children."""
        fields = _stat(self.remembered.pid)
        if fields is None:
            return None
        ended = fields[13:15] if self._members() else []
        members = [one[11:13] for pid in self._members() if (one := _stat(pid)) is not None]
        ticks = sum(int(one) for pair in (fields[11:13], ended, *members) for one in pair)
        return ticks / os.sysconf("SC_CLK_TCK")

    def processes(self) -> int:
        return max(1, len(self._members()))

    def _members(self) -> list[int]:
        """Processes of a group; workers of functions are children as well, and no members."""
        return [pid for pid in _children(self.remembered.pid) if "--member" in _words(pid)]


class CommandHost:
    """The commands are the operator's, and may fail, hang or lie: what they say is held against the admin port."""

    def __init__(
        self, start: tuple[str, ...], stop: tuple[str, ...], status: tuple[str, ...], patience_s: float
    ) -> None:
        self._start = start
        self._stop = stop
        self._status = status
        self._patience_s = patience_s
        self._looked_at = -STATUS_S
        self._was_alive = False

    async def start(self) -> None:
        self._looked_at = -STATUS_S
        await self._run(self._start, "start")

    async def stop(self) -> None:
        self._looked_at = -STATUS_S
        await self._run(self._stop, "stop")

    async def is_alive(self) -> bool:
        if time.monotonic() - self._looked_at >= STATUS_S:
            try:
                await self._run(self._status, "status")
                self._was_alive = True
            except HostFailure:
                self._was_alive = False
            self._looked_at = time.monotonic()
        return self._was_alive

    def cpu_s(self) -> float | None:
        return None

    def processes(self) -> int:
        return 1

    async def _run(self, words: tuple[str, ...], what: str) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise HostFailure(f"the {what} command cannot be run: {error}") from None
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self._patience_s)
        except TimeoutError:
            process.kill()  # the command, not the node
            await process.wait()
            raise HostFailure(f"the {what} command took longer than {self._patience_s:g} s") from None
        if process.returncode:
            said = output.decode("utf-8", "replace").strip()[-OUTPUT_SHOWN:]
            raise HostFailure(f"the {what} command ended with {process.returncode}: {said}")


def _started_at(pid: int) -> int | None:
    """None if there is no such process, or only what is left of one."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: the name before may hold anything."""
    if not pid:
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] if pid else []
    except OSError:
        return []


def _words(pid: int) -> list[str]:
    """Of its command line; none of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


HOSTS = ("process", "command")
