"""Encodes PUBLISH packets for subscribers.

A packet is `head + packet identifier + tail`; head and tail depend only on (version, QoS, RETAIN), so they are made
once per message and shared by all recipients of that kind.  Only what is truly per recipient (subscription
identifiers, topic aliases) is encoded per recipient.
"""

from __future__ import annotations

import math

from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.mqtt import wire
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import MQTT_5, publish_head

DUP = 0x08
#: The greatest Message Expiry Interval.
EXPIRY_MAX_S = 0xFFFFFFFF


class Encodings:
    """All the forms one message takes on its way out during one delivery."""

    __slots__ = ("_forms", "_message", "_wall")

    def __init__(self, message: Message, wall: float) -> None:
        self._message = message
        self._wall = wall
        self._forms: dict[int, tuple[bytes, bytes]] = {}

    def packet(self, session: Session, grant: Grant, qos: int, packet_id: int) -> bytes:
        message = self._message
        retain = grant.retained or (message.retain and grant.retain_as_published)
        version = session.version
        if version == MQTT_5 and (grant.identifiers or session.aliases is not None):
            return self._individual(session, grant, qos, retain, packet_id)
        key = version << 4 | qos << 1 | retain
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._form(version, qos, retain)
        if qos:
            return b"%b%c%c%b" % (form[0], packet_id >> 8, packet_id & 0xFF, form[1])
        return form[0] + form[1]

    def _form(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes]:
        message = self._message
        tail = message.payload
        if version == MQTT_5:
            section = message.properties + self._expiry()
            tail = wire.variable(len(section)) + section + tail
        rest = len(tail) + (2 if qos else 0)
        return publish_head(0x30 | qos << 1 | retain, message.topic, rest), tail

    def _individual(self, session: Session, grant: Grant, qos: int, retain: bool, packet_id: int) -> bytes:
        message = self._message
        topic, alias = _alias(session, message.topic) if qos < 2 else (message.topic, b"")
        identifiers = b"".join(b"\x0b" + wire.variable(identifier) for identifier in grant.identifiers)
        section = message.properties + self._expiry() + identifiers + alias
        tail = wire.variable(len(section)) + section + message.payload
        middle = wire.two(packet_id) if qos else b""
        packet = publish_head(0x30 | qos << 1 | retain, topic, len(middle) + len(tail)) + middle + tail
        if session.packet_bytes_max and len(packet) > session.packet_bytes_max and topic and alias:
            assert session.aliases is not None
            del session.aliases[topic]  # the packet that would have defined the alias will not be sent
        return packet

    def _expiry(self) -> bytes:
        """The rest of the message's life [MQTT-3.3.2-6]."""
        if self._message.expires_at == NEVER:
            return b""
        left_s = self._message.expires_at - self._wall
        # Rounded up, or a message with half a second to live would be passed on as one that has ended; less what sums
        # of floating-point numbers leave over.  By a clock that is behind it may have more left than the field can say.
        seconds = min(max(1, math.ceil(left_s - 0.001)), EXPIRY_MAX_S) if left_s > 0 else 0
        return b"\x02" + seconds.to_bytes(4, "big")


def _alias(session: Session, topic: bytes) -> tuple[bytes, bytes]:
    """The topic to write and the alias property: defined on first use, then standing in for the topic.

    QoS 2 packets never carry one: they may wait for the journal and be overtaken by a packet that uses the alias.
    """
    aliases = session.aliases
    if aliases is None:
        return topic, b""
    known = aliases.get(topic)
    if known is not None:
        return b"", b"\x23" + wire.two(known)
    if len(aliases) >= session.alias_maximum:
        return topic, b""
    aliases[topic] = len(aliases) + 1
    return topic, b"\x23" + wire.two(aliases[topic])


def encode_again(session: Session, message: Message, grant: Grant, packet_id: int, wall: float) -> bytes:
    """A PUBLISH that is sent once more on a new connection: same packet identifier, DUP set [MQTT-3.3.1-1]."""
    qos = min(message.qos, grant.qos)
    packet = Encodings(message, wall).packet(session, grant, qos, packet_id)
    return bytes((packet[0] | DUP,)) + packet[1:]


def without_properties(data: bytes, start: int, stop: int, size: int, head: int) -> bytes:
    """MQTT 5 packets with an empty property section, as MQTT 3.1.1 packets."""
    return _changed(data, start, stop, size, head, -1)


def with_properties(data: bytes, start: int, stop: int, size: int, head: int) -> bytes:
    """MQTT 3.1.1 packets as MQTT 5 packets with an empty property section."""
    return _changed(data, start, stop, size, head, +1)


def _changed(data: bytes, start: int, stop: int, size: int, head: int, by: int) -> bytes:
    """All packets of a run with one byte more or less between topic and payload."""
    length_bytes = 1
    while data[start + length_bytes] & 0x80:
        length_bytes += 1
    topic_start = start + 1 + length_bytes + 2
    topic = data[topic_start : start + head + (by if by < 0 else 0)]
    rest = size - head + (1 if by > 0 else 0)
    opening = publish_head(0x30, topic, rest) + (b"\x00" if by > 0 else b"")
    return b"".join([opening + data[position + head : position + size] for position in range(start, stop, size)])
