"""The configuration read again while the process runs: on SIGHUP, and when the admin port asks for it.

The process reads, checks and builds everything new first, in a thread, and puts it in place in one turn of the loop.
If anything is wrong, nothing changes and every problem is reported.  Changes that need a restart are named.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from sterna.runtime.config.problems import spelled
from sterna.runtime.config.process_tables import Admin, ListenerTable
from sterna.runtime.config.schema import is_table, keys_of
from sterna.runtime.config.toml_source import Place
from sterna.runtime.hangups import was_hung_up
from sterna.runtime.listeners.listeners import Listeners, ListenerState, Threshold
from sterna.runtime.service_manager import ServiceManager
from sterna.vocabulary.errors import ConfigurationError, SternaError

T = TypeVar("T")

#: Every process reloads these: the log, and who may ask the admin port.
ADMIN_AND_LOG: tuple[Place, ...] = (("log",), *(("admin", name) for name in keys_of(Admin) if name != "bind"))

log = logging.getLogger("sterna.reload")


class ReloadedPart(msgspec.Struct, frozen=True):
    """Something that was read again."""

    what: str
    changed: bool
    detail: str = ""


class ReloadOutcome(msgspec.Struct, frozen=True):
    """The outcome of a reload."""

    read: list[ReloadedPart]
    disconnected: int = 0
    """Clients whose user, password or way in is gone or another."""
    needs_restart: list[str] = []
    """Settings that changed and do not count before the process is started again."""


Swap = Callable[[], ReloadOutcome]


class Reloader(Generic[T]):
    """`read` reads the configuration, `prepare` builds what it asks for and gives what puts it in place."""

    def __init__(self, read: Callable[[], T], prepare: Callable[[T], Swap], manager: ServiceManager) -> None:
        self._service_manager = manager
        self._read = read
        self._prepare = prepare
        self._one_at_a_time = asyncio.Lock()
        self._asked = asyncio.Event()

    async def reload(self) -> ReloadOutcome:
        """ConfigurationError, with a line for every problem, if everything stays as it was."""
        async with self._one_at_a_time:
            self._service_manager.reloading()
            try:
                return await self._reload()
            finally:
                self._service_manager.ready()

    async def _reload(self) -> ReloadOutcome:
        loop = asyncio.get_running_loop()
        try:
            swap = await loop.run_in_executor(None, lambda: self._prepare(self._read()))
        except Exception as error:
            problem = str(error) if isinstance(error, SternaError | OSError) else repr(error)
            for line in problem.splitlines():
                log.error("reload failed, everything stays as it was", extra={"reason": line})
            raise ConfigurationError(f"{problem}\nnothing was changed") from error
        outcome = swap()
        changed = ", ".join(part.what for part in outcome.read if part.changed) or "nothing"
        fields: dict[str, Any] = {"changed": changed, "disconnected": outcome.disconnected}
        if outcome.needs_restart:
            fields["needs_restart"] = ", ".join(outcome.needs_restart)
        log.info("reloaded", extra=fields)
        return outcome

    async def heed_hangups(self) -> None:
        """Reload on every SIGHUP from here on, and for one that came before; never ends by itself."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
        if was_hung_up():
            self._asked.set()
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self.reload()
            except ConfigurationError:
                pass  # said already
            except Exception:
                log.exception("reload failed")


def differences(old: Any, new: Any, place: Place = ()) -> Iterator[Place]:
    """Where two configurations of one kind differ."""
    for name, key in keys_of(type(old)).items():
        before, after = getattr(old, key.attribute), getattr(new, key.attribute)
        if before == after:
            continue
        if is_table(type(before)) and type(before) is type(after):
            yield from differences(before, after, (*place, name))
        else:
            yield (*place, name)


def needing_restart(old: Any, new: Any, reloaded: Sequence[Place]) -> list[str]:
    """Settings that differ, as spelled in the file; but for the listeners, and what is below one of `reloaded`."""
    found = [place for place in differences(old, new) if place != ("listener",)]
    return [spelled(place) for place in found if not any(place[: len(one)] == one for one in reloaded)]


class PreparedLimits:
    """The limits in force, with the values they are to have."""

    def __init__(self, in_force: Any, wanted: Any, fixed: Collection[str]) -> None:
        """`in_force` belongs to this process alone; what is `fixed` stays as it is."""
        self._in_force = in_force
        names = [str(name) for (name,) in differences(in_force, wanted)]
        self._changed = {name: getattr(wanted, name) for name in names if name not in fixed}

    def apply(self) -> ReloadedPart:
        told = []
        for name, value in self._changed.items():
            told.append(f"{name} {getattr(self._in_force, name):,} to {value:,}")
            setattr(self._in_force, name, value)
        return ReloadedPart("limits", bool(told), ", ".join(told))


def limits_reloaded(limits: type[Any], fixed: Collection[str]) -> list[Place]:
    """The settings that `PreparedLimits` puts in place."""
    return [("limits", name) for name in keys_of(limits) if name not in fixed]


class PreparedListeners:
    """The open listeners with what they are to go by."""

    def __init__(self, listeners: Listeners, wanted: Sequence[ListenerTable]) -> None:
        """May raise OSError."""
        self._prepared: list[tuple[Threshold, ListenerState]] = listeners.prepare(wanted)
        kept = [settings.listener for _, settings in self._prepared]
        gone = [threshold.settings.listener for threshold in listeners.unmatched(self._prepared)]
        self.needs_restart = [f"[[listener]] {one.bind}" for one in (*wanted, *gone) if one not in kept]

    def apply(self) -> list[ReloadedPart]:
        parts = []
        for threshold, settings in self._prepared:
            before = threshold.settings
            threshold.apply(settings)
            name = f"listener {settings.listener.bind}"
            parts.append(ReloadedPart(name, before.listener != settings.listener))
            if settings.context is not None:
                is_new = (before.certificate, before.authority) != (settings.certificate, settings.authority)
                parts.append(ReloadedPart(f"certificates of {name}", is_new))
        return parts
