"""The last message of every topic that asked to be remembered (section 3.3.1.3)."""

from __future__ import annotations

from collections.abc import Iterator

from sterna.broker.limits import Limits
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import TopicTree


class Retained:
    """Topic -> message.  Bounded in number and bytes; `changed` says what the next checkpoint has to write."""

    __slots__ = ("_limits", "_topics", "_tree", "bytes", "changed")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tree: TopicTree[Message] = TopicTree()
        #: Journal offset -> topic: a retained message outlives its place in the journal, and queues know only offsets.
        self._topics: dict[int, bytes] = {}
        self.bytes = 0
        #: Topics set or cleared since the last checkpoint.
        self.changed: dict[bytes, None] = {}

    def __len__(self) -> int:
        return self._tree.size

    def __iter__(self) -> Iterator[Message]:
        return iter(self._tree)

    def get(self, topic: bytes) -> Message | None:
        return self._tree.get(topic)

    def at_offset(self, offset: int) -> Message | None:
        topic = self._topics.get(offset)
        return None if topic is None else self._tree.get(topic)

    def has_room(self, message: Message) -> bool:
        if not message.payload:
            return True
        known = self._tree.get(message.topic)
        freed = _size(known) if known else 0
        room = known is not None or self._tree.size < self._limits.retained
        return room and self.bytes - freed + _size(message) <= self._limits.retained_bytes

    def update(self, message: Message, *, durable: bool = True) -> bool:
        """Remember it in place of the one before; an empty payload forgets [MQTT-3.3.1-6].

        False if there was no room after all: many can be let in before the first of them gets here.
        """
        topic = message.topic
        room = not durable or self.has_room(message)
        before = self._tree.get(topic)
        if before is not None:
            if before.offset > message.offset >= 0:
                return True  # it comes late: a newer one is here
            self._forget(before)
        if message.payload and room:
            self._tree.put(topic, message)
            if message.offset >= 0:
                self._topics[message.offset] = topic
            self.bytes += _size(message)
        if durable:
            self.changed[topic] = None
        return room

    def match(self, topic_filter: bytes, wall: float) -> list[Message]:
        """Messages to send to a new subscription; the expired are forgotten on the way."""
        found = list(self._tree.match(topic_filter))
        alive = [m for m in found if m.expires_at == NEVER or m.expires_at > wall]
        if len(alive) < len(found):
            for message in found:
                if message.expires_at != NEVER and message.expires_at <= wall:
                    self._forget(message)
                    self.changed[message.topic] = None
        return alive

    def _forget(self, message: Message) -> None:
        self._tree.remove(message.topic)
        self._topics.pop(message.offset, None)
        self.bytes -= _size(message)


def _size(message: Message) -> int:
    return len(message.topic) + len(message.payload) + len(message.properties)
