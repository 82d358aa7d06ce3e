"""A made-up world for overlays: virtual time, datagrams that get lost, late, doubled and overtaken, links that take
their time, hosts whose clocks disagree.  Same seed, same trace, in any process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import inf
from random import Random

from sterna.overlay.spanning_tree import SpanningTreeOverlay
from sterna.overlay.tree_settings import TreeSettings

Clock = tuple[float, float]
"""Seconds ahead, and how many pass per true second."""

TRUE = (0.0, 1.0)
REDIAL_S = 0.2
LINK_DEAD_AFTER_S = 3.0
DEFAULTS = TreeSettings(network="home", node="", key=b"a key that all of them share")


@dataclass(frozen=True)
class Weather:
    """The fate of datagrams."""

    loss: float = 0.0
    doubled: float = 0.0
    jitter: float = 0.1
    """Part of the latency that is added at most."""
    overtaken: float = 0.0
    """How often a datagram is held back by up to 50 ms."""


class Host:
    """One machine with one overlay on it: the overlay's world."""

    def __init__(self, net: DatagramWorld, name: str, settings: TreeSettings, clock: Clock) -> None:
        self.net = net
        self.name = name
        self.up = True
        self.offset, self.drift = clock
        self.dial: dict[str, str] = {}
        self.overlay = SpanningTreeOverlay(
            settings, self, now=self.now, schedule=self.schedule, rng=Random(f"{net.seed}/{name}/{net.now}")
        )

    def now(self) -> float:
        return self.offset + self.net.now * self.drift

    def schedule(self, at: float, action: Callable[[], None]) -> None:
        self.net.at((at - self.offset) / self.drift, lambda: action() if self.up else None)

    def send_datagram(self, address: str, data: bytes) -> None:
        self.net.carry(self, address, data)

    def send_discovery(self, data: bytes) -> None:
        if self.net.multicast:
            for name in list(self.net.hosts):
                self.net.carry(self, address_of(name), data)

    def hold_links(self, dial: dict[str, str]) -> None:
        self.net.note(f"{self.name} holds {dial}")
        dropped = [peer for peer in self.dial if peer not in dial]
        added = [peer for peer in dial if peer not in self.dial]
        self.dial = dial
        for peer in dropped:
            if self.name not in self.net.dial_of(peer):
                self.net.break_link(self.name, peer)
        for peer in added:
            self.net.try_link(self.name, peer)

    def drop_link(self, peer: str, reason: str) -> None:
        self.net.break_link(self.name, peer)

    def silent_s(self, peer: str) -> float:
        return inf

    def report(self, event: str, **fields: object) -> None:
        self.net.note(f"{self.name} {event} {fields}")


def address_of(name: str) -> str:
    return f"{name}:7883"


