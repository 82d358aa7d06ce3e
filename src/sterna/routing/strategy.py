"""The interface of a routing strategy: its calls, the calls it may make, and its settings.

A strategy is about tables only: local subscriptions and frames from neighbours go in, `links_for(topic)` comes out.
It relies on link sessions that lose and reorder nothing; when a session ends, everything said in it is void.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from sterna.routing.carried import CARRIES, NONE
from sterna.routing.paths import PathTable
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp
from sterna.vocabulary.settings import Allowed, Choice


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Tables of the routing strategies."""

    advertisement_idle_s: float = 300.0
    """A topic on which no client of this node has published for so long (at most twice as long) is no longer
    advertised. Less keeps the tables of the whole network smaller; more spares sporadic publishers another
    advertisement."""
    advertised_topics_max: int = 1000
    """Topics a node advertises one by one.  Above it, topics that begin alike become one `prefix/#`: less exact, never
    wrong."""
    filters_per_link: Annotated[int, Allowed(1000, 2**40)] = 1_000_000
    """Filters one neighbour may ask for, and advertise, on behalf of everybody behind it; with more its link is
    ended."""
    filter_bytes_per_link: Annotated[int, Allowed(1024 * 1024, 2**40)] = 256 * 1024 * 1024
    """Bytes of these filters."""
    carry: Annotated[str, Choice(CARRIES)] = NONE
    """With `strategy = "mobile"`: messages this node keeps for nodes that are away, to hand them on when it meets them:
    those for nodes that were last reached through it (`"parked"`), or everything it meets (`"all"`)."""
    carry_bytes: Annotated[int, Allowed(64 * 1024, 2**40)] = 64 * 1024 * 1024
    """Bytes of messages carried, in memory; the oldest are dropped first, and counted."""
    carry_age_s: Annotated[float, Allowed(1, 2**40)] = 24 * 3600.0
    """Messages are carried for so long."""
    news_s: Annotated[float, Allowed(0.1, 60)] = 1.0
    """With `strategy = "mobile"`: how long news is gathered for neighbours that need not know at once.
    Higher: less air time where nodes move much; tables are right later."""
    forget_nodes_s: Annotated[float, Allowed(1, 2**40)] = 7 * 24 * 3600.0
    """With `strategy = "mobile"`: a node that has been away for so long is forgotten, with what it wants."""

    def check_amount(self, filters: int, size: int) -> None:
        if filters > self.filters_per_link or size > self.filter_bytes_per_link:
            text = f"more than {self.filters_per_link} filters, or {self.filter_bytes_per_link} bytes of them"
            raise LinkProtocolError(f"{text}; if so many are meant, raise filters_per_link in [network.routing]")


Shares = list[tuple[bytes, int]]
"""Shared subscriptions with members at a node, and how many."""


class MobilePathUser(Protocol):
    """The rest of a router, told and asked."""

    def session_of(self, link: str) -> int: ...
    def path_in_doubt(self, origin: str, link: str) -> None:
        """Messages of this origin may have been missed, and come by this link from now on."""

    def frontier_heard(self, origin: str, frontier: Stamp) -> None:
        """The messages of this origin have come so far."""

    def path_left(self, origin: str, link: str) -> None: ...
    def path_lost(self, origin: str) -> None: ...
    def shares_announced(self, origin: str, shares: Shares) -> None: ...
    def namesake_found(self, link: str) -> None: ...
    def offers_changed(self) -> None:
        """Others may carry other messages for us than before."""

    def frontier(self) -> Stamp: ...
    def upward(self) -> tuple[str, ...] | None:
        """The neighbours towards the leader, the one to keep first; None: the overlay has no such thing."""


class RoutingOutput(Protocol):
    """The node, as its strategy sees it."""

    def send(self, link: str, body: bytes) -> None:
        """One routing frame to a neighbour."""

    def refetch(self, origin: str) -> None:
        """Interest of this node's own clients has just come to reach this origin: messages may have passed before."""

    def changed(self, topic_filter: bytes | None) -> None:
        """For topics this filter matches (None: all), ask `links_for` again, and say `publishing` again."""

    def no_longer_wanted(self, link: str, filters: list[bytes]) -> None:
        """A neighbour has taken these back, or its session has ended."""


class Strategy(Protocol):
    name: ClassVar[str]

    def want(self, topic_filter: bytes) -> None:
        """A local subscription with this filter begins; the filter of a shared one without `$share/group/`."""

    def unwant(self, topic_filter: bytes) -> None:
        """As often as `want` was called, it is taken back by this."""

    def link_started(self, link: str) -> None:
        """A new link session: the neighbour knows nothing of us, and we nothing of what lies behind it."""

    def link_ended(self, link: str) -> None:
        """Everything this neighbour told us is void."""

    def origin_routed(self, origin: str, link: str | None) -> None:
        """The route to an origin is set, has moved, or is gone."""

    def receive(self, link: str, body: bytes) -> None:
        """A routing frame of this session; raises `LinkProtocolError` on one that makes no sense."""

    def paths(self, epoch: int, feed: str, clients: str, user: MobilePathUser) -> PathTable | None:
        """The paths that it keeps itself; None: origins announce themselves."""

    def publishing(self, topic: bytes) -> bool:
        """A local client publishes on this topic: said on first use, and on the first use after `changed`.

        True if the neighbours are only now being told, so that those who want it cannot have said so yet.
        """

    def links_for(self, topic: bytes) -> list[str]:
        """The neighbours that want this topic, in the order of their names."""

    def flush(self) -> None:
        """Send what has been gathered: at the end of each turn, and before a control frame passes."""

    def everything(self) -> bool:
        """Do all links always want everything?"""

    def table(self) -> dict[str, object]:
        """The tables as text and numbers, for people and for checkers."""
