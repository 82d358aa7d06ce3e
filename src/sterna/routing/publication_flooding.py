"""Publication flooding: every neighbour gets every message, and nobody tells anybody anything.

The fewest words, the most messages: right where nearly every node wants nearly everything.
"""

from __future__ import annotations

from typing import ClassVar

from sterna.routing.strategy import MobilePathUser, RoutingOutput
from sterna.vocabulary.errors import LinkProtocolError


class PublicationFlooding:
    name: ClassVar[str] = "publication-flooding"

    def __init__(self, output: RoutingOutput) -> None:
        self._output = output
        self._links: list[str] = []

    def want(self, topic_filter: bytes) -> None:
        """Everything comes anyway."""

    def unwant(self, topic_filter: bytes) -> None:
        """It keeps coming."""

    def link_started(self, link: str) -> None:
        if link not in self._links:
            self._links = sorted([*self._links, link])
            self._output.changed(None)

    def link_ended(self, link: str) -> None:
        if link in self._links:
            self._links = [other for other in self._links if other != link]
            self._output.no_longer_wanted(link, [b"#"])
            self._output.changed(None)

    def origin_routed(self, origin: str, link: str | None) -> None:
        """Messages go everywhere: where they come from does not matter."""

    def receive(self, link: str, body: bytes) -> None:
        raise LinkProtocolError("a routing frame in a network that floods publications")

    def paths(self, epoch: int, feed: str, clients: str, user: MobilePathUser) -> None:
        """Origins announce themselves."""

    def publishing(self, topic: bytes) -> bool:
        """Nobody needs to know beforehand."""
        return False

    def links_for(self, topic: bytes) -> list[str]:
        return list(self._links)

    def flush(self) -> None:
        """Nothing is ever gathered."""

    def everything(self) -> bool:
        return True

    def table(self) -> dict[str, object]:
        return {"strategy": self.name, "links": {link: {"wants": ["everything"]} for link in self._links}}