class DatagramWorld:
    """Hosts, what lies between them, and the time."""

    def __init__(self, seed: int, *, weather: Weather | None = None, multicast: bool = True) -> None:
        self.seed = seed
        self.weather = weather or Weather()
        self.multicast = multicast
        self.now = 0.0
        self.hosts: dict[str, Host] = {}
        self.links: dict[tuple[str, str], None] = {}
        self.latency: dict[tuple[str, str], float] = {}
        self.side: dict[str, int] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        self.no_link: dict[tuple[str, str], None] = {}
        self.trace: list[str] = []
        self.digest = blake2b(digest_size=16)
        self.carried = 0
        self._rng = Random(f"{seed}/world")
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    # Time.

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (max(when, self.now), self._order, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = end

    def note(self, line: str) -> None:
        self.trace.append(f"{self.now:.6f} {line}")
        self.digest.update(self.trace[-1].encode())

    # Hosts.

    def boot(self, name: str, capability: float, *, settings: TreeSettings = DEFAULTS, clock: Clock = TRUE) -> Host:
        own = replace(settings, node=name, address=address_of(name), cpu=capability)
        host = self.hosts[name] = Host(self, name, own, clock)
        self.note(f"{name} boots")
        host.overlay.start()
        return host

    def kill(self, name: str, *, silently: bool = False) -> None:
        """End a process.  Its peers see their links break: at once, or (`silently`) after the links' own time-out."""
        self.note(f"{name} killed")
        self.hosts.pop(name).up = False
        for pair in [pair for pair in self.links if name in pair]:
            del self.links[pair]
            survivor = pair[0] if pair[1] == name else pair[1]
            delay = LINK_DEAD_AFTER_S if silently else self.latency_between(*pair)
            self.at(self.now + delay, partial(self._ended, survivor, name))

    def partition(self, *groups: list[str]) -> None:
        self.note(f"partition {groups}")
        self.side = {name: number for number, group in enumerate(groups) for name in group}
        for pair in [pair for pair in self.links if not self.connected(*pair)]:
            self.at(self.now + LINK_DEAD_AFTER_S, partial(self._starved, pair))

    def heal(self) -> None:
        self.note("heal")
        self.side = {}

    def connected(self, a: str, b: str) -> bool:
        return self.side.get(a, 0) == self.side.get(b, 0) and pair_of(a, b) not in self.blocked

    def latency_between(self, a: str, b: str) -> float:
        """One way, without jitter."""
        if pair_of(a, b) not in self.latency:
            self.latency[pair_of(a, b)] = self._rng.uniform(0.001, 0.05)
        return self.latency[pair_of(a, b)]

    # Datagrams.

    def carry(self, source: Host, address: str, data: bytes) -> None:
        target = address.removesuffix(":7883")
        if target == source.name or not self.connected(source.name, target):
            return
        self.carried += 1
        for _ in range(1 + (self._rng.random() < self.weather.doubled)):
            if self._rng.random() >= self.weather.loss:
                delay = self.latency_between(source.name, target) * (1 + self.weather.jitter * self._rng.random())
                if self._rng.random() < self.weather.overtaken:
                    delay += 0.05 * self._rng.random()
                self.at(self.now + delay, lambda: self._arrive(source.name, target, data))

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        if target in self.hosts:
            self.digest.update(f"{self.now:.6f} {target}".encode() + data)
            self.hosts[target].overlay.datagram(address_of(source), data)

    # Links.

    def dial_of(self, name: str) -> dict[str, str]:
        return self.hosts[name].dial if name in self.hosts else {}

    def try_link(self, dialler: str, peer: str) -> None:
        """Three one-way trips later the link stands, if both are there."""
        host = self.hosts.get(dialler)
        self.at(self.now + 3 * self.latency_between(dialler, peer), lambda: self._dialled(host, peer))

    def _dialled(self, host: Host | None, peer: str) -> None:
        if host is None or not host.up or peer not in host.dial or pair_of(host.name, peer) in self.links:
            return
        there = self.hosts.get(peer)
        reachable = self.connected(host.name, peer) and pair_of(host.name, peer) not in self.no_link
        if there is None or not reachable or there.overlay.accepts(host.name) is not None:
            self.at(self.now + REDIAL_S, lambda: self._dialled(host, peer))
            return
        self.links[pair_of(host.name, peer)] = None
        self.note(f"link {host.name} {peer}")
        there.overlay.link_started(host.name)
        host.overlay.link_started(peer)

    def break_link(self, a: str, b: str) -> None:
        if pair_of(a, b) not in self.links:
            return
        del self.links[pair_of(a, b)]
        self.note(f"no link {a} {b}")
        self._ended(a, b)
        told_after = self.latency_between(a, b) if self.connected(a, b) else LINK_DEAD_AFTER_S
        self.at(self.now + told_after, lambda: self._ended(b, a))

    def _starved(self, pair: tuple[str, str]) -> None:
        if pair in self.links and not self.connected(*pair):
            self.break_link(*pair)

    def _ended(self, name: str, peer: str) -> None:
        host = self.hosts.get(name)
        if host and pair_of(name, peer) not in self.links:
            host.overlay.link_ended(peer)
            if peer in host.dial:
                self.try_link(name, peer)


def pair_of(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
