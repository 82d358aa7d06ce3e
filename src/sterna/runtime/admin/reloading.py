"""The part of its file that every process reads again while it runs: the admin port's, and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.site import guard
from sterna.runtime.config.process_tables import Admin, Log
from sterna.runtime.logs import configure
from sterna.runtime.reloading import ADMIN_AND_LOG, ReloadedPart, Reloader, ReloadOutcome, Swap, needing_restart
from sterna.runtime.service_manager import ServiceManager


class AdministeredConfiguration(Protocol):
    @property
    def admin(self) -> Admin: ...

    @property
    def log(self) -> Log: ...


class AdminAndLog:
    """Both as they are in force, and how they are replaced."""

    def __init__(self, started_with: AdministeredConfiguration, port: AdminPort) -> None:
        self._bind = started_with.admin.bind
        self._log = started_with.log
        self._port = port

    def prepare(self, new: AdministeredConfiguration) -> Callable[[], list[ReloadedPart]]:
        """May raise ConfigurationError or OSError.  A port keeps its address, and who may ask it goes with that."""
        before = self._port.guard
        admin = guard(new.admin).after(before) if new.admin.bind == self._bind else before

        def swap() -> list[ReloadedPart]:
            parts = [
                ReloadedPart("admin port", admin != self._port.guard),
                ReloadedPart("log", new.log != self._log, f"level {new.log.level}, {new.log.format}"),
            ]
            self._port.guard, self._log = admin, new.log
            configure(new.log.level, new.log.format)
            return parts

        return swap


def reloader(
    started_with: AdministeredConfiguration, reread: Callable[[], AdministeredConfiguration], port: AdminPort
) -> Reloader[AdministeredConfiguration]:
    """Of a process that reloads nothing else."""
    both = AdminAndLog(started_with, port)

    def prepare(new: AdministeredConfiguration) -> Swap:
        swap, needs_restart = both.prepare(new), needing_restart(started_with, new, ADMIN_AND_LOG)
        return lambda: ReloadOutcome(swap(), 0, needs_restart)

    return Reloader(reread, prepare, ServiceManager())
