"""Counts of publications by topic: a tree of levels with the last message of each topic, within bounds.

The tree takes at most `TREE_BYTES_MAX`.  Of more than `SAMPLED_MAX` pieces a second (a run of packets on one topic is
one piece) one of n is looked at, and counts for itself and those passed over before it.  The steps are uneven, or
publishers that take turns would be seen or missed always.  A watch keeps the last messages of a filter, and a history
those of one topic.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from sterna.broker.clock import BrokerClock
from sterna.mqtt.message import Message
from sterna.mqtt.topics import Levels, levels_of, matches

TREE_BYTES_MAX = 96 * 1024 * 1024
"""Topics for which there is no room are counted together."""
NODE_BYTES = 640
"""One level of a topic takes so much, and its name."""
SAMPLED_MAX = 2_000
"""Pieces a second that are looked at for the tree."""
WATCHED_MAX = 1_000
"""Pieces a second that are looked at for watches."""
MESSAGES_KEPT = 100
"""By each watch, for the next question."""
PAYLOAD_KEPT = 256
HISTORY_KEPT = 10
"""Messages of a topic that somebody looks at, ..."""
HISTORY_PAYLOAD_KEPT = 4096
"""... with so much of each."""

Row = dict[str, Any]


class TopicNode:
    """One level of the tree, with all below it."""

    __slots__ = ("at", "bytes", "children", "is_topic", "last", "last_bytes", "messages", "topics")

    def __init__(self) -> None:
        self.children: dict[bytes, TopicNode] = {}
        #: Of this level and all below.
        self.messages = 0
        self.bytes = 0
        self.topics = 0
        #: Of this level itself.
        self.is_topic = False
        self.last = b""
        self.last_bytes = 0
        self.at = 0.0


class MessageWatch:
    """The last messages that match a filter."""

    def __init__(self, topic_filter: bytes, now: float, number: int) -> None:
        """Messages are numbered from `number` on.  It must be above all numbers that a watch of the same name gave, as
        readers ask for those after the last one."""
        self.topic_filter: Levels = levels_of(topic_filter)
        self.asked_at = now
        self.messages: deque[Row] = deque(maxlen=MESSAGES_KEPT)
        self._number = number

    def saw(self, levels: list[bytes], row: Row) -> None:
        if matches(self.topic_filter, levels):
            self._number += 1
            self.messages.append({**row, "number": self._number})


class TopicHistory:
    """The last messages of one topic; of a run of packets, the last one."""

    def __init__(self, now: float) -> None:
        self.asked_at = now
        self._messages: deque[tuple[float, int, bytes]] = deque(maxlen=HISTORY_KEPT)

    def saw(self, at: float, size: int, payload: bytes) -> None:
        """`payload`: as much of it as is known."""
        self._messages.append((at, size, payload[:HISTORY_PAYLOAD_KEPT]))

    def rows(self) -> list[Row]:
        return [
            {"time": at, "bytes": size, "kept": len(payload), "payload": shown(payload, HISTORY_PAYLOAD_KEPT)}
            for at, size, payload in self._messages
        ]


class PublishedTopics:
    def __init__(self, clock: BrokerClock, room: int = TREE_BYTES_MAX) -> None:
        self._clock = clock
        self.root = TopicNode()
        self.began_at = self.asked_at = clock.now
        #: Messages on topics for which there was no room.
        self.left_out = 0
        self._room = room
        self.watches: dict[str, MessageWatch] = {}
        self.histories: dict[bytes, TopicHistory] = {}
        #: Of so many pieces one is looked at.
        self.stride = 1
        #: Pieces to pass over before the next look, and for how many that one counts.
        self._skip = 0
        self._weight = 1
        self._dice = 1
        self._seen = 0
        #: Since the stride changed.
        self._counted = 0
        self._watched = 0

    def saw(self, topic: bytes, messages: int, size: int, data: bytes, start: int, stop: int) -> None:
        """HOT.  A piece of so many messages with so many bytes of payload, the last of which is `data[start:stop]`."""
        self._seen += 1
        if self.watches and self._watched < WATCHED_MAX:
            self._watched += 1
            self._show(topic, data[start:stop])
        if self.histories:
            history = self.histories.get(topic)
            if history is not None:
                history.saw(self._clock.wall, stop - start, data[start:stop])
        if self._skip:
            self._skip -= 1
            return
        self._count(topic, messages * self._weight, size * self._weight, data[start:stop])
        self._counted += 1
        if self._counted == SAMPLED_MAX:
            self._counted = 0
            self.stride *= 2
        if self.stride > 1:
            self._dice = (self._dice * 1103515245 + 12345) & 0x7FFFFFFF
            self._skip = (self._dice >> 8) % (2 * self.stride - 1)
        self._weight = self._skip + 1

    def saw_one(self, topic: bytes, payload: bytes) -> None:
        """One message."""
        self.saw(topic, 1, len(payload), payload, 0, len(payload))

    def _show(self, topic: bytes, payload: bytes) -> None:
        """To those who watch."""
        row = {"time": self._clock.wall, "topic": topic_text(topic), "bytes": len(payload), "payload": shown(payload)}
        levels = topic.split(b"/")
        for watch in self.watches.values():
            watch.saw(levels, row)

    def _count(self, topic: bytes, messages: int, size: int, payload: bytes) -> None:
        path = self._path(topic)
        if path is None:
            self.left_out += messages
            return
        for node in path:
            node.messages += messages
            node.bytes += size
        leaf = path[-1]
        leaf.last, leaf.last_bytes, leaf.at = payload[:PAYLOAD_KEPT], len(payload), self._clock.wall

    def _path(self, topic: bytes) -> list[TopicNode] | None:
        """From the root to the topic, made where it is new; None if there is no room."""
        node = self.root
        path = [node]
        for level in topic.split(b"/"):
            child = node.children.get(level)
            if child is None:
                self._room -= NODE_BYTES + len(level)
                if self._room < 0:
                    self._room = 0
                    return None
                child = node.children[level] = TopicNode()
            node = child
            path.append(node)
        if not node.is_topic:
            node.is_topic = True
            for one in path:
                one.topics += 1
        return path

    def add_retained(self, message: Message) -> None:
        path = self._path(message.topic)
        if path is not None:
            leaf = path[-1]
            if leaf.at >= message.received_at:
                return
            payload = bytes(message.payload)
            leaf.last, leaf.last_bytes, leaf.at = payload[:PAYLOAD_KEPT], len(payload), message.received_at

    def turn_over(self) -> None:
        """A second has passed."""
        self.stride = max(1, -(-self._seen // SAMPLED_MAX))
        self._seen = self._counted = self._watched = 0
        self._weight -= self._skip  # look at the next one, or a step of busier times would hide what comes now
        self._skip = 0

    def below(self, prefix: bytes | None) -> TopicNode | None:
        node: TopicNode | None = self.root
        for level in prefix.split(b"/") if prefix is not None else ():
            node = node.children.get(level) if node is not None else None
        return node


def shown(payload: bytes, most: int = PAYLOAD_KEPT) -> str:
    return payload[:most].decode("utf-8", "backslashreplace")


def topic_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
