"""The timers that asyncio's loop lends to a node's `Driver`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic


class LoopTimers:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.soon: Callable[[Callable[[], None]], object] = loop.call_soon

    def later(self, seconds: float, action: Callable[[float], None]) -> asyncio.Handle:
        return self._loop.call_later(seconds, _act, action)

    def at(self, instant: float, action: Callable[[float], None]) -> asyncio.Handle:
        if instant <= monotonic():
            # Work that goes on in the next turn: the loop's own clock lags behind, and a timer would wait that much.
            return self._loop.call_soon(_act, action)
        return self._loop.call_at(instant, _act, action)


def _act(action: Callable[[float], None]) -> None:
    action(monotonic())
