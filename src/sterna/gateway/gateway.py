"""All clients of one gateway, by name.

The world feeds clients and upstream connections, tells the time, dials, and keeps timers.  Nothing here waits.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from sterna.gateway.client import ClientState, GatewayClient
from sterna.gateway.connecting import Wish
from sterna.gateway.context import GatewayContext, GatewayWorld
from sterna.gateway.ending import SessionEndings
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.gateway.upstream import PeerTransport
from sterna.mqtt.reasons import Reason


class GatewayPeer(Protocol):
    """A client as it is known before it says a word."""

    @property
    def address(self) -> str: ...


class Gateway:
    def __init__(
        self,
        name: str,
        servers: Servers,
        limits: GatewayLimits,
        patience: Patience,
        world: GatewayWorld,
        rng: Random,
        now: float,
    ) -> None:
        #: Shared by all clients.
        self.context = GatewayContext(name, servers, limits, patience, world, rng, now)
        self.limits = limits
        self.counters = self.context.counters
        self.clients: set[GatewayClient] = set()
        #: Those that were let in, by name.
        self._named: dict[bytes, GatewayClient] = {}
        #: Those sent away because their session was gone: a node has another one by now, with nothing in it.
        self._sent_away: dict[bytes, None] = {}
        self.endings = SessionEndings(self.context)

    @property
    def unauthenticated_bytes(self) -> int:
        """Held of clients that have not logged in yet."""
        return self.context.unauthenticated.held

    @property
    def attached(self) -> int:
        """Clients that have a node now."""
        return self.context.attached

    # -- what the world says --

    def at(self, now: float) -> None:
        """It is this late."""
        self.context.now = now

    def accept(self, transport: PeerTransport, peer: GatewayPeer) -> GatewayClient | None:
        """A new client, or None if there are too many already (the caller drops it)."""
        if len(self.clients) >= self.limits.connections:
            self.counters.refused("connections")
            return None
        self.counters.connections += 1
        client = self.new_client(transport, peer.address)
        self.clients.add(client)
        return client

    def new_client(self, transport: PeerTransport, address: str) -> GatewayClient:
        return GatewayClient(self.context, self, self.endings, transport, address)

    def stop(self) -> None:
        for client in list(self.clients):
            client.stop()

    # -- what clients say --

    def admitted(self, client: GatewayClient) -> None:
        """A node has let this client in: another connection of the same name is over, if it is here."""
        assert client.wish is not None
        before = self._named.get(client.wish.client_id)
        self._named[client.wish.client_id] = client
        if before is not None:
            before.dismiss(Reason.SESSION_TAKEN_OVER, "another connection with this client identifier")
        self.context.report("client connected", client.wish, address=client.address)

    def ended(self, client: GatewayClient) -> None:
        self.clients.discard(client)
        if client.wish is not None and self._named.get(client.wish.client_id) is client:
            del self._named[client.wish.client_id]
            self.context.report("client disconnected", client.wish, address=client.address)

    def sent_away(self, wish: Wish) -> None:
        """Its session is gone, and it is to learn that when it comes back."""
        if len(self._sent_away) >= self.limits.connections:
            del self._sent_away[next(iter(self._sent_away))]
        self._sent_away[wish.client_id] = None

    def was_sent_away(self, wish: Wish) -> bool:
        """Asked once, when it is back."""
        if wish.client_id not in self._sent_away:
            return False
        del self._sent_away[wish.client_id]
        return True

    def forget(self, client: GatewayClient) -> None:
        """Its connection is gone; it may still have something to say to a node."""
        if client.state == ClientState.CLOSED:
            self.clients.discard(client)
