"""Records of a run as its clients saw it: the only evidence the checkers look at.

Every publication has an identity that is its payload's first word, so that what arrives can be told apart for ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

IDENTITY_BYTES = 64
"""How much of a payload is looked at for its identity."""


def identity_of(payload: bytes | memoryview) -> str:
    """Its first word."""
    return bytes(payload[:IDENTITY_BYTES]).split(b" ", 1)[0].decode()


class Violation(NamedTuple):
    """A promise that was not kept."""

    claim: str
    """Which promise: a word or two."""
    detail: str
    names: tuple[str, ...] = ()
    """Lines of the trace that mention one of these tell how it came about."""


@dataclass(slots=True)
class Publication:
    identity: str
    publisher: str
    domain: str
    """The network it is published to, or a node by itself."""
    number: int
    """Counts the publisher's publications."""
    topic: bytes
    qos: int
    retain: bool
    sent_at: float | None = None
    """When its first byte left the publisher."""
    sends: int = 0
    """How often it was sent to a node."""
    nodes: set[str] = field(default_factory=set)
    """Those it was sent to."""
    acknowledged_at: float | None = None
    refused: bool = False
    abandoned: bool = False
    """Its publisher's session was over before it was acknowledged: it may arrive or not."""


@dataclass(slots=True)
class Span:
    """A subscription, from its SUBACK to the moment its holder gave it up or lost the session it belonged to."""

    client: str
    domain: str
    topic_filter: bytes
    qos: int
    since: float
    until: float | None = None
    renewals: list[float] = field(default_factory=list)
    """When it was confirmed again, in new sessions that took the place of old ones."""


class ReceivedDelivery(NamedTuple):
    at: float
    topic: bytes
    identity: str
    qos: int
    retain: bool
    node: str = ""
    """That the client was connected to."""


@dataclass(slots=True)
class LastWill:
    """The will of one connection."""

    identity: str
    client: str
    node: str
    domain: str
    topic: bytes
    qos: int
    welcomed_at: float | None = None
    aborted_at: float | None = None
    """When the client broke the connection without a word, in a way the node is told of."""


@dataclass(slots=True)
class Records:
    publications: dict[str, Publication] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    expressions: list[Span] = field(default_factory=list)
    """Subscriptions that compute: they get results, not messages."""
    arrivals: dict[str, list[ReceivedDelivery]] = field(default_factory=dict)
    new_sessions: dict[str, list[float]] = field(default_factory=dict)
    """client -> when it was told that it has a new session in the place of an old one."""
    connected: dict[str, list[float]] = field(default_factory=dict)
    """client -> when it was let in; behind a gateway, when that brought it to a node."""
    wills: dict[str, LastWill] = field(default_factory=dict)
    broken: list[Violation] = field(default_factory=list)
    """Acts of brokers that a client saw and that none may do."""
    crashes: dict[str, list[float]] = field(default_factory=dict)
    """node -> when its process was killed."""
    forgetting: dict[str, list[float]] = field(default_factory=dict)
    """foreign broker -> when it lost its session: messages in doubt are sent to it again, as the settings say."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Messages that a foreign broker sent again at QoS 1, and how often: nobody can tell them from new ones."""
    echoed: Counter[str] = field(default_factory=Counter)
    """Messages, wills among them, whose echo at QoS 1 came in from a foreign broker, and how often: the node beside it
    had forgotten in a crash that it expected them."""
    wandering: set[str] = field(default_factory=set)
    """Clients behind a gateway: it sends again what a node has not answered, to another node if it has to, and gets
    new sessions in their place."""
    arrived_count: int = 0
    gives_new_sessions: bool = False
    """A client may get a new session because its node is away.  It subscribes again, and what it is owed goes on."""
    in_flight: dict[str, set[str]] = field(default_factory=dict)
    """client -> messages at QoS 2 that were in flight in a session when that was fenced: they are not sent again."""
    unreleased: dict[str, set[str]] = field(default_factory=dict)
    """client -> messages at QoS 2 that it had, and not released, when it was told that it has a new session.  It has
    forgotten them, so that they may come once more if it goes back to the old one."""
    went_back: set[str] = field(default_factory=set)
    """Clients that went back to an old session after they had had a new one, while the nodes could not hear each other.
    To the nodes they are two publishers: a publication at QoS 2 that is not answered in the one session and repeated in
    the other is two messages, and of those retained at two nodes the one that is later by the nodes' clocks stays."""
    handed_over: dict[str, set[str]] = field(default_factory=dict)
    """client -> messages that a new session got from an old one: they come later than their turn."""
    overtaken: dict[str, set[str]] = field(default_factory=dict)
    """client -> messages that its node had waited for in vain, for ten seconds, while their publisher was elsewhere:
    they come later than their turn."""

    def repeats(self, identity: str) -> int:
        """How often it came in from foreign brokers once more."""
        return self.repeated[identity] + self.echoed[identity]

    def arrived(self, client: str, arrival: ReceivedDelivery) -> None:
        self.arrivals.setdefault(client, []).append(arrival)
        self.arrived_count += 1
