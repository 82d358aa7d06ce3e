"""The context that all clients of one gateway share: settings, nodes, time, counters, and the world that dials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from sterna.gateway.connecting import Wish
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.vocabulary.allowance import Allowance

if TYPE_CHECKING:
    from sterna.gateway.upstream import Upstream


class Timer(Protocol):
    def cancel(self) -> None: ...


class GatewayWorld(Protocol):
    """The services of the process or simulator that runs the gateway."""

    def dial(self, server: str, upstream: Upstream) -> None:
        """Connect, then call `upstream.connected` or `upstream.failed`; never at once."""

    def later(self, seconds: float, act: Callable[[], None]) -> Timer: ...

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know."""


class GatewayCounters:
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
        "not_kept",
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
        #: Publications at QoS 2 of clients of a foreign broker of which no copy was kept until their release.
        self.not_kept = 0
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


class GatewayContext:
    __slots__ = (
        "_world",
        "attached",
        "counters",
        "limits",
        "name",
        "now",
        "patience",
        "rng",
        "servers",
        "unauthenticated",
    )

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
        self.name = name
        self.servers = servers
        self.limits = limits
        self.patience = patience
        self.rng = rng
        self.now = now
        self.counters = GatewayCounters()
        #: Bytes held of clients that no node has let in yet.
        self.unauthenticated = Allowance(limits.unauthenticated_bytes)
        #: Clients that have a node now.
        self.attached = 0
        self._world = world

    def report(self, event: str, wish: Wish | None, **fields: Any) -> None:
        if wish is not None:
            fields["client"] = wish.client_id.decode()
        self._world.report(event, fields)

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        return self._world.later(seconds, act)

    def dial(self, server: str, upstream: Upstream) -> None:
        self._world.dial(server, upstream)
