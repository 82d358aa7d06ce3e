"""A gateway among made-up clients and nodes: wires that hold bytes until told, and a clock that is moved by hand."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from sterna.gateway.client import GatewayClient
from sterna.gateway.gateway import Gateway
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.gateway.upstream import Upstream

from .model_node import ModelConnection, ModelNetwork


class Timer:
    def __init__(self, due: float, act: Callable[[], None]) -> None:
        self.due = due
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class End:
    """One end of a wire, as a transport: what is written waits until the town delivers it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closing = False
        self.gone = False
        self.paused = False

    def write(self, data: bytes) -> None:
        if not self.closing and not self.gone:
            self.sent += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.gone = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Peer(NamedTuple):
    address: str = "198.51.100.7:4711"


class UpstreamWire:
    """Between the gateway and a node."""

    def __init__(self, upstream: Upstream, server: str, node: ModelConnection) -> None:
        self.upstream = upstream
        self.server = server
        self.node = node
        self.up = End()
        self.over = False
        upstream.connected(self.up)

    def cut(self) -> None:
        """Packets on their way are lost; both ends learn of it."""
        if not self.over:
            self.over = True
            self.node.lost()
            self.upstream.lost()

    def move(self, upwards: int = 1 << 30, downwards: int = 1 << 30) -> bool:
        """Deliver up to so many bytes each way; False if there was nothing to do."""
        if self.over:
            return False
        if self.up.gone or self.node.end.gone:
            self.cut()
            return True
        data = bytes(self.up.sent[:upwards])
        del self.up.sent[:upwards]
        if data:
            self.node.feed(data)
        answer = b"" if self.up.paused else bytes(self.node.end.sent[:downwards])
        del self.node.end.sent[: len(answer)]
        if answer:
            self.upstream.feed(answer)
        if not data and not answer:
            if (self.node.end.closing and not self.node.end.sent) or (self.up.closing and not self.up.sent):
                self.cut()
                return True
            return False
        return True


class Town:
    def __init__(
        self,
        servers: tuple[str, ...] = ("a:1", "b:1"),
        *,
        limits: GatewayLimits | None = None,
        patience: Patience | None = None,
        seed: int = 1,
        references: tuple[str, ...] = ("*",),
    ) -> None:
        self.now = 1000.0
        self.network = ModelNetwork()
        self.down: set[str] = set()
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.dialled: list[str] = []
        self.wires: list[UpstreamWire] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._counter = itertools.count()
        patience = patience or Patience()
        rng = Random(seed)
        self.gateway = Gateway(
            "g",
            Servers(list(servers), patience, rng, references=references),
            limits or GatewayLimits(),
            patience,
            self,
            rng,
            self.now,
        )

    # -- what the gateway asks --

    def dial(self, server: str, upstream: Upstream) -> None:
        self.dialled.append(server)
        self.later(0.001, lambda: self._connect(server, upstream))

    def _connect(self, server: str, upstream: Upstream) -> None:
        if server in self.down:
            upstream.failed("connection refused")
        else:
            self.wires.append(UpstreamWire(upstream, server, self.network.accept(server)))

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        timer = Timer(self.now + seconds, act)
        heapq.heappush(self._timers, (timer.due, next(self._counter), timer))
        return timer

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.reports.append((event, fields))

    # -- what the test does --

    def accept(self, end: End) -> GatewayClient:
        client = self.gateway.accept(end, Peer())
        assert client is not None
        return client

    def wire(self) -> UpstreamWire:
        """The one in use."""
        live = [wire for wire in self.wires if not wire.over]
        assert len(live) == 1, [wire.server for wire in live]
        return live[0]

    def pass_time(self, seconds: float) -> None:
        """All that happens meanwhile, wires included."""
        until = self.now + seconds
        self.settle()
        while self._timers and self._timers[0][0] <= until:
            self.next_timer(until)
            self.settle()
        self.now = until
        self.gateway.at(until)

    def tick(self, seconds: float) -> None:
        """Only time passes; nothing is carried."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.next_timer(until)
        self.now = until
        self.gateway.at(until)

    def next_timer(self, until: float = math.inf) -> None:
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            if timer.act is not None:
                self.now = max(self.now, due)
                self.gateway.at(self.now)
                act, timer.act = timer.act, None
                act()
                return

    def settle(self) -> None:
        """Until no wire has anything left to carry."""
        self.wires = [wire for wire in self.wires if not wire.over]
        moved = True
        while moved:
            moved = False
            for wire in self.wires:
                moved |= wire.move()
