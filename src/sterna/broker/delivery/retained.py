"""Retained messages: the last one of every topic that asked to be remembered (section 3.3.1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

from sterna.broker.limits import Limits
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import TopicTree

#: About what a retained message takes besides what it holds, with everything that is kept so that it is found.
RETAINED_BYTES = 1024

#: Cleared topics that are kept in mind.
CLEARED_MAX = 10_000

#: Between the stamps of two retained messages, at least: what the journal and the links can tell apart.
STAMP_S = 2e-6

#: Topics whose last update is kept in mind while somebody looks through them.
UPDATED_MAX = 100_000


class Retained:
    """Topic -> message.  Bounded in number and bytes; `changed` says what the next checkpoint has to write."""

    __slots__ = (
        "_cleared",
        "_limits",
        "_memory",
        "_observers",
        "_stamped",
        "_topics",
        "_tree",
        "_updated",
        "_updates",
        "bytes",
        "changed",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tree: TopicTree[Message] = TopicTree()
        #: Journal offset -> topic: a retained message outlives its place in the journal, and queues know only offsets.
        self._topics: dict[int, bytes] = {}
        #: Of what the messages hold; and about what memory they take, which is what the limit is for.
        self.bytes = 0
        self._memory = 0
        #: Topics set or cleared since the last checkpoint.
        self.changed: dict[bytes, None] = {}
        #: Topic -> when it was cleared: an older message of another node that comes late must not bring it back.
        self._cleared: dict[bytes, float] = {}
        #: The last stamp given.
        self._stamped = 0.0
        self._updates = 0
        #: Those that tell retained messages of a moment from later ones, for as long as they live; and while
        #: there is anybody, topic -> its last update.
        self._observers: WeakSet[object] = WeakSet()
        self._updated: dict[bytes, int] = {}

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
        freed = _memory(known) if known else 0
        room = known is not None or self._tree.size < self._limits.retained
        return room and self._memory - freed + _memory(message) <= self._limits.retained_bytes

    def stamp(self, topic: bytes, wall: float) -> float:
        """When a new message of this topic came in: now, and in any case after the one it replaces, whose node's clock
        may be ahead of ours."""
        known = self._tree.get(topic)
        before = self._cleared.get(topic, 0.0) if known is None else known.received_at
        # And after all others that came in here: the one it replaces may still be on its way to the journal.
        self._stamped = max(wall, before + STAMP_S, self._stamped + STAMP_S)
        return self._stamped

    def update(self, message: Message, *, durable: bool = True) -> bool:
        """Remember it in place of the one before; an empty payload forgets [MQTT-3.3.1-6].

        False if there was no room after all: many can be let in before the first of them gets here.
        """
        topic = message.topic
        room = not durable or self.has_room(message)
        before = self._tree.get(topic)
        if message.identity is not None and message.received_at <= self._cleared.get(topic, 0.0):
            return True  # what it was has been cleared since, at another node
        if before is not None:
            if is_late(before, message):
                return True  # a newer one is here
            self._forget(before)
        if before is not message:
            self._updates += 1
            if self._observers:
                self._note_updated(topic)
        if not message.payload and message.offset >= 0:
            self._note_cleared(message)
        if message.payload and room:
            self._tree.put(topic, message)
            if message.offset >= 0:
                self._topics[message.offset] = topic
            self.bytes += _size(message)
            self._memory += _memory(message)
        if durable:
            self.changed[topic] = None
        return room

    def _note_updated(self, topic: bytes) -> None:
        """There may always be somebody who looks, so the oldest goes: whoever began before gets that topic's message
        once more."""
        self._updated.pop(topic, None)
        self._updated[topic] = self._updates
        if len(self._updated) > UPDATED_MAX:
            del self._updated[next(iter(self._updated))]

    def _note_cleared(self, message: Message) -> None:
        self._cleared.pop(message.topic, None)
        self._cleared[message.topic] = message.received_at
        if len(self._cleared) > CLEARED_MAX:
            oldest = next(iter(self._cleared))
            del self._cleared[oldest]
            self.changed[oldest] = None

    def cleared(self, topic: bytes) -> Message | None:
        """The message that stands for a cleared topic in a checkpoint."""
        at = self._cleared.get(topic)
        return None if at is None else Message(topic, b"", 0, True, received_at=at, offset=0)

    def moment(self, observer: object) -> int:
        """This moment, for `later_than`; it can be asked about while `observer` lives."""
        if not self._observers:
            self._updated.clear()
        self._observers.add(observer)
        return self._updates

    def later_than(self, moment: int, topic: bytes) -> bool:
        """Was the topic's message retained after that moment?"""
        return self._updated.get(topic, 0) > moment

    def walk(self, topic_filter: bytes) -> Iterator[Message | None]:
        """Messages that the filter matches, one look at a time; a later turn may continue, see `TopicTree.walk`."""
        return self._tree.walk(topic_filter)

    def alive(self, message: Message, wall: float) -> bool:
        """May it still be sent?  One that has expired is forgotten."""
        if message.expires_at == NEVER or message.expires_at > wall:
            return True
        self._forget(message)
        self.changed[message.topic] = None
        return False

    def _forget(self, message: Message) -> None:
        self._tree.remove(message.topic)
        self._topics.pop(message.offset, None)
        self.bytes -= _size(message)
        self._memory -= _memory(message)


def is_late(before: Message, message: Message) -> bool:
    """Does it come after one that is newer?  All nodes of a network have to say the same of the same two messages."""
    if message.offset < 0:
        return False
    here, there = before.identity, message.identity
    if here is None and there is None:
        return before.offset > message.offset
    if here is not None and there is not None and here.origin == there.origin:
        return here.stamp > there.stamp
    return (before.received_at, before.payload) > (message.received_at, message.payload)


def _memory(message: Message) -> int:
    """The topic may have been kept where others branch off from it, too."""
    return RETAINED_BYTES + len(message.topic) + _size(message)


def _size(message: Message) -> int:
    return len(message.topic) + len(message.payload) + len(message.properties)
