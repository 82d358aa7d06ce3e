"""Timers by name: one of each, and the next of a name takes the place of the last."""

from __future__ import annotations

from collections.abc import Callable

from sterna.interworking.ports import ForeignTimer, ForeignWorld


class NamedTimers:
    def __init__(self, world: ForeignWorld) -> None:
        self._world = world
        self._timers: dict[str, ForeignTimer] = {}

    def after(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self.cancel(name)
        self._timers[name] = self._world.later(seconds, act)

    def cancel(self, *names: str) -> None:
        for name in names:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    def cancel_all(self) -> None:
        self.cancel(*list(self._timers))
