"""Everything a client can make big, and how big it may get: the `[limits]` table of a node's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sterna.vocabulary.settings import Allowed

LIMITS_TOLD: Final = frozenset({"receive_maximum", "topic_aliases", "user_properties"})
"""Fixed while a node runs: connected clients were told the first two and would break others unknowingly; the third is
read with every acknowledgement, by code that does not look it up again."""


@dataclass(slots=True)
class Limits:
    """A node that reads its configuration again changes them, but for `receive_maximum`, `topic_aliases` and
    `user_properties`, which need a restart."""

    # The largest of MQTT: 4 bytes of length count to 268,435,455.
    packet_bytes: Annotated[int, Allowed(128, 268_435_460)] = 1024 * 1024
    """Largest packet taken from a client, fixed header included.  MQTT itself allows 256 MiB."""

    connect_bytes: Annotated[int, Allowed(128, 268_435_460)] = 64 * 1024
    """Largest CONNECT, its will included, and largest packet taken from a client before it is authenticated."""

    unauthenticated_bytes: Annotated[int, Allowed(65536)] = 64 * 1024 * 1024
    """Bytes held of all clients that are not authenticated yet: unfinished CONNECT packets and anything behind them.  A
    client whose next bytes do not fit is refused with 0x97."""

    connections: Annotated[int, Allowed(1)] = 100_000
    """Client connections at once; one more is refused with 0x97 (quota exceeded)."""

    connections_per_address: Annotated[int, Allowed(1)] = 10_000
    """Connections from one IP address, those in the middle of a TLS handshake included; Unix sockets do not count."""

    sessions: Annotated[int, Allowed(1)] = 1_000_000
    """Sessions kept, connected or not."""

    sessions_per_user: int = 100_000
    """Sessions of one user, connected or not; one more is refused with 0x97.  Anonymous clients count as one user."""

    will_bytes: int = 256 * 1024 * 1024
    """Bytes of the wills of all sessions together; a client whose will does not fit is refused with 0x97."""

    session_expiry_s: Annotated[int, Allowed(0, 2**32 - 1)] = 7 * 24 * 3600
    """Longest a session may outlive its connection; a client that asks for more is told this value."""

    client_id_bytes: int = 1024
    """Bytes in a client identifier.  It stands beside every message in the journal."""

    subscriptions_per_client: int = 10_000
    """Subscriptions of one session; one more is refused with 0x97."""

    subscription_bytes_per_client: int = 16 * 1024 * 1024
    """Memory for the subscriptions of one session: 1 KiB for each, and twice the bytes of its filter; one more is
    refused with 0x97."""

    subscription_bytes: int = 4 * 1024 * 1024 * 1024
    """The same for all sessions together."""

    overlapping_filters: int = 64
    """Filters of one session that a single topic might match at once: those whose wildcards stand in different places
    (`a/+/c` and `b/+/d` count once, `+/b/c` counts separately) and those shared in different groups; one more is
    refused with 0x97.  It bounds what one client's subscriptions can add to the cost of anybody's message."""

    filters_per_packet: int = 1024
    """Topic filters in one SUBSCRIBE or UNSUBSCRIBE; a packet with more ends the connection with 0x97."""

    # One stack frame each.
    topic_levels: Annotated[int, Allowed(1, 512)] = 128
    """Levels in a topic name or filter.  Matching may recurse once per level, so this also bounds the stack."""

    topic_bytes: Annotated[int, Allowed(1, 65535)] = 4096
    """Bytes in a topic name or filter."""

    inflight: Annotated[int, Allowed(1, 65535)] = 64
    """QoS 1 and 2 messages sent to one client and not yet acknowledged; its own Receive Maximum may lower it."""

    inflight_bytes: Annotated[int, Allowed(1)] = 4 * 1024 * 1024
    """Bytes of messages sent to one client and not yet acknowledged, past which no further one is sent.  A single
    message may be larger."""

    receive_maximum: Annotated[int, Allowed(1, 65535)] = 65535
    """QoS 1 and 2 messages one client may send before they are answered; told to MQTT 5 clients, enforced for all.
    The default is what packet identifiers allow: many clients send everything again at once after a reconnect."""

    client_messages_per_s: Annotated[float, Allowed(0)] = 0
    """Messages a second that are read from one client, after a burst of one second's worth; 0: any number.  A client
    that sends faster is not read from for a while, so that it has to wait; nothing is lost."""

    client_bytes_per_s: Annotated[float, Allowed(0)] = 0
    """The same in bytes, of all its packets."""

    queued: int = 1_000_000
    """Messages waiting for one session or one group of a shared subscription (as journal offsets, 9 bytes each); a
    further one is dropped, counted (`sterna_publish_dropped_total{reason="queue-full"}`, and for each session under
    `/sessions`) and logged once."""

    shared_queued: int = 10_000_000
    """Messages waiting in all groups of shared subscriptions together.  Half of it is for the first that come, half is
    divided evenly among the groups."""

    output_bytes: Annotated[int, Allowed(1024)] = 1024 * 1024
    """Bytes waiting in memory for one connection; past it QoS 0 is dropped and QoS 1 and 2 wait in the journal."""

    expressions: int = 10_000
    """Different expressions (subscriptions that compute) of all clients together."""

    overlapping_expressions: int = 200
    """Expressions that a single message might concern: those whose filters can match the same topic; one more is
    refused.  A user (a client, if it is anonymous) may hold no more of them than are still free, so that nobody can
    take them all."""

    expressions_per_client: int = 100
    """Expressions one client may subscribe to."""

    function_calls: int = 10_000
    """Messages that wait for data processing functions (at QoS 1 and 2 as journal offsets); beyond it, new ones are
    counted and not computed."""

    function_bytes: int = 64 * 1024 * 1024
    """Bytes of messages at QoS 0 that wait for data processing functions."""

    retained: int = 1_000_000
    """Retained messages; a further topic is refused with 0x97."""

    retained_bytes: int = 1024 * 1024 * 1024
    """Memory for retained messages: 1 KiB for each, its payload and properties, and twice the bytes of its topic; a
    further one is refused with 0x97 (`sterna_retained_bytes` counts topics, payloads and properties alone)."""

    user_properties: int = 64
    """User properties in one packet."""

    topic_aliases: Annotated[int, Allowed(0, 65535)] = 64
    """Topic aliases a client may define, and the most that the node defines towards one."""

    connect_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """Time from accepting a connection to a complete CONNECT, an exchange of AUTH packets included."""

    keep_alive_s: Annotated[int, Allowed(0, 65535)] = 0
    """Longest keep-alive a client may ask for (0: any).  MQTT 5 clients that ask for more are told this value."""
