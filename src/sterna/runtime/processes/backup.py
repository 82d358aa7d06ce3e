"""A backup of a node of several processes: one directory, with a copy of the data of each process.

The copies are cut one shortly after the other.  A session that went from one process to another between the two cuts
could be in neither copy, or in both, so the cuts are made again until no session has come or gone meanwhile.  If one is
just about to go, its process has noted that, and asks the other one when the backup is started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from sterna.runtime.admin.backup_api import PART_PAGE, PartOrder, PartState
from sterna.runtime.admin.site import Request
from sterna.runtime.disk.backups import Backup, BackupInTheMaking, CopiedData
from sterna.runtime.processes.members import part_of
from sterna.runtime.processes.relay import ask
from sterna.vocabulary.errors import ConfigurationError, JournalError

LOOK_S = 0.1
"""Between two questions how far a process is."""
CUTS_MAX = 200


async def back_up(sockets: Sequence[Path], directory: Path, name: str, asked: Request) -> Backup:
    """Of the members at these sockets, on behalf of the client that asked.  May raise ConfigurationError, JournalError
    or OSError; then nothing is left behind."""
    making = BackupInTheMaking(directory, name)
    try:
        members = [CopyingProcess(number, path, name, asked) for number, path in enumerate(sockets, 1)]
        try:
            await _all(members, "open")
            await cut_together(members)
            await _all(members, "copy")
            return making.finish([CopiedData(one.state.segments, one.state.bytes) for one in members])
        except BaseException:
            with suppress(JournalError):
                await asyncio.gather(*(one.order("drop") for one in members))
            raise
    except BaseException:
        making.abandon()
        raise


async def _all(members: Sequence[CopyingProcess], step: Literal["open", "copy"]) -> None:
    outcomes = await asyncio.gather(*(one.take(step) for one in members), return_exceptions=True)
    for failure in filter(None, outcomes):  # when none of them is at work any more
        raise failure


async def cut_together(members: Sequence[CopyingProcess]) -> None:
    """May raise ConfigurationError or JournalError."""
    await asyncio.gather(*(one.look() for one in members))
    for _ in range(CUTS_MAX):
        before = [one.state.came_or_went for one in members]
        await asyncio.gather(*(one.order("cut") for one in members))
        if before == [one.state.came_or_went for one in members]:
            return
    raise ConfigurationError(
        f"sessions went from process to process during each of {CUTS_MAX} tries; try again when fewer clients connect"
    )


class CopyingProcess:
    """One of the processes, as far as it is with its copy."""

    def __init__(self, number: int, path: Path, name: str, asked: Request) -> None:
        self._number = number
        self._path = path
        self._name = name
        self._asked = asked._replace(target=PART_PAGE)
        self.state = PartState()

    async def take(self, step: Literal["open", "copy"]) -> None:
        """Comes back when the step is done."""
        await self.order(step)
        while self.state.state == "busy":
            await asyncio.sleep(LOOK_S)
            await self.look()
        if self.state.name != self._name or self.state.state != {"open": "open", "copy": "copied"}[step]:
            raise JournalError(f"process {self._number}: {self.state.reason or 'it was started again meanwhile'}")

    async def order(self, step: Literal["open", "cut", "copy", "drop"]) -> None:
        order = PartOrder(self._name, part_of(self._number), step)
        await self._ask(self._asked._replace(body=msgspec.json.encode(order)))

    async def look(self) -> None:
        await self._ask(self._asked._replace(method="GET", body=b""))

    async def _ask(self, asked: Request) -> None:
        answer = await ask(self._path, asked)
        if answer.status != 200:
            raise JournalError(f"process {self._number}: {answer.body.decode('utf-8', 'replace').strip()}")
        self.state = msgspec.json.decode(answer.body, type=PartState)
