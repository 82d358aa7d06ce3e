"""Hosts that hear each other or not, as a test says, pair by pair and direction by direction; virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

from sterna.overlay.mobile import MobileOverlay
from sterna.overlay.mobile_settings import MobileSettings

SETTINGS = MobileSettings(network="field", node="", key=b"a key that all of them share")
LATENCY_S = 0.002


class RadioHost:
    """One node's overlay and its world."""

    def __init__(self, field: RadioField, name: str, settings: MobileSettings) -> None:
        self.field = field
        self.name = name
        self.up = True
        self.held: dict[str, str] = {}
        self.silent: Callable[[str], float] = lambda peer: inf
        self.overlay = MobileOverlay(
            replace(settings, node=name),
            self,
            now=lambda: field.now,
            schedule=self._schedule,
            rng=Random(f"{field.seed}/{name}/{field.now}"),
        )

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        self.field.at(at, lambda: action() if self.up else None)

    def send_datagram(self, address: str, data: bytes) -> None:
        raise AssertionError("hellos go to everybody")

    def send_discovery(self, data: bytes) -> None:
        self.field.say(self.name, data)

    def hold_links(self, dial: dict[str, str]) -> None:
        gone, self.held = [name for name in self.held if name not in dial], dial
        for name in gone:
            if self.name not in self.field.hosts[name].held:
                self.field.unlink(self.name, name)
        for name in dial:
            self.field.at(self.field.now + 3 * LATENCY_S, lambda name=name: self.field.dial(self.name, name))  # type: ignore[misc]

    def drop_link(self, peer: str, reason: str) -> None:
        self.field.unlink(self.name, peer)

    def silent_s(self, peer: str) -> float:
        return self.silent(peer)

    def report(self, event: str, **fields: object) -> None:
        self.field.events.append((self.field.now, self.name, event))

    @property
    def view(self) -> dict[str, object]:
        return self.overlay.view()


class RadioField:
    def __init__(self, seed: int = 1, loss: float = 0.0) -> None:
        self.seed = seed
        self.loss = loss
        self.now = 0.0
        self.hosts: dict[str, RadioHost] = {}
        self.reach: set[tuple[str, str]] = set()
        self.links: set[tuple[str, str]] = set()
        self.stood: list[frozenset[tuple[str, str]]] = []
        self.events: list[tuple[float, str, str]] = []
        self.heard_bytes = 0
        self.said_bytes = 0
        self._dice = Random(f"{seed}/air")
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (max(when, self.now), self._order, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = end

    def boot(self, *names: str, settings: MobileSettings = SETTINGS) -> None:
        for name in names:
            self.hosts[name] = RadioHost(self, name, settings)
            self.hosts[name].overlay.start()

    def kill(self, name: str) -> None:
        self.hosts[name].up = False
        for pair in [pair for pair in self.links if name in pair]:
            self.unlink(*pair)

    def meet(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            self.reach |= {(one, other), (other, one)}

    def part(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            self.reach -= {(one, other), (other, one)}

    def say(self, source: str, data: bytes) -> None:
        self.said_bytes += len(data)
        for name in sorted(self.hosts):
            if (source, name) in self.reach and self.hosts[name].up and self._dice.random() >= self.loss:
                self.at(self.now + LATENCY_S, lambda name=name: self.hear(name, source, data))  # type: ignore[misc]

    def hear(self, name: str, source: str, data: bytes) -> None:
        if self.hosts[name].up:
            self.hosts[name].overlay.datagram(f"{source}:7883", data)

    def link(self, one: str, other: str) -> None:
        pair = (one, other) if one < other else (other, one)
        both = (one, other) in self.reach and (other, one) in self.reach
        if pair not in self.links and both and other in self.hosts[one].held and self.hosts[other].up:
            self.links.add(pair)
            self.stood.append(frozenset(self.links))
            for here, there in ((one, other), (other, one)):
                self.hosts[here].overlay.link_started(there)

    def unlink(self, one: str, other: str) -> None:
        pair = (one, other) if one < other else (other, one)
        if pair in self.links:
            self.links.discard(pair)
            for here, there in ((one, other), (other, one)):
                if self.hosts[here].up:
                    self.hosts[here].overlay.link_ended(there)
                    if there in self.hosts[here].held:
                        self.dial(here, there)

    def dial(self, one: str, other: str) -> None:
        """Again and again, as the world of a node does."""
        if other in self.hosts[one].held and self.hosts[one].up:
            self.link(one, other)
            if not {(one, other), (other, one)} & self.links:
                self.at(self.now + 0.2, lambda: self.dial(one, other))

    # -- what can be seen of it --

    def leaders(self) -> dict[str, object]:
        return {name: host.view["root"] for name, host in self.hosts.items() if host.up}

    def parents(self) -> dict[str, object]:
        return {name: host.view["parent"] for name, host in self.hosts.items() if host.up}

    def parent_changes(self) -> int:
        return sum(event == "parent-changed" for _, _, event in self.events)

    def tree_links(self) -> set[tuple[str, str]]:
        edges = ((name, str(parent)) for name, parent in self.parents().items() if parent)
        return {(one, other) if one < other else (other, one) for one, other in edges}
