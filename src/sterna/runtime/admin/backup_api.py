"""Backups by order, one at a time, made in threads while the node serves.

A node of several processes is backed up by the group's process.  It has each process copy its own data, step by step,
by the page `/backup/part` (`processes/backup.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from sterna.runtime.admin.site import Answer, Request, as_json, text
from sterna.runtime.disk.backups import Backup, CopiedData, DataCopy, check_name, making_of
from sterna.vocabulary.errors import ConfigurationError, SternaError

log = logging.getLogger(__name__)

PART_PAGE = "/backup/part"


class Backups:
    def __init__(self, make: Callable[[str, Request], Awaitable[Backup]] | None) -> None:
        """`make` makes the backup of that name for a client of the admin port; None if the node keeps nothing on
        disk."""
        self._make = make
        self._state: dict[str, Any] = {"state": "none"}
        #: Referred to here, or the loop might lose it.
        self._task: asyncio.Task[None] | None = None

    def state(self) -> dict[str, Any]:
        return self._state

    def begin(self, name: str, asked: Request) -> dict[str, Any]:
        """May raise ConfigurationError."""
        if self._make is None:
            raise ConfigurationError('nothing is on disk with durability = "memory", so there is nothing to back up')
        if self._state["state"] == "running":
            raise ConfigurationError(f"backup {self._state['name']} is being made; wait for its end")
        self._state = {"state": "running", "name": name}
        self._task = asyncio.get_running_loop().create_task(self._run(self._make(name, asked), name))
        return self._state

    async def _run(self, making: Awaitable[Backup], name: str) -> None:
        try:
            made = await making
        except (SternaError, OSError) as error:
            self._state = {"state": "failed", "name": name, "reason": str(error)}
            log.error("backup failed", extra={"backup": name, "reason": str(error)})
        else:
            self._state = {"state": "done", "name": name, **made._asdict()}
            log.info("backup made", extra=made._asdict())


class PartState(msgspec.Struct, frozen=True):
    """The answer of `/backup/part`."""

    name: str = ""
    state: Literal["none", "busy", "open", "copied", "failed"] = "none"
    reason: str = ""
    came_or_went: int = 0
    """How many sessions, by now, have come to this process whole, or are here no more."""
    segments: int = 0
    bytes: int = 0


class PartOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /backup/part."""

    name: str
    part: str
    """The directory in the backup that is being made; empty: that one itself."""
    step: Literal["open", "cut", "copy", "drop"]


class PartOfBackup:
    """This process' data, for a backup that the group's process makes."""

    def __init__(
        self, directory: Path, copy_to: Callable[[Path], DataCopy] | None, came_or_went: Callable[[], int]
    ) -> None:
        """`copy_to` begins a copy of the data in that directory; None if nothing is on disk."""
        self._directory = directory
        self._copy_to = copy_to
        self._came_or_went = came_or_went
        self._copy: DataCopy | None = None
        self._state = PartState()
        self._task: asyncio.Task[None] | None = None

    def state(self) -> PartState:
        return msgspec.structs.replace(self._state, came_or_went=self._came_or_went())

    def take(self, order: PartOrder) -> PartState:
        """May raise ConfigurationError, JournalError or OSError."""
        if self._state.state == "busy":
            raise ConfigurationError(f"backup {self._state.name} is being made; wait for its end")
        if order.step == "open":
            self._drop()
            self._begin(order.name, self._open, self._new_copy(order))
        elif order.step == "drop":
            self._drop()
        elif self._copy is None or self._state.state != "open" or self._state.name != order.name:
            raise ConfigurationError(f"backup {order.name} was not begun here: this process was started meanwhile")
        elif order.step == "cut":
            self._copy.cut()
        else:
            self._begin(order.name, self._finish, self._copy)
        return self.state()

    def _new_copy(self, order: PartOrder) -> DataCopy:
        check_name(order.name)
        if order.part:
            check_name(order.part)
        if self._copy_to is None:
            raise ConfigurationError("nothing is on disk here")
        making = making_of(self._directory, order.name)
        if not making.is_dir():
            raise ConfigurationError(f"{making} is missing: this is a step of backups of several processes")
        return self._copy_to(making / order.part)

    def _begin(self, name: str, step: Callable[[DataCopy], PartState], copy: DataCopy) -> None:
        self._copy = copy
        self._state = PartState(name, "busy")
        self._task = asyncio.get_running_loop().create_task(self._run(name, step, copy))

    async def _run(self, name: str, step: Callable[[DataCopy], PartState], copy: DataCopy) -> None:
        try:
            done = await asyncio.get_running_loop().run_in_executor(None, step, copy)
        except (SternaError, OSError) as error:
            self._drop()
            self._state = PartState(name, "failed", str(error))
        else:
            self._state = msgspec.structs.replace(done, name=name)

    @staticmethod
    def _open(copy: DataCopy) -> PartState:
        copy.open()
        return PartState(state="open")

    @staticmethod
    def _finish(copy: DataCopy) -> PartState:
        with copy:
            done: CopiedData = copy.copy()
        return PartState(state="copied", segments=done.segments, bytes=done.bytes)

    def _drop(self) -> None:
        if self._copy is not None:
            self._copy.close()
        self._copy, self._state = None, PartState()


class BackedUpNode(Protocol):
    """A node of one process or several, as the pages of backups see it."""

    @property
    def backups(self) -> Backups: ...


class BackedUpProcess(Protocol):
    @property
    def part_of_backup(self) -> PartOfBackup: ...


class BackupOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /backup."""

    name: str


def backup_state(_asked: Request, node: BackedUpNode) -> Answer:
    return as_json(node.backups.state())


def make_backup(asked: Request, node: BackedUpNode) -> Answer:
    try:
        return as_json(node.backups.begin(msgspec.json.decode(asked.body, type=BackupOrder).name, asked))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f"{error}; / says what to send\n")
    except ConfigurationError as error:
        return text(409, f"{error}\n")


def part_state(_asked: Request, process: BackedUpProcess) -> Answer:
    return as_json(process.part_of_backup.state())


def take_step(asked: Request, process: BackedUpProcess) -> Answer:
    try:
        return as_json(process.part_of_backup.take(msgspec.json.decode(asked.body, type=PartOrder)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f"{error}\n")
    except (SternaError, OSError) as error:
        return text(409, f"{error}\n")
