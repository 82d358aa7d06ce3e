"""The topic tree for people who look: it is counted from the first question until `LEASE_S` after the last.

Until then and after it costs nothing.  Retained messages are added first, `RETAINED_AT_ONCE` messages a turn, so that
nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any

import msgspec

from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.deadlines import Deadlines
from sterna.broker.topic_counts import (
    HISTORY_PAYLOAD_KEPT,
    PAYLOAD_KEPT,
    MessageWatch,
    PublishedTopics,
    TopicHistory,
    TopicNode,
    shown,
    topic_text,
)
from sterna.mqtt.message import Message

RETAINED_MAX = 200_000
"""Levels with and without a retained message that are looked at when counting begins."""
RETAINED_AT_ONCE = 1_000
WATCHES_MAX = 8
HISTORIES_MAX = 32
"""Topics that are looked at one by one; of more, the one that was not asked about longest goes."""
LEASE_S = 10.0
ROUND_S = 1.0
SOON_S = 0.005
"""Between two turns in which retained messages are added."""

Row = dict[str, Any]


class TopicPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of the question `topic-tree`, as JSON."""

    prefix: str | None = None
    """The level whose children are wanted; None: the first levels."""
    after: str | None = None
    """Names after this one."""


class WatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of the question `watch`, as JSON."""

    id: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    filter: str
    after: dict[str, int] = {}


class TopicTrees:
    """The tree of one broker, as long as somebody asks."""

    def __init__(self, state: BrokerState, clock: BrokerClock, deadlines: Deadlines) -> None:
        self._state = state
        self._clock = clock
        self._deadlines = deadlines
        self._now: PublishedTopics | None = None
        #: Retained messages that are still to be added to the tree.
        self._retained: Iterator[Message | None] | None = None

    def _tree(self) -> PublishedTopics:
        tree = self._now
        if tree is None:
            tree = self._now = self._state.counters.observer = PublishedTopics(self._clock)
            self._retained = islice(self._state.retained.walk(b"#"), RETAINED_MAX)
            self._add_retained()
            self._deadlines.at(self._clock.now + ROUND_S, self._round)
        tree.asked_at = self._clock.now
        return tree

    def _add_retained(self) -> None:
        tree = self._now
        if tree is None or self._retained is None:
            return
        looked_at = 0
        for message in islice(self._retained, RETAINED_AT_ONCE):
            looked_at += 1
            if message is not None and not message.topic.startswith(b"$"):
                tree.add_retained(message)
        if looked_at < RETAINED_AT_ONCE:
            self._retained = None
            return
        self._deadlines.at(self._clock.now + SOON_S, self._add_retained)

    def _round(self) -> None:
        tree, now = self._now, self._clock.now
        if tree is None:
            return
        tree.turn_over()
        tree.watches = {name: one for name, one in tree.watches.items() if now - one.asked_at < LEASE_S}
        tree.histories = {topic: one for topic, one in tree.histories.items() if now - one.asked_at < LEASE_S}
        if now - tree.asked_at >= LEASE_S:
            self._now = self._state.counters.observer = self._retained = None
            return
        self._deadlines.at(now + ROUND_S, self._round)

    def children(self, page: TopicPage, node: str, most: int) -> tuple[list[Row], bool]:
        """Rows of the levels below a prefix by name, and whether there are more."""
        tree = self._tree()
        prefix = page.prefix.encode() if page.prefix is not None else None
        found = tree.below(prefix)
        if found is None:
            return [], False
        after = page.after.encode() if page.after is not None else None
        names = nsmallest(most + 1, (name for name in found.children if after is None or name > after))
        rows = [self._row(tree, prefix, name, found.children[name], node) for name in names[:most]]
        return rows, len(names) > most

    def topic(self, topic: bytes, node: str) -> list[Row]:
        """The row of one level, with the last messages on it; none if it is not known yet."""
        tree = self._tree()
        found = tree.below(topic)
        history = self._history(tree, topic, found)
        if found is None:
            return []
        prefix, slash, name = topic.rpartition(b"/")
        row = self._row(tree, prefix if slash else None, name, found, node, HISTORY_PAYLOAD_KEPT)
        return [{**row, "recent": [{**one, "node": node} for one in history.rows()]}]

    def _history(self, tree: PublishedTopics, topic: bytes, found: TopicNode | None) -> TopicHistory:
        histories = tree.histories
        history = histories.get(topic)
        if history is None:
            if len(histories) >= HISTORIES_MAX:
                del histories[min(histories, key=lambda one: histories[one].asked_at)]
            history = histories[topic] = TopicHistory(self._clock.now)
            if found is not None and found.is_topic:
                history.saw(found.at, found.last_bytes, found.last)
        history.asked_at = self._clock.now
        return history

    def _row(
        self,
        tree: PublishedTopics,
        prefix: bytes | None,
        name: bytes,
        found: TopicNode,
        node: str,
        retained_shown: int = PAYLOAD_KEPT,
    ) -> Row:
        topic = name if prefix is None else prefix + b"/" + name
        retained = self._state.retained.get(topic) if found.is_topic else None
        return {
            "node": node,
            "name": topic_text(name),
            "topic": topic_text(topic),
            "topics": found.topics,
            "has_children": bool(found.children),
            "messages": found.messages,
            "bytes": found.bytes,
            "seconds": round(self._clock.now - tree.began_at, 3),
            "stride": tree.stride,
            "left_out": tree.left_out,
            "is_counting": self._retained is not None,
            "last": shown(found.last) if found.is_topic else None,
            "last_bytes": found.last_bytes,
            "age_s": round(max(0.0, self._clock.wall - found.at), 1) if found.is_topic else None,
            "retained": shown(retained.payload, retained_shown) if retained is not None else None,
            "retained_bytes": len(retained.payload) if retained is not None else 0,
            "retained_age_s": round(max(0.0, self._clock.wall - retained.received_at), 1)
            if retained is not None
            else None,
        }

    def watch(self, request: WatchRequest, node: str, most: int) -> tuple[list[Row], bool]:
        """The next messages of a watch.  ValueError if there are too many watches."""
        tree = self._tree()
        watch = tree.watches.get(request.id)
        if watch is None:
            if len(tree.watches) >= WATCHES_MAX:
                raise ValueError(f"{WATCHES_MAX} watches are on already; close one, and wait {LEASE_S:.0f} s")
            began = int(self._clock.wall * 1e6)  # a watch that was forgotten and is made again gives higher numbers
            watch = tree.watches[request.id] = MessageWatch(request.filter.encode(), self._clock.now, began)
        watch.asked_at = self._clock.now
        after = request.after.get(node, 0)
        found = [{**row, "node": node} for row in watch.messages if row["number"] > after]
        return found[-most:], len(found) > most


#: Values of a row whose newest counts, each group behind its age.
_BY_AGE = (("age_s", "last", "last_bytes"), ("retained_age_s", "retained", "retained_bytes"))


def merged_levels(rows: list[Row]) -> list[Row]:
    """The rows of all nodes for one place of the tree, each level once, by name: counts are added up, the newest
    message counts, and the newest retained one.  Nodes know different topics, so `topics` is the least that there can
    be."""
    found: dict[str, Row] = {}
    for row in rows:
        one = found.get(row["name"])
        if one is None:
            found[row["name"]] = dict(row)
            continue
        one["messages"] += row["messages"]
        one["bytes"] += row["bytes"]
        one["topics"] = max(one["topics"], row["topics"])
        one["has_children"] |= row["has_children"]
        for age, *values in _BY_AGE:
            if row[age] is not None and (one[age] is None or row[age] < one[age]):
                one.update({key: row[key] for key in (age, *values)})
    return [found[name] for name in sorted(found)]
