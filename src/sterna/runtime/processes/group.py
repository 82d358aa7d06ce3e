"""A process group: starts its members, starts those again that end, and passes signals on.

The group holds the ports before any member listens on them, so that a port in use is an error at once and a port the
system picked stays the same.  A member that ends is started again after a pause that grows.  If the group is killed,
its members stop as on SIGTERM.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop

from sterna.runtime.admin.backup_api import Backups
from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.site import Request, guard
from sterna.runtime.config.process_tables import ListenerTable
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import Configuration
from sterna.runtime.disk.backups import Backup
from sterna.runtime.logs import configure
from sterna.runtime.processes.backup import back_up
from sterna.runtime.processes.members import FIRST, GroupPlan, admin_socket, check_group, link_bind, name_of
from sterna.runtime.processes.pages import GROUP
from sterna.runtime.processes.relay import ask
from sterna.runtime.service_manager import ServiceManager
from sterna.vocabulary.errors import ConfigurationError, SternaError

log = logging.getLogger("sterna.processes")

AGAIN_S = 1.0
AGAIN_MAX_S = 30.0
"""Pauses before a member that ended is started again: the first, and the longest."""
STEADY_S = 60.0
"""A member that ran so long gets the first pause again."""
LOOK_S = 0.2
"""Between two looks whether the members are ready."""

_PR_SET_PDEATHSIG = 1
_READY = Request("GET", "/readyz", {})


def run_group(configuration: Configuration, words: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status.  `words` are the options that each member is started with."""
    configure(configuration.log.level, configuration.log.format)
    try:
        check_group(configuration)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(ProcessGroup(configuration, words).run())
    except SternaError as error:
        log.error("cannot run", extra={"reason": str(error)})
        return 1


def end_with_parent(parent: int) -> None:
    """Have this process stop, as on SIGTERM, when the one that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        raise SystemExit(0)


class ProcessGroup:
    def __init__(self, configuration: Configuration, words: Sequence[str]) -> None:
        self._configuration = configuration
        self._words = tuple(words)
        self._count = configuration.node.processes
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._status = 0
        self._admin = AdminPort(self, guard(configuration.admin), site=GROUP)
        self._service_manager = ServiceManager()
        self.backups = Backups(self._back_up if configuration.journal.durability != "memory" else None)

    def sockets(self) -> list[Path]:
        return [admin_socket(self._directory, member) for member in self._members]

    def names(self) -> list[str]:
        return [name_of(self._configuration.node.name, member) for member in self._members]

    async def _back_up(self, name: str, asked: Request) -> Backup:
        return await back_up(self.sockets(), self._configuration.node.backups_directory, name, asked)

    @property
    def _members(self) -> range:
        return range(FIRST, FIRST + self._count)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        held = [_held(listener) for listener in self._configuration.listeners]
        wanted = link_bind(self._configuration)
        link = None if wanted.port else _bound(wanted.host, 0, reuse=socket.SO_REUSEADDR)
        self._directory = Path(tempfile.mkdtemp(prefix="sterna-"))  # for this user alone
        try:
            plan = GroupPlan(os.getpid(), [_port(one) for one in held], _port(link))
            (self._directory / "plan").write_bytes(msgspec.json.encode(plan))
            (self._directory / "key").write_text(secrets.token_hex(32))
            await self._serve()
            return self._status
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            for one in (*held, link):
                if one is not None:
                    one.close()

    async def _serve(self) -> None:
        if self._configuration.admin.bind is not None:
            address = await self._admin.start(self._configuration.admin.bind)
            log.info("admin port", extra={"address": f"http://{address}"})
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(self._keep(member))
            looking = tasks.create_task(self._look())
            await self._stopping.wait()
            self._service_manager.stopping()
            looking.cancel()
            self._send(signal.SIGTERM)
        await self._admin.stop()
        self._service_manager.close()

    async def _keep(self, member: int) -> None:
        """Have this member run until the group stops."""
        loop, pause = asyncio.get_running_loop(), AGAIN_S
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._run(member)
            if self._stopping.is_set():
                return
            if member not in self._ready:  # it has never served, and would not the next time
                self._status = status or 1
                self._stopping.set()
                return
            pause = AGAIN_S if loop.time() - began > STEADY_S else min(pause * 2, AGAIN_MAX_S)
            name = name_of(self._configuration.node.name, member)
            log.error("a process ended and is started again", extra={"node": name, "status": status, "pause_s": pause})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run(self, member: int) -> int:
        command = (sys.executable, "-m", "sterna", "node", *self._words)
        which = ("--member", str(member), "--group", str(self._directory))
        admin_socket(self._directory, member).unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(*command, *which, start_new_session=True)
        self._processes[member] = process
        if self._stopping.is_set():
            process.terminate()
        status = await process.wait()
        del self._processes[member]
        return status

    async def _look(self) -> None:
        """Which members serve; say so when all do for the first time."""
        while len(self._ready) < self._count:
            for member, path in zip(self._members, self.sockets(), strict=True):
                if member not in self._ready and path.exists() and (await ask(path, _READY)).status == 200:
                    self._ready.add(member)
            await asyncio.sleep(LOOK_S)
        log.info("all processes serve", extra={"processes": self._count})
        self._service_manager.ready()

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _held(listener: ListenerTable) -> socket.socket | None:
    """A socket that keeps a listener's port for the members; it does not listen itself."""
    bind = listener.bind
    return None if bind.path else _bound(bind.host, bind.port, reuse=socket.SO_REUSEPORT)


def _bound(host: str, port: int, *, reuse: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        held = socket.socket(family, kind)
        try:
            held.setsockopt(socket.SOL_SOCKET, reuse, 1)
            held.bind(address)
        except OSError:
            held.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot listen on {Bind(host, port)}: {reason}; set another address") from error
    return held


def _port(held: socket.socket | None) -> int:
    return 0 if held is None else int(held.getsockname()[1])
