"""Connections to feeds that the driver of a query keeps between its questions."""

from __future__ import annotations

from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.options import Access
from sterna.pipeline.source.nodes import open_feed


class KeptFeeds:
    """For one thread at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._feeds: dict[str, FeedClient] = {}

    def at(self, address: str) -> FeedClient:
        if address not in self._feeds:
            self._feeds[address] = open_feed(self._access, address)
        return self._feeds[address]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
