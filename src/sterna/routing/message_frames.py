"""The bytes of messages between nodes.

A body names its origin and epoch once, then holds records.  A record is the same bytes on every link, so that a node
on the way hands on what it got, whole or in pieces, without building a message.

    body     := origin length (1), origin, epoch (4), record*
    record   := flags (1), sequence (8), received at (8), lengths of topic (2), publisher (2), payload (4),
                [lengths of properties (4) and shares (2), expires at (8)],
                topic, publisher, properties, shares, payload

Instants are microseconds.  A LOOSE body (QoS 0) has a number (8) after the epoch and its records are

    loose    := flags (1), length of topic (2), how many (2),
                [lengths of properties (4) and shares (2), expires at (8)], topic, properties, shares,
                then so many times: length (4), payload; or, in a run of payloads of one size: length (4), payload*

A node hands on a run, or takes it over, without a look at the single message.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from sterna.mqtt.message import Message
from sterna.vocabulary.bounds import INSTANT_MAX_US, NUMBER_MAX
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import BEFORE_ALL, Identity, VersionVector

QOS: Final = 0x03
RETAIN: Final = 0x04
EXTRA: Final = 0x08
RUN: Final = 0x10

_HEAD: Final = Struct(">BQqHHI")
_EXTRA: Final = Struct(">IHq")
_EPOCH: Final = Struct(">I")
_NUMBER: Final = Struct(">Q")
_LOOSE: Final = Struct(">BHH")
_LENGTH: Final = Struct(">I")

#: No sequence is as great as this.
ALL_SEQUENCES: Final = NUMBER_MAX + 1
#: No instant is later, nor is any before the first.
LATEST_US: Final = INSTANT_MAX_US
_FLAGS: Final = QOS | RETAIN | EXTRA

#: Of messages with one topic in one loose record.
LOOSE_MAX: Final = 0xFFFF


def _u16(body: bytes, at: int) -> int:
    """HOT.  Compiled this is arithmetic, where a `Struct` takes a call and a tuple; `IndexError` if it is cut off."""
    return body[at] << 8 | body[at + 1]


def _u32(body: bytes, at: int) -> int:
    """HOT."""
    return body[at] << 24 | body[at + 1] << 16 | body[at + 2] << 8 | body[at + 3]


def opening(origin: str, epoch: int) -> bytes:
    name = origin.encode()
    return bytes((len(name),)) + name + _EPOCH.pack(epoch)


def loose_opening(origin: str, epoch: int, number: int) -> bytes:
    return opening(origin, epoch) + _NUMBER.pack(number)


def read_opening(body: bytes) -> tuple[str, int, int]:
    """(origin, epoch, where the records begin)."""
    try:
        start = 1 + body[0]
        return body[1:start].decode(), _u32(body, start), start + 4
    except (IndexError, UnicodeDecodeError):
        raise LinkProtocolError("a body of messages without an origin") from None


def read_number(body: bytes, position: int) -> tuple[int, int]:
    try:
        return _u32(body, position) << 32 | _u32(body, position + 4), position + 8
    except IndexError:
        raise LinkProtocolError("a body of loose messages without a number") from None


def encode_record(message: Message, sequence: int) -> bytes:
    topic, publisher, payload, shares = message.topic, message.publisher, message.payload, message.shares
    flags = message.qos | (RETAIN if message.retain else 0)
    received_us = int(message.received_at * 1e6 + 0.5)
    if not (message.properties or shares or message.expires_at):
        head = _HEAD.pack(flags, sequence, received_us, len(topic), len(publisher), len(payload))
        return head + topic + publisher + payload
    head = _HEAD.pack(flags | EXTRA, sequence, received_us, len(topic), len(publisher), len(payload))
    extra = _EXTRA.pack(len(message.properties), len(shares), int(message.expires_at * 1e6 + 0.5))
    return b"".join((head, extra, topic, publisher, message.properties, shares, payload))


class Record:
    """Where one record lies in a body, and what a node on the way has to know of it."""

    __slots__ = ("flags", "sequence", "start", "stop", "topic")

    def __init__(self, flags: int, sequence: int, start: int, stop: int, topic: bytes) -> None:
        self.flags = flags
        self.sequence = sequence
        self.start = start
        self.stop = stop
        self.topic = topic


def read_records(body: bytes, position: int) -> list[Record]:
    """HOT.  All records of a body of sequenced messages, which must increase."""
    records: list[Record] = []
    end = len(body)
    before = -1
    try:
        while position < end:
            flags, sequence, received_us, topic, publisher, payload = _HEAD.unpack_from(body, position)
            start = position + 25
            stop = start + topic + publisher + payload
            if flags & EXTRA:
                properties, shares, expires_us = _EXTRA.unpack_from(body, start)
                start += 14
                stop += 14 + properties + shares
                if not 0 <= expires_us <= LATEST_US:
                    raise LinkProtocolError("a record that expires at a time that cannot be")
            if stop > end or sequence <= before:
                raise LinkProtocolError("a record that is cut off or out of order")
            if sequence >= ALL_SEQUENCES or not 0 <= received_us <= LATEST_US or flags & ~_FLAGS or flags & QOS == QOS:
                raise LinkProtocolError("a record with a number that cannot be")
            records.append(Record(flags, sequence, position, stop, body[start : start + topic]))
            before = sequence
            position = stop
    except StructError:
        raise LinkProtocolError("a record that is cut off") from None
    return records


def read_message(body: bytes, start: int, origin: str, epoch: int) -> Message:
    """The message of the record at `start`."""
    flags, sequence, received_us, topic_size, publisher_size, payload_size = _HEAD.unpack_from(body, start)
    position = start + 25
    properties_size = shares_size = expires_us = 0
    if flags & EXTRA:
        properties_size, shares_size, expires_us = _EXTRA.unpack_from(body, position)
        position += 14
    topic = body[position : position + topic_size]
    position += topic_size
    publisher = body[position : position + publisher_size]
    position += publisher_size
    properties = body[position : position + properties_size]
    position += properties_size
    shares = body[position : position + shares_size]
    position += shares_size
    message = Message(
        topic,
        body[position : position + payload_size],
        flags & QOS,
        bool(flags & RETAIN),
        properties,
        expires_us / 1e6,
        publisher,
        received_us / 1e6,
    )
    message.identity = Identity(origin, epoch, sequence)
    message.shares = shares
    return message


def last_of_epoch(vector: VersionVector, origin: str, epoch: int) -> int:
    """The sequence up to which messages of this epoch are old; all of them are if a newer epoch has been seen."""
    stamp = vector.get(origin, BEFORE_ALL)
    if stamp.epoch == epoch:
        return stamp.sequence
    return -1 if stamp.epoch < epoch else ALL_SEQUENCES


def cut(body: bytes, position: int, records: list[Record] | list[LooseRecord]) -> bytes:
    return body[:position] + b"".join([body[record.start : record.stop] for record in records])


# -- QoS 0 -----------------------------------------------------------------------------------------------------------


def encode_loose(topic: bytes, payloads: list[bytes], properties: bytes, expires_at: float, shares: bytes) -> bytes:
    """HOT.  One record of at most LOOSE_MAX payloads, at least one."""
    size = len(payloads[0])
    flags = RUN if _are_alike(payloads, size) else 0
    if properties or shares or expires_at:
        extra = _EXTRA.pack(len(properties), len(shares), int(expires_at * 1e6 + 0.5))
        parts = [_LOOSE.pack(flags | EXTRA, len(topic), len(payloads)), extra, topic, properties, shares]
    else:
        parts = [_LOOSE.pack(flags, len(topic), len(payloads)), topic]
    if flags:
        parts.append(_LENGTH.pack(size))
        parts += payloads
    else:
        for payload in payloads:
            parts.append(_LENGTH.pack(len(payload)))
            parts.append(payload)
    return b"".join(parts)


def loose_count(record: bytes) -> int:
    """HOT.  Messages in an encoded record."""
    return _u16(record, 3)


def _are_alike(payloads: list[bytes], size: int) -> bool:
    for payload in payloads:  # noqa: SIM110  a generator would cost more than the rest of the record
        if len(payload) != size:
            return False
    return True


class LooseRecord:
    """Messages that differ in nothing but their payloads: where they lie in a body."""

    __slots__ = ("_first", "count", "expires_at", "properties", "shares", "size", "start", "stop", "topic")

    def __init__(self, start: int, topic: bytes, count: int) -> None:
        self.start = start
        self.stop = start
        self.topic = topic
        self.properties = b""
        self.shares = b""
        self.expires_at = 0.0
        self.count = count
        #: Of every payload, -1 if they differ.
        self.size = -1
        self._first = start

    @property
    def is_plain(self) -> bool:
        """A run of payloads of one size and nothing else."""
        return self.size >= 0 and not (self.properties or self.shares or self.expires_at)

    def find_stop(self, body: bytes, position: int, *, is_run: bool) -> int:
        """Where the payloads that begin at `position` end; all of them are there."""
        end = len(body)
        self._first = position
        if is_run:
            self.size = _u32(body, position)
            self._first = position + 4
            position = self._first + self.count * self.size
        else:
            for _ in range(self.count):
                position += 4 + _u32(body, position)
        if position > end:
            raise LinkProtocolError("a loose record that is cut off")
        self.stop = position
        return position

    def payloads(self, body: bytes) -> list[bytes]:
        """HOT."""
        position, size = self._first, self.size
        if size > 0:
            return [body[start : start + size] for start in range(position, self.stop, size)]
        if size == 0:
            return [b""] * self.count
        found: list[bytes] = []
        for _ in range(self.count):
            size = _u32(body, position)
            position += 4 + size
            found.append(body[position - size : position])
        return found


def read_loose(body: bytes, position: int) -> list[LooseRecord]:
    """HOT.  All records of a body of loose messages."""
    records: list[LooseRecord] = []
    end = len(body)
    try:
        while position < end:
            start = position
            flags, topic_size, count = body[position], _u16(body, position + 1), _u16(body, position + 3)
            position += 5
            properties_size = shares_size = expires_us = 0
            if flags & EXTRA:
                properties_size, shares_size, expires_us = _EXTRA.unpack_from(body, position)
                position += 14
            record = LooseRecord(start, body[position : position + topic_size], count)
            position += topic_size
            if flags & EXTRA:
                record.properties = body[position : position + properties_size]
                position += properties_size
                record.shares = body[position : position + shares_size]
                position += shares_size
                record.expires_at = expires_us / 1e6
                if not 0 <= expires_us <= LATEST_US:
                    raise LinkProtocolError("a loose record that expires at a time that cannot be")
            if not count:
                raise LinkProtocolError("a loose record of nothing")
            position = record.find_stop(body, position, is_run=bool(flags & RUN))
            records.append(record)
    except (IndexError, StructError):
        raise LinkProtocolError("a loose record that is cut off") from None
    return records
