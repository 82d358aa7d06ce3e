"""Counters of the broker: live ones on the hot path, and the immutable snapshot that all others read."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Losers named to the operator at a time.
LOSING_MAX = 100


class Counters:
    """Mutable, one per broker.  Plain integers in slots because they are touched per message."""

    __slots__ = (
        "answers_sent",
        "bytes_received",
        "bytes_sent",
        "connections",
        "connections_refused",
        "impossible_entries",
        "losing",
        "packets_received",
        "publish_bytes_received",
        "publish_bytes_sent",
        "publish_dropped",
        "publish_received",
        "publish_sent",
        "sessions_expired",
        "subscriptions_refused",
    )

    def __init__(self) -> None:
        self.packets_received = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        #: Packets sent other than PUBLISH.
        self.answers_sent = 0
        self.connections = 0
        self.sessions_expired = 0
        #: Of the data directory, passed over at the start.
        self.impossible_entries = 0
        #: reason -> messages (once per recipient that did not get it).
        self.publish_dropped: dict[str, int] = {}
        #: reason -> connections.
        self.connections_refused: dict[str, int] = {}
        #: reason -> filters of SUBSCRIBE packets.
        self.subscriptions_refused: dict[str, int] = {}
        #: Who has begun to lose messages since somebody last looked, and why; at most LOSING_MAX.
        self.losing: list[tuple[str, str]] = []

    def dropped(self, reason: str, count: int = 1) -> None:
        """An empty reason means that another node counts this loss."""
        if not reason:
            return
        self.publish_dropped[reason] = self.publish_dropped.get(reason, 0) + count

    def begins_to_lose(self, who: str, reason: str) -> None:
        if len(self.losing) < LOSING_MAX:
            self.losing.append((who, reason))

    def refused(self, reason: str) -> None:
        self.connections_refused[reason] = self.connections_refused.get(reason, 0) + 1

    def subscription_refused(self, reason: str) -> None:
        self.subscriptions_refused[reason] = self.subscriptions_refused.get(reason, 0) + 1


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
class Statistics:
    """One moment of a broker.  The admin port, `$SYS`, the command line and the tests read only this."""

    uptime_s: float = 0.0
    packets_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    publish_received: int = 0
    publish_sent: int = 0
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    packets_sent: int = 0
    connections: int = 0
    sessions_expired: int = 0
    publish_dropped: dict[str, int] = field(default_factory=dict)
    connections_refused: dict[str, int] = field(default_factory=dict)
    subscriptions_refused: dict[str, int] = field(default_factory=dict)
    clients_connected: int = 0
    clients_maximum: int = 0
    sessions: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0
    expressions: int = 0
    expression_results: int = 0
    expression_values: dict[str, int] = field(default_factory=dict)
    function_calls: int = 0
    retained: int = 0
    retained_bytes: int = 0
    inflight: int = 0
    queued: int = 0
    journal_first_offset: int = 0
    journal_next_offset: int = 0
    journal_bytes: int = 0
    journal_lost: int = 0
    impossible_entries: int = 0
