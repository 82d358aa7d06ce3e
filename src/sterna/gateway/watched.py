"""A gateway in front of one foreign broker: its clients are watched (`watched_client`), and reconnected on demand."""

from __future__ import annotations

from random import Random

from sterna.gateway.client import ClientState
from sterna.gateway.context import GatewayWorld
from sterna.gateway.extended_client import ExtendedClient, Host
from sterna.gateway.gateway import Gateway
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.gateway.upstream import PeerTransport
from sterna.gateway.watched_client import WatchedClient, Watcher

#: A foreign broker is told nothing of gateways, keeps sessions as clients ask, and assigns packet identifiers its way.
#: Nobody but it can publish the will of a client that was lost while it was away.
PATIENCE = Patience(session_s=0, window=0, linger_s=300.0)


class WatchedGateway(Gateway):
    def __init__(
        self,
        name: str,
        broker: str,
        limits: GatewayLimits,
        world: GatewayWorld,
        watcher: Watcher,
        rng: Random,
        now: float,
        patience: Patience = PATIENCE,
        host: Host | None = None,
    ) -> None:
        """`broker`: its address; `host`: serves clients what the broker may lack."""
        super().__init__(name, Servers([broker], patience, rng, control=False), limits, patience, world, rng, now)
        self._watcher = watcher
        self._host = host

    def new_client(self, transport: PeerTransport, address: str) -> WatchedClient:
        if self._host is not None:
            return ExtendedClient(self.context, self, self.endings, transport, address, self._watcher, self._host)
        return WatchedClient(self.context, self, self.endings, transport, address, self._watcher)

    @property
    def let_in(self) -> int:
        """Clients that are connected and were let in."""
        return sum(client.state == ClientState.OPEN for client in self.clients)

    @property
    def away(self) -> int:
        """Those of them whom the foreign broker has not, or not with all their subscriptions."""
        return sum(client.state == ClientState.OPEN and not client.is_served for client in self.clients)

    def connect_anew(self, reason: str) -> None:
        """All clients let go of the foreign broker and come back to it, which they do not notice."""
        for client in list(self.clients):
            upstream = client.tether.upstream if client.tether is not None else None
            if upstream is not None and upstream.live_since:
                upstream.lost(reason)
