"""An air without loss for conversations: who hears whom is given, and every message is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sterna.simulation.kernel import Kernel
from sterna.simulation.radio.port import RadioProtocol

DELAY_S = 0.001


class IdealPort:
    def __init__(self, air: IdealAir, name: str) -> None:
        self.name = name
        self.random = air.kernel.dice(name).random
        self._air = air

    @property
    def now(self) -> float:
        return self._air.kernel.now

    def broadcast(self, message: Any) -> None:
        self._air.sent.append((self.name, None, message))
        for other in self._air.in_reach(self.name):
            self._air.kernel.after(DELAY_S, self._air.arrive, self.name, other, message)

    def send(self, message: Any, to: str) -> None:
        self._air.sent.append((self.name, to, message))
        self._air.kernel.after(DELAY_S, self._air.arrive, self.name, to, message)

    def when_delivered(self, told: Callable[[Any, str], object]) -> None:
        """Nobody asks here."""

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        self._air.kernel.after(seconds, action, *arguments)


class IdealAir:
    def __init__(self, links: Iterable[tuple[str, str]], seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.links = {frozenset(link) for link in links}
        self.sent: list[tuple[str, str | None, Any]] = []
        self.nodes: dict[str, RadioProtocol] = {}

    def add(self, name: str, protocol: Callable[[IdealPort], RadioProtocol]) -> None:
        self.nodes[name] = protocol(IdealPort(self, name))

    def in_reach(self, name: str) -> list[str]:
        return [other for other in self.nodes if frozenset((name, other)) in self.links]

    def arrive(self, sender: str, to: str, message: Any) -> None:
        if to in self.in_reach(sender):
            self.nodes[to].heard(message, sender)
        elif sender in self.nodes:
            self.nodes[sender].undelivered(message, to)
