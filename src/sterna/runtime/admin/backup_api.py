"""Backups by order, one at a time, made in a thread while the node serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sterna.runtime.disk.backups import Backup
from sterna.vocabulary.errors import ConfigurationError, SternaError

log = logging.getLogger(__name__)


class Backups:
    def __init__(self, make: Callable[[str], Backup] | None) -> None:
        """`make` makes the backup of that name, in any thread; None if the node keeps nothing on disk."""
        self._make = make
        self._state: dict[str, Any] = {"state": "none"}
        #: Referred to here, or the loop might lose it.
        self._task: asyncio.Task[None] | None = None

    def state(self) -> dict[str, Any]:
        return self._state

    def begin(self, name: str) -> dict[str, Any]:
        """May raise ConfigurationError."""
        if self._make is None:
            raise ConfigurationError('nothing is on disk with durability = "memory", so there is nothing to back up')
        if self._state["state"] == "running":
            raise ConfigurationError(f"backup {self._state['name']} is being made; wait for its end")
        self._state = {"state": "running", "name": name}
        self._task = asyncio.get_running_loop().create_task(self._run(self._make, name))
        return self._state

    async def _run(self, make: Callable[[str], Backup], name: str) -> None:
        try:
            made = await asyncio.get_running_loop().run_in_executor(None, make, name)
        except (SternaError, OSError) as error:
            self._state = {"state": "failed", "name": name, "reason": str(error)}
            log.error("backup failed", extra={"backup": name, "reason": str(error)})
        else:
            self._state = {"state": "done", "name": name, **made._asdict()}
            log.info("backup made", extra=made._asdict())
