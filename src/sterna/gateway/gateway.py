"""All clients of one gateway, and what they share: the nodes, the settings, the time, the counters.

The world feeds clients and upstream connections, tells the time, dials, and keeps timers.  Nothing here waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from sterna.gateway.client import Client, State
from sterna.gateway.connecting import Wish
from sterna.gateway.ending import Ending
from sterna.gateway.relay import Relay
from sterna.gateway.servers import Servers
from sterna.gateway.settings import Limits, Patience
from sterna.gateway.upstream import Transport, Upstream
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.allowance import Allowance


class Timer(Protocol):
    def cancel(self) -> None: ...


class World(Protocol):
    """What the gateway asks of whoever runs it."""

    def dial(self, server: str, upstream: Upstream) -> None:
        """Connect, then call `upstream.connected` or `upstream.failed`; never at once."""

    def later(self, seconds: float, act: Callable[[], None]) -> Timer: ...

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know."""


class Peer(Protocol):
    """What is known of a client before it says a word."""

    @property
    def address(self) -> str: ...


class Counters:
    """Plain integers: some are touched per packet."""

    __slots__ = (
        "bytes_down",
        "bytes_up",
        "connections",
        "connections_refused",
        "dropped",
        "failures",
        "losses",
        "nonsense",
        "redirections",
        "references_refused",
        "repetitions",
        "resent",
        "sessions_ended",
        "sessions_left",
        "sessions_lost",
        "subscriptions_lost",
    )

    def __init__(self) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self.connections = 0
        self.connections_refused: Counter[str] = Counter()
        #: QoS 0 for which there was no room while there was no node.
        self.dropped = 0
        #: Nodes that could not be reached or did not take a client in.
        self.failures = 0
        #: Connections to nodes that were lost while in use.
        self.losses = 0
        #: Nodes that spoke no MQTT.
        self.nonsense = 0
        self.redirections = 0
        #: Servers that nodes named and that clients were not taken to.
        self.references_refused = 0
        #: Messages a node sent again and the client was spared.
        self.repetitions = 0
        #: Publications sent again to another node.
        self.resent = 0
        #: Sessions ended because their client wanted none to last, and those that could not be ended.
        self.sessions_ended = 0
        self.sessions_left = 0
        #: Sessions and subscriptions that a node had lost.
        self.sessions_lost = 0
        self.subscriptions_lost = 0

    def refused(self, reason: str) -> None:
        self.connections_refused[reason] += 1


class Gateway:
    def __init__(
        self,
        name: str,
        servers: Servers,
        limits: Limits,
        patience: Patience,
        world: World,
        rng: Random,
        now: float,
    ) -> None:
        self.name = name
        self.servers = servers
        self.limits = limits
        self.patience = patience
        self.rng = rng
        self.now = now
        self.counters = Counters()
        #: Bytes held of clients that no node has let in yet.
        self.unauthenticated = Allowance(limits.unauthenticated_bytes)
        #: Clients that have a node now.
        self.attached = 0
        self.clients: set[Client] = set()
        #: Those that were let in, by name.
        self._named: dict[bytes, Client] = {}
        #: Those sent away because their session was gone: a node has another one by now, with nothing in it.
        self._sent_away: dict[bytes, None] = {}
        #: Sessions being ended, by the name of their client.
        self.endings: dict[bytes, Ending] = {}
        self._world = world

    # -- what the world says --

    def at(self, now: float) -> None:
        """It is this late."""
        self.now = now

    def accept(self, transport: Transport, peer: Peer) -> Client | None:
        """A new client, or None if there are too many already (the caller drops it)."""
        if len(self.clients) >= self.limits.connections:
            self.counters.refused("connections")
            return None
        self.counters.connections += 1
        client = Relay(self, transport, peer.address)
        self.clients.add(client)
        return client

    def stop(self) -> None:
        for client in list(self.clients):
            client.stop()

    # -- what clients say --

    def admitted(self, client: Client) -> None:
        """A node has let this client in: another connection of the same name is over, if it is here."""
        assert client.wish is not None
        before = self._named.get(client.wish.client_id)
        self._named[client.wish.client_id] = client
        if before is not None:
            before.dismiss(Reason.SESSION_TAKEN_OVER, "another connection with this client identifier")
        self.report("client connected", client.wish, address=client.address)

    def ended(self, client: Client) -> None:
        self.clients.discard(client)
        if client.wish is not None and self._named.get(client.wish.client_id) is client:
            del self._named[client.wish.client_id]
            self.report("client disconnected", client.wish, address=client.address)

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

    def forget(self, client: Client) -> None:
        """Its connection is gone; it may still have something to say to a node."""
        if client.state == State.CLOSED:
            self.clients.discard(client)

    def end_session(self, wish: Wish, server: str | None, predecessor: Upstream | None, address: str) -> Ending:
        known = self.endings.get(wish.client_id)
        if known is not None:
            if predecessor is not None:
                predecessor.abort()
            return known
        ending = self.endings[wish.client_id] = Ending(self, wish, server, address)
        ending.begin(predecessor)
        return ending

    def report(self, event: str, wish: Wish | None, **fields: Any) -> None:
        if wish is not None:
            fields["client"] = wish.client_id.decode()
        self._world.report(event, fields)

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        return self._world.later(seconds, act)

    def dial(self, server: str, upstream: Upstream) -> None:
        self._world.dial(server, upstream)
