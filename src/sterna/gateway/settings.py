"""Settings of a gateway: limits on everything a client can make large, and how long to wait for nodes.

Each class is a table of the configuration file, each field a key under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    packet_bytes: int = 1024 * 1024
    """Largest packet taken from a client or a node, fixed header included."""

    connect_bytes: int = 64 * 1024
    """Largest CONNECT, its will included."""

    unauthenticated_bytes: int = 64 * 1024 * 1024
    """Bytes held of all clients that no node has let in yet: unfinished CONNECT packets and anything behind them.  A
    client whose next bytes do not fit is refused with 0x97."""

    connections: int = 10_000
    """Clients at once; one more is refused."""

    connections_per_address: int = 10_000
    """Connections from one IP address; Unix sockets do not count."""

    connect_s: float = 10.0
    """Time from accepting a connection to a complete CONNECT, and from there to an answer."""

    output_bytes: int = 1024 * 1024
    """Bytes waiting in memory for one side before the other side is no longer read from."""

    unacknowledged: int = 1024
    """Publications and requests of one client that no node has answered yet.  MQTT 5 clients are told; others are no
    longer read from."""

    buffer_bytes: int = 4 * 1024 * 1024
    """Bytes of these.  Past it a client is no longer read from; what it sent at QoS 0 while there was no node is
    dropped before that."""

    subscription_bytes: int = 1024 * 1024
    """Bytes of topic filters remembered for one client, in case a node has lost its session."""

    user_properties: int = 64
    """User properties in one packet."""


@dataclass(frozen=True, slots=True)
class Patience:
    session_s: int = 300
    """How long nodes are to keep the session of a client while the gateway is cut off, even if the client wants none
    kept.  0: only as long as the client says."""

    window: int = 256
    """Messages a node may have sent to one client without acknowledgement: the largest `inflight` limit of the nodes.
    The gateway remembers twice as many acknowledgements.  0: none, and QoS 1 may come twice."""

    ping_s: float = 5.0
    """How often a silent node is asked whether it is there."""

    dead_after_s: float = 12.0
    """A node that said nothing for so long is given up."""

    handshake_s: float = 10.0
    """From dialling a node to its CONNACK."""

    retry_s: float = 0.1
    """Pause before all nodes are tried again; doubled each time, with jitter ..."""

    retry_max_s: float = 5.0
    """... up to this."""

    stay_s: float = 0.0
    """How long to insist on the node that has the session before the others are asked for it."""

    linger_s: float = 10.0
    """How long what a client sent last may wait for a node after the client has left."""
