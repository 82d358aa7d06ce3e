"""The broker's statistics: an immutable snapshot of one moment.

A metric is a field of `Statistics` with a mark, and nothing else: the page for Prometheus is made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sterna.vocabulary.metrics import Counted, Gauged


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session, as an operator sees it."""

    client: str
    user: str | None
    connected: bool
    subscriptions: int
    inflight: int
    queued: int
    dropped_by_retention: int
    """Messages that waited for it longer than the journal kept them."""
    dropped_by_full_queue: int = 0
    """Messages that came when `limits.queued` waited for it already."""


@dataclass(frozen=True, slots=True)
class WaitingSums:
    """Sums over all sessions."""

    inflight: int
    queued: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """One moment of a broker.  The admin port, `$SYS`, the command line and the tests read only this."""

    uptime_s: Annotated[float, Gauged("Time since the node started.", name="uptime_seconds")] = 0.0
    packets_received: Annotated[int, Counted("MQTT packets of every kind from clients.")] = 0
    bytes_received: Annotated[int, Counted("Bytes from clients.")] = 0
    bytes_sent: Annotated[int, Counted("Bytes to clients.")] = 0
    publish_received: Annotated[int, Counted("PUBLISH packets from clients.")] = 0
    publish_sent: Annotated[int, Counted("PUBLISH packets to clients.")] = 0
    publish_bytes_received: Annotated[int, Counted("Payload bytes from clients.")] = 0
    publish_bytes_sent: Annotated[int, Counted("Payload bytes to clients.")] = 0
    packets_sent: Annotated[int, Counted("MQTT packets of every kind to clients.")] = 0
    connections: Annotated[int, Counted("Connections taken in.")] = 0
    sessions_expired: Annotated[int, Counted("Sessions that ran out.")] = 0
    throttled: Annotated[int, Counted("Times that a client sent too fast and had to wait.")] = 0
    publish_dropped: Annotated[dict[str, int], Counted("Messages a recipient did not get, by reason.")] = field(
        default_factory=dict
    )
    connections_refused: Annotated[dict[str, int], Counted("Connections refused, by reason.")] = field(
        default_factory=dict
    )
    subscriptions_refused: Annotated[dict[str, int], Counted("Topic filters refused, by reason.")] = field(
        default_factory=dict
    )
    clients_connected: Annotated[int, Gauged("Clients connected now.")] = 0
    clients_maximum: Annotated[int, Gauged("Most clients ever connected at once.")] = 0
    sessions: Annotated[int, Gauged("Sessions, connected or not.")] = 0
    subscriptions: Annotated[int, Gauged("Subscriptions of all sessions.")] = 0
    shared_subscriptions: Annotated[int, Gauged("Shared subscriptions among them.")] = 0
    expressions: Annotated[int, Gauged("Different subscriptions that compute.")] = 0
    expression_results: Annotated[int, Counted("Results of expressions.")] = 0
    expression_values: Annotated[dict[str, int], Counted("Values that did not count as sent.")] = field(
        default_factory=dict
    )
    function_calls: Annotated[int, Gauged("Messages that wait for data processing functions.")] = 0
    retained: Annotated[int, Gauged("Retained messages.")] = 0
    retained_bytes: Annotated[int, Gauged("Bytes of retained messages.")] = 0
    inflight: Annotated[int, Gauged("QoS 1 and 2 messages sent and not yet acknowledged.")] = 0
    queued: Annotated[int, Gauged("Messages waiting for their sessions.")] = 0
    journal_first_offset: Annotated[int, Gauged("Oldest message the journal keeps.")] = 0
    journal_next_offset: Annotated[int, Gauged("Offset of the next message.")] = 0
    journal_bytes: Annotated[int, Gauged("Size of the journal.")] = 0
    journal_lost: Annotated[int, Gauged("Messages whose bytes in the journal are damaged.")] = 0
    impossible_entries: Annotated[
        int, Gauged("Entries of the data directory that cannot be and were passed over at the start.")
    ] = 0
