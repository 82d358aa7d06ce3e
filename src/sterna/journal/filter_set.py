"""A set of topic filters: does it match a topic?  Each topic is matched once and remembered, up to a bound."""

from __future__ import annotations

from collections.abc import Iterable

from sterna.mqtt.topics import REMEMBERED_TOPIC_BYTES, FilterTree

#: Topics whose answer is known; past this all are forgotten.
KNOWN_MAX = 65536


class FilterSet:
    """`topic in FilterSet(filters)`."""

    __slots__ = ("_known", "_tree")

    def __init__(self, filters: Iterable[bytes]) -> None:
        self._tree: FilterTree[bytes, bool] = FilterTree()
        self._known: dict[bytes, bool] = {}
        for topic_filter in filters:
            self._tree.add(topic_filter, topic_filter, True)

    def __contains__(self, topic: object) -> bool:
        assert isinstance(topic, bytes)
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = bool(self._tree.match(topic))
            if len(topic) <= REMEMBERED_TOPIC_BYTES:
                self._known[topic] = known
        return known
