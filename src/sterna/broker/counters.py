"""Counters of the broker: live ones, which are touched on the hot path."""

from __future__ import annotations

from sterna.broker.topic_counts import PublishedTopics
from sterna.broker.topic_flows import TopicFlows
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.histogram import Histogram

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
        "delivery_took",
        "flows",
        "impossible_entries",
        "losing",
        "moves_took",
        "observer",
        "packets_received",
        "publish_bytes_received",
        "publish_bytes_sent",
        "publish_dropped",
        "publish_received",
        "publish_sent",
        "sessions_expired",
        "subscriptions_refused",
        "throttled",
    )

    def __init__(self) -> None:
        #: Looks at every publication of a client; None as long as nobody asks.
        self.observer: PublishedTopics | None = None
        #: Looks at every message that is delivered here; None as long as nobody asks.
        self.flows: TopicFlows | None = None
        self.packets_received = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        #: Packets sent other than PUBLISH.
        self.answers_sent = 0
        #: From entering the network to being given to subscribers here: of some messages, see `Ingress.deliver`.
        self.delivery_took = Histogram()
        #: Of sessions that went to other nodes.
        self.moves_took = Histogram()
        self.connections = 0
        self.sessions_expired = 0
        #: Times that a client had to wait because it sent faster than it may.
        self.throttled = 0
        #: Of the data directory, passed over at the start.
        self.impossible_entries = 0
        #: reason -> messages (once per recipient that did not get it).
        self.publish_dropped: dict[str, int] = {}
        #: reason -> connections.
        self.connections_refused: dict[str, int] = {}
        #: reason -> filters of SUBSCRIBE packets.
        self.subscriptions_refused: dict[str, int] = {}
        #: Sessions that have begun to lose messages since somebody last looked, and why; at most LOSING_MAX.
        self.losing: list[tuple[str, str]] = []

    def dropped(self, reason: DropReason, count: int = 1) -> None:
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
