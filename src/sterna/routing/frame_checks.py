"""Checks the content of frames from other nodes before it is believed, passed on or delivered to clients.

A node that passes something on checks all that its neighbour will check, so that no node is blamed for another's
fault.  Content that only the last node looks at is refused there, without ending the link it came by.
"""

from __future__ import annotations

from typing import Final

from sterna.mqtt.message import Message
from sterna.mqtt.properties import read_properties
from sterna.mqtt.topics import is_reserved, is_topic_filter, is_topic_name, split_share
from sterna.mqtt.wire import check_text, variable
from sterna.routing.link_frames import Announce
from sterna.vocabulary.bounds import TEXT_BYTES_MAX, TOPIC_LEVELS_MAX
from sterna.vocabulary.errors import LinkProtocolError, ProtocolError

#: Bytes of topics that are remembered because they were looked at; past this the memory is cleared.
REMEMBERED_BYTES_MAX: Final = 8 * 1024 * 1024
#: Size of a topic besides its bytes.
TOPIC_OVERHEAD_BYTES: Final = 100
#: For any limit of a node's own.
USER_PROPERTIES_MAX: Final = 65_535


class TopicsSeen:
    """Topics that may be published on, as far as they were looked at: the same ones come again and again."""

    __slots__ = ("_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, None] = {}
        self._bytes = 0

    def admits(self, topic: bytes) -> bool:
        """False: only a node itself writes there.  Raises `LinkProtocolError` if it is no topic at all."""
        check_topic(topic)
        if is_reserved(topic):
            return False
        self._bytes += len(topic) + TOPIC_OVERHEAD_BYTES
        if self._bytes > REMEMBERED_BYTES_MAX:
            self._bytes = len(topic) + TOPIC_OVERHEAD_BYTES
            self.known.clear()
        self.known[topic] = None
        return True


def check_topic(topic: bytes) -> None:
    if not is_topic_name(topic, TOPIC_LEVELS_MAX, TEXT_BYTES_MAX) or not is_text(topic):
        raise LinkProtocolError("a message on something that is not a topic")


def is_text(data: bytes) -> bool:
    """HOT.  Nearly always it is ASCII."""
    if data.isascii():
        return b"\0" not in data
    try:
        check_text(data)
    except ProtocolError:
        return False
    return True


def check_message(message: Message) -> None:
    """Checks what nodes on the way have not looked at."""
    if not is_text(message.publisher):
        raise LinkProtocolError("a message whose publisher is not text")
    if message.properties:
        check_properties(message.properties)


def check_properties(properties: bytes) -> None:
    try:
        section = variable(len(properties)) + properties
        _, forwarded, _ = read_properties(section, 0, len(section), "PUBLISH", USER_PROPERTIES_MAX)
    except (ProtocolError, AssertionError) as error:
        raise LinkProtocolError(f"a message with properties that cannot be read: {error}") from None
    if len(forwarded) != len(properties):
        raise LinkProtocolError("a message with properties that do not travel")


def check_announcement(announce: Announce) -> None:
    for key, _ in announce.shares:
        if not is_share(key):
            raise LinkProtocolError("not a shared subscription")


def is_share(key: bytes) -> bool:
    shared = split_share(key)
    return shared is not None and is_text(key) and is_filter(shared[1])


def is_filter(topic_filter: bytes) -> bool:
    return is_topic_filter(topic_filter, TOPIC_LEVELS_MAX, TEXT_BYTES_MAX) and is_text(topic_filter)
