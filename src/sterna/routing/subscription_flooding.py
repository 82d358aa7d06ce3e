"""Subscription flooding: every neighbour is told what the rest of the network, seen from it, wants.

A message then travels only towards nodes that want it.  Filters that others cover are not told; when the covering one
goes, they are.
"""

from __future__ import annotations

from typing import ClassVar

from sterna.routing.interest import InterestTable
from sterna.routing.routing_frames import RoutingKind, decode
from sterna.routing.strategy import MobilePathUser, RoutingOutput, RoutingSettings
from sterna.vocabulary.errors import LinkProtocolError


class SubscriptionFlooding:
    name: ClassVar[str] = "subscription-flooding"

    def __init__(self, output: RoutingOutput, settings: RoutingSettings | None = None) -> None:
        self._interest = InterestTable(output, settings=settings)

    def want(self, topic_filter: bytes) -> None:
        self._interest.want(topic_filter)

    def unwant(self, topic_filter: bytes) -> None:
        self._interest.unwant(topic_filter)

    def link_started(self, link: str) -> None:
        self._interest.link_started(link)

    def link_ended(self, link: str) -> None:
        self._interest.link_ended(link)

    def origin_routed(self, origin: str, link: str | None) -> None:
        """Interest goes everywhere: where messages come from does not matter."""

    def receive(self, link: str, body: bytes) -> None:
        frame = decode(body)
        if frame.kind not in (RoutingKind.ADD, RoutingKind.REMOVE):
            raise LinkProtocolError("an advertisement in a network that floods subscriptions")
        self._interest.receive(link, frame.kind, frame.filters)

    def paths(self, epoch: int, feed: str, clients: str, user: MobilePathUser) -> None:
        """Origins announce themselves."""

    def publishing(self, topic: bytes) -> bool:
        """Nobody needs to know beforehand."""
        return False

    def links_for(self, topic: bytes) -> list[str]:
        return self._interest.links_for(topic)

    def flush(self) -> None:
        self._interest.flush()

    def everything(self) -> bool:
        return False

    def table(self) -> dict[str, object]:
        return {"strategy": self.name, **self._interest.table()}
