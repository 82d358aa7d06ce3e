"""Sends the messages of a node's own clients to the links: gathered during a turn, one frame per link.

Sequenced messages (QoS 1 and 2) come here when they are safe in the journal; a node that misses one fetches it.  Loose
messages (QoS 0) of a topic that the neighbours are just being told of wait until the neighbours know it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sterna.mqtt.message import Message
from sterna.mqtt.topics import REMEMBERED_TOPIC_BYTES
from sterna.routing.losses import NO_WAY, UNANNOUNCED
from sterna.routing.message_frames import (
    LOOSE_MAX,
    LooseRecord,
    encode_loose,
    encode_record,
    loose_count,
    loose_opening,
    opening,
    read_loose,
)
from sterna.vocabulary.identity import Stamp

if TYPE_CHECKING:
    from sterna.routing.router import Router

#: Topics of our own clients that are remembered; past this the memory is cleared.
REMEMBERED_MAX: Final = 100_000

#: Messages gathered for one frame: this much, or one that is bigger.
FRAME_BYTES: Final = 256 * 1024

#: Topic, payloads, properties, expiry and shares of QoS 0 messages.
Loose = tuple[bytes, list[bytes], bytes, float, bytes]
#: So many of them are held per topic ...
HELD_MAX: Final = 256
#: ... and of so many topics; those of others go to the nodes that are known to want them.
HELD_TOPICS_MAX: Final = 1000


class Outbound:
    def __init__(self, node: str, epoch: int, router: Router) -> None:
        self._node = node
        self._epoch = epoch
        self._router = router
        #: Topics of our own clients that the strategy knows of, until something changes.
        self._topics: dict[bytes, None] = {}
        #: link -> records, gathered until the end of the turn.
        self._gathered: dict[str, list[bytes]] = {}
        self._loose: dict[str, list[bytes]] = {}
        self._gathered_bytes = 0
        #: Of the record gathered last.
        self._topic = b""
        #: QoS 0 messages of topics that the neighbours are just being told of.
        self._held: dict[bytes, list[Loose]] = {}
        self._loose_number = 0
        #: Of the body that the messages published last are in, the first of them if it is not the same for all.
        self._latest = 0

    @property
    def loose_gathered(self) -> Stamp:
        """The number of the body in which other nodes get what was published last."""
        return Stamp(self._epoch, self._latest)

    @property
    def loose_sent(self) -> Stamp:
        """That of the last one that has been sent."""
        return Stamp(self._epoch, self._loose_number)

    def link_ended(self, link: str) -> list[LooseRecord]:
        """The loose ones that were gathered for it."""
        self._gathered.pop(link, None)
        return read_loose(b"".join(self._loose.pop(link, [])), 0)

    def changed(self, topic: bytes | None) -> None:
        """The strategy may have to be told again of this topic (None: of every one)."""
        if topic is None:
            self._topics.clear()
        else:
            self._topics.pop(topic, None)

    def publish(self, message: Message) -> None:
        """HOT.  A sequenced message that entered here; it is safe in the journal."""
        if not self._router.has_links:
            return
        wanting = self._links_of_own(message.topic)
        links = self._router.links() if message.retain else wanting
        if links:
            record = encode_record(message, message.offset)
            if self._gathered_bytes + len(record) > FRAME_BYTES:
                self._router.strategy.flush()  # news of another topic must not be overtaken: see `advertisement.py`
                self.flush()
            self._gathered_bytes += len(record)
            self._topic = message.topic
            for link in links:
                self._gathered.setdefault(link, []).append(record)

    def publish_loose(
        self, topic: bytes, payloads: list[bytes], properties: bytes, expires_at: float, shares: bytes
    ) -> None:
        """HOT.  QoS 0 messages that entered here and differ in nothing but their payloads."""
        if not self._router.has_links:
            if self._router.losses.misses(topic, []):
                self._router.losses.count(NO_WAY, len(payloads))
            return
        links = self._links_of_own(topic)
        held = self._held.get(topic)
        if held is not None:
            self._hold(held, (topic, payloads, properties, expires_at, shares))
        elif links:
            for start in range(0, len(payloads), LOOSE_MAX):
                record = encode_loose(topic, payloads[start : start + LOOSE_MAX], properties, expires_at, shares)
                if self._gathered_bytes + len(record) > FRAME_BYTES:
                    self._router.strategy.flush()
                    self.flush()
                self._gathered_bytes += len(record)
                self._topic = topic
                if not start:
                    self._latest = self._loose_number + 1
                for link in links:
                    self._loose.setdefault(link, []).append(record)

    def wants_elsewhere(self, topic: bytes) -> bool:
        """Does any neighbour want this topic, or somebody who cannot be reached?"""
        if not self._router.has_links:
            return self._router.losses.misses(topic, [])
        return bool(self._links_of_own(topic)) or topic in self._held

    def _links_of_own(self, topic: bytes) -> list[str]:
        """For a topic our own clients publish on, which the strategy may have to be told of."""
        if topic not in self._topics:
            if len(self._topics) >= REMEMBERED_MAX:
                self._topics.clear()
            if len(topic) <= REMEMBERED_TOPIC_BYTES:
                self._topics[topic] = None
            if (
                self._router.strategy.publishing(topic)
                and topic not in self._held
                and len(self._held) < HELD_TOPICS_MAX
            ):
                # Sequenced messages are fetched by nodes that find that they want them; loose ones can only wait.
                self._held[topic] = []
                self._router.when_heard(partial(self._release, topic))
        return self._router.links_for(topic)

    def held(self) -> list[bytes]:
        """Topics whose QoS 0 messages wait."""
        return list(self._held)

    def is_holding(self, topic: bytes) -> bool:
        return topic in self._held

    def _hold(self, held: list[Loose], messages: Loose) -> None:
        if len(held) < HELD_MAX:
            held.append(messages)
        else:
            self._router.losses.count(UNANNOUNCED, len(messages[1]))

    def _release(self, topic: bytes) -> None:
        """All nodes have heard of the topic, and those that want it have said so."""
        for messages in self._held.pop(topic):
            self.publish_loose(*messages)

    def flush(self) -> None:
        """The gathered messages go to the links."""
        self._gathered_bytes = 0
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            head = opening(self._node, self._epoch)
            for link, records in gathered.items():
                self._router.send_sequenced(link, head + b"".join(records), len(records), self._topic)
        if self._loose:
            loose, self._loose = self._loose, {}
            self._loose_number += 1
            head = loose_opening(self._node, self._epoch, self._loose_number)
            for link, records in loose.items():
                messages = sum([loose_count(record) for record in records])
                topic = self._topic if len(records) == 1 else b""
                self._router.send_loose(link, head + b"".join(records), messages, topic)
