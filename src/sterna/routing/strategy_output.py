"""The calls that a strategy makes to its router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.routing.link_frames import Frame

if TYPE_CHECKING:
    from sterna.routing.router import Router


class StrategyOutput:
    """The router as its strategy sees it."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def send(self, link: str, body: bytes) -> None:
        self._router.send(link, Frame.ROUTING, body)

    def refetch(self, origin: str) -> None:
        self._router.streams.refetch(origin)

    def changed(self, topic_filter: bytes | None) -> None:
        self._router.changed(topic_filter)

    def no_longer_wanted(self, link: str, filters: list[bytes]) -> None:
        self._router.losses.no_longer_wanted(link, filters)
