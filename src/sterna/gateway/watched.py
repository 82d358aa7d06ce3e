"""A gateway in front of one foreign broker: clients go there while it is open to them, and are watched meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sterna.gateway.client import ClientState
from sterna.gateway.context import GatewayWorld, Timer
from sterna.gateway.extended_client import ExtendedClient, RelayBroker
from sterna.gateway.gateway import Gateway
from sterna.gateway.kept_publications import RelayJournal
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.gateway.upstream import PeerTransport, Upstream, UpstreamPhase
from sterna.gateway.watched_client import WatchedClient, Watcher

#: A foreign broker is told nothing of gateways, keeps sessions as clients ask, and assigns packet identifiers its way.
#: Nobody but it can publish the will of a client that was lost while it was away.
PATIENCE = Patience(session_s=0, window=0, linger_s=300.0)


class _Gate:
    """The world, whose connections to the foreign broker wait until clients may go there."""

    def __init__(self, world: GatewayWorld, watcher: Watcher) -> None:
        self.later: Callable[[float, Callable[[], None]], Timer] = world.later
        self.report = world.report
        self._world = world
        self._watcher = watcher
        self._waiting: list[Upstream] = []

    def dial(self, server: str, upstream: Upstream) -> None:
        if self._watcher.is_open:
            self._world.dial(server, upstream)
            return
        self._waiting = [one for one in self._waiting if one.phase == UpstreamPhase.DIALLING]
        self._waiting.append(upstream)

    def open(self) -> None:
        waiting, self._waiting = self._waiting, []
        for upstream in waiting:
            if upstream.phase == UpstreamPhase.DIALLING:
                self._world.dial(upstream.server, upstream)


class WatchedGateway(Gateway):
    def __init__(
        self,
        name: str,
        broker: str,
        limits: GatewayLimits,
        world: GatewayWorld,
        watcher: Watcher,
        keeper: RelayJournal,
        rng: Random,
        clock: Callable[[], float],
        host: RelayBroker | None = None,
    ) -> None:
        """`broker`: its address; `keeper`: the journal, for publications that the broker may lose; `clock`: seconds of
        a steady clock, for calls that come from elsewhere than the world; `host`: serves clients what the broker may
        lack."""
        self._gate = _Gate(world, watcher)
        servers = Servers([broker], PATIENCE, rng, control=False)
        super().__init__(name, servers, limits, PATIENCE, self._gate, rng, clock())
        self._watcher = watcher
        self._keeper = keeper
        self._host = host
        self._clock = clock

    def new_client(self, transport: PeerTransport, address: str) -> WatchedClient:
        if self._host is not None:
            return ExtendedClient(
                self.context, self, self.endings, transport, address, self._watcher, self._keeper, self._host
            )
        return WatchedClient(self.context, self, self.endings, transport, address, self._watcher, self._keeper)

    # -- the way to the foreign broker --

    def open(self) -> None:
        """Clients may go there."""
        self.at(self._clock())
        self._gate.open()

    def connect_anew(self, reason: str) -> None:
        """All clients let go of the foreign broker and come back to it, which they do not notice."""
        self.at(self._clock())
        for client in list(self.clients):
            upstream = client.tether.upstream if client.tether is not None else None
            if upstream is not None and upstream.live_since:
                upstream.lost(reason)

    @property
    def let_in(self) -> int:
        """Clients that are connected and were let in."""
        return sum(client.state == ClientState.OPEN for client in self.clients)

    @property
    def away(self) -> int:
        """Those of them whom the foreign broker has not, or not with all their subscriptions."""
        return sum(client.state == ClientState.OPEN and not client.is_served for client in self.clients)

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        counters = self.counters
        return {
            "clients": len(self.clients),
            "relayed": self.attached,
            "connections": counters.connections,
            "refused": dict(sorted(counters.connections_refused.items())),
            "losses": counters.losses,
            "resent": counters.resent,
            "dropped": counters.dropped,
            "not_kept": {"client-full": counters.not_kept, "node-full": self._keeper.made_way},
            "sessions_lost": counters.sessions_lost,
            "subscriptions_lost": counters.subscriptions_lost,
        }
