"""The seam between a protocol and the air: what a station may ask of its radio, and the protocol it runs.

A protocol for the radio is a class with `start`, `heard` and `undelivered` that gets a `RadioPort`.  It is one module
and a row of `simulation/papers/protocols.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sterna.simulation.kernel import Kernel
from sterna.simulation.radio.medium import Medium, RadioListener, RadioMessage, Station


class RadioPort(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def now(self) -> float: ...

    def broadcast(self, message: RadioMessage) -> object:
        """To everybody in reach; nobody acknowledges it."""

    def send(self, message: RadioMessage, to: str) -> object:
        """To a neighbour."""

    def when_delivered(self, told: Callable[[Any, str], object]) -> object:
        """Be told of what a neighbour has acknowledged."""

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> object:
        """Have something happen later."""

    def random(self) -> float:
        """From the station's own dice, below 1."""


class RadioProtocol(RadioListener, Protocol):
    """The protocol of a station."""

    def start(self) -> object:
        """Once, at the beginning."""


class StationPort:
    """The port of a station in the medium."""

    __slots__ = ("_kernel", "_medium", "_station", "after", "name", "random")

    def __init__(self, kernel: Kernel, medium: Medium, station: Station) -> None:
        self._kernel = kernel
        self._medium = medium
        self._station = station
        self.name = station.name
        self.random = kernel.dice(f"station {station.name}").random
        self.after = kernel.after

    @property
    def now(self) -> float:
        return self._kernel.now

    def broadcast(self, message: RadioMessage) -> None:
        self._medium.send(self._station, message, None)

    def send(self, message: RadioMessage, to: str) -> None:
        self._medium.send(self._station, message, to)

    def when_delivered(self, told: Callable[[Any, str], object]) -> None:
        self._station.delivered = told
