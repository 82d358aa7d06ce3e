"""Settings of a gateway: limits on what a client can make big, and how patient the gateway is with nodes.

Each class is a table of its configuration file, each field a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sterna.gateway.deliveries import WINDOW_MAX
from sterna.vocabulary.settings import Allowed

GATEWAY_LIMITS_TOLD: Final = frozenset({"packet_bytes", "unacknowledged"})
"""Fixed while a gateway runs: connected clients and nodes were told them."""


@dataclass(slots=True)
class GatewayLimits:
    """A gateway that reads its configuration again changes them, but for `packet_bytes` and `unacknowledged`, which
    need a restart."""

    packet_bytes: Annotated[int, Allowed(128, 268_435_460)] = 1024 * 1024
    """Largest packet taken from a client or a node, fixed header included; MQTT 5 clients are told."""

    connect_bytes: Annotated[int, Allowed(128, 268_435_460)] = 64 * 1024
    """Largest CONNECT, its will included."""

    unauthenticated_bytes: Annotated[int, Allowed(65536)] = 64 * 1024 * 1024
    """Bytes held of all clients that no node has let in yet: unfinished CONNECT packets and anything behind them.  A
    client whose next bytes do not fit is refused with 0x97."""

    connections: Annotated[int, Allowed(1)] = 10_000
    """Clients at once; one more is refused."""

    connections_per_address: Annotated[int, Allowed(1)] = 10_000
    """Connections from one IP address; Unix sockets do not count."""

    connect_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """Time from accepting a connection to a complete CONNECT, and from there to an answer."""

    output_bytes: Annotated[int, Allowed(1024)] = 1024 * 1024
    """Bytes waiting in memory for one side before the other side is no longer read from."""

    unacknowledged: Annotated[int, Allowed(1, 65535)] = 1024
    """Publications and requests of one client that no node has answered yet.  MQTT 5 clients are told; others are no
    longer read from."""

    buffer_bytes: Annotated[int, Allowed(1024)] = 4 * 1024 * 1024
    """Bytes of these.  Past it a client is no longer read from.  Messages at QoS 0 that wait for a node may take half
    of it; further ones are dropped."""

    subscription_bytes: int = 1024 * 1024
    """Bytes of topic filters remembered for one client, in case a node has lost its session."""

    user_properties: int = 64
    """User properties in one packet."""


@dataclass(frozen=True, slots=True)
class Patience:
    session_s: Annotated[int, Allowed(0, 2**32 - 1)] = 300
    """How long nodes are to keep the session of a client while the gateway is cut off, even if the client wants none
    kept.  0: only as long as the client says."""

    window: Annotated[int, Allowed(0, WINDOW_MAX)] = 256
    """Messages a node may have sent to one client without acknowledgement: the largest `inflight` limit of the nodes.
    The gateway remembers twice as many acknowledgements.  0: none, and QoS 1 may come twice."""

    ping_s: Annotated[float, Allowed(0.05, 3600)] = 5.0
    """How often a silent node is asked whether it is there."""

    dead_after_s: Annotated[float, Allowed(0.1, 86400)] = 12.0
    """A node that said nothing for so long is given up."""

    handshake_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """From dialling a node to its CONNACK."""

    retry_s: Annotated[float, Allowed(0.001, 3600)] = 0.1
    """Pause before all nodes are tried again; doubled each time, with jitter, ..."""

    retry_max_s: Annotated[float, Allowed(0.001, 3600)] = 5.0
    """... up to this."""

    stay_s: Annotated[float, Allowed(0, 86400)] = 0.0
    """How long to insist on the node that has the session before the others are asked for it."""

    linger_s: Annotated[float, Allowed(0, 3600)] = 10.0
    """How long the last publications of a client may wait for a node after the client has left."""
