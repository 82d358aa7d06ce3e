"""Clients that are relayed to a model broker by a simulated node: what `runtime/proxy.py` is outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sterna.gateway.extended_client import RelayBroker
from sterna.gateway.kept_publications import RelayJournal
from sterna.gateway.settings import GatewayLimits
from sterna.gateway.upstream import Upstream
from sterna.gateway.watched import WatchedGateway
from sterna.interworking.proxy.proxy import Proxy
from sterna.simulation.gateway import GatewayStream
from sterna.simulation.kernel import KernelTimer
from sterna.simulation.streams import End

if TYPE_CHECKING:
    from sterna.simulation.foreign_broker import ForeignBroker
    from sterna.simulation.machine import Running

RELAY_PORT = 1884


class RelayWorld:
    """The world of the relayed clients, from one boot to one crash."""

    def __init__(
        self,
        running: Running,
        broker: ForeignBroker,
        proxy: Proxy,
        keeper: RelayJournal,
        host: RelayBroker | None,
    ) -> None:
        self._running = running
        machine = running.machine
        dice = running.kernel.dice(f"{machine.name} relay {running.number}")
        self.gateway = WatchedGateway(
            machine.name,
            broker.address,
            GatewayLimits(),
            self,
            proxy,
            keeper,
            dice,
            machine.clock.now,
            host,
        )
        proxy.door = self.gateway
        machine.network.listen(f"{machine.name}:{RELAY_PORT}", self._accept)

    def work(self, action: Callable[..., None], *arguments: Any) -> None:
        self.gateway.at(self._running.machine.clock.now())
        self._running.work(action, *arguments)

    def _accept(self, end: End) -> None:
        self.work(self._let_in, end)

    def _let_in(self, end: End) -> None:
        client = self.gateway.accept(end, end.peer)
        assert client is not None
        end.user = GatewayStream(self, client)

    # -- what the gateway asks --

    def later(self, seconds: float, act: Callable[[], None]) -> KernelTimer:
        timer = KernelTimer(act)
        self._running.later(seconds, self.work, timer.ring)
        return timer

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self._running.tell(f"reports {event}: {fields}")

    def dial(self, server: str, upstream: Upstream) -> None:
        machine = self._running.machine
        machine.network.dial(machine.name, server, lambda end: self._dialled(upstream, end))

    def _dialled(self, upstream: Upstream, end: End | None) -> None:
        if end is None:
            self.work(upstream.failed, "nobody answers")
        elif self._running.alive:
            end.user = GatewayStream(self, upstream)
            self.work(upstream.connected, end)
        else:
            end.abort()
