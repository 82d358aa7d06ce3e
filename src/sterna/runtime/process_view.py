"""A process's own condition, for /metrics: its build, how long things take, and when its certificates expire.

The event loop's lag is sampled here; whoever does the other things that take time observes how long.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from sterna.vocabulary.histogram import Histogram

LAG_EVERY_S: Final = 0.25
"""How often the lag of the event loop is sampled."""


@dataclass(slots=True)
class Timings:
    """Durations since the process started."""

    journal_write: Histogram = field(default_factory=Histogram)
    """Writing a group to the journal, sync included."""
    commit: Histogram = field(default_factory=Histogram)
    """From handing a group to the journal to the end of delivering and acknowledging what it holds."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """How much later than asked for the event loop calls back."""
    delivery: Histogram = field(default_factory=Histogram)
    """From entering the network to being given to subscribers here; a sample."""
    move: Histogram = field(default_factory=Histogram)
    """Of sessions that went to another node, from the beginning of the move until they were gone."""


@dataclass(slots=True)
class ListenerCounters:
    """Connections of one listener, since the process started."""

    open: int = 0
    """Now; those that are being let in are not yet among them."""
    accepted: int = 0
    failed: int = 0
    """That did not get through TLS, or whose proxy did not say who they are."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    version: str
    python: str
    compiled: bool
    timings: Timings
    certificates: dict[str, float]
    """Address of a listener, "links" or "feed" -> second of the wall clock at which its certificate expires."""
    listeners: dict[str, ListenerCounters] = field(default_factory=dict)
    """By address."""


class LoopLag:
    """Samples how late the event loop is."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ask_again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask_again(self) -> None:
        due = monotonic() + LAG_EVERY_S
        self._timer = asyncio.get_running_loop().call_later(LAG_EVERY_S, self._called, due)

    def _called(self, due: float) -> None:
        self._histogram.observe(max(0.0, monotonic() - due))
        self._ask_again()
