"""Which topics cross: those that come from the foreign broker into the network, and those that go there."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.interworking.filters import disjoint_filters
from sterna.interworking.ports import OwnBroker
from sterna.journal.filter_set import FilterSet


class CrossingTopics:
    def __init__(self, from_broker: Sequence[str], to_broker: Sequence[str], own: OwnBroker) -> None:
        self._own = own
        self.from_broker = disjoint_filters(from_broker)
        self.to_broker = [topic_filter.encode() for topic_filter in to_broker]
        self._in = FilterSet(self.from_broker)
        self._out = FilterSet(self.to_broker)

    def comes_in(self, topic: bytes) -> bool:
        """HOT."""
        return topic in self._in and self._own.takes(topic)

    def goes_out(self, topic: bytes) -> bool:
        return topic in self._out
