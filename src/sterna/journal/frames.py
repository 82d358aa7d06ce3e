"""The bytes of the journal: what a segment and a frame look like, and how damage is told from data.

A segment is a header of SEGMENT_HEADER_BYTES and then frames; a frame is a header of HEADER_BYTES and a body.  Header
and body each carry a CRC-32, so that a walk over headers alone can be trusted, and a rotten body costs one frame.

    frame header, little endian: magic u32, kind u8, flags u8, reserved u16, epoch u32, items u32, base offset u64,
                                 newest u64 (microseconds), body length u32, body crc u32, header crc u32
    body of MESSAGES: one Arrow IPC record batch (see record_batch.py), `items` rows
    body of EVENTS:   `items` lengths u32, then the events end to end
    body of SESSIONS, DELIVERIES: one Arrow IPC record batch (see audit_columns.py), `items` rows; recovery steps over
                      them
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.record_batch import encode_messages, to_microseconds
from sterna.mqtt.message import Message
from sterna.vocabulary import versions
from sterna.vocabulary.errors import JournalError

MESSAGES = 1
EVENTS = 2
SESSIONS = 3
DELIVERIES = 4

STARTS_GROUP = 1
"""Flag of the first frame of a group.  A group is synced before the next is written, so a damaged frame that has such
a frame behind it was once whole: it rotted.  Without one behind it, a crash tore it and nobody was told it is kept."""

ENDS_GROUP = 2
"""Flag of the last frame of a group.  A group whose end is not there was never whole, so none of it counts: an event
without the message it came with, or the other way round, would make a message lost or delivered twice."""

FROM_ELSEWHERE = 4
"""Flag of a frame in which some messages entered at other nodes, or are decided to go there: it has every column."""

NUMBERED = 8
"""Flag of a frame of session records that has the column `number`; an earlier release did not write it."""

MAGIC_BYTES = b"STRN"
_MAGIC = int.from_bytes(MAGIC_BYTES, "little")
_HEADER = struct.Struct("<IBBHIIQQIII")
_HEADER_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_CHECKED_BYTES = HEADER_BYTES - _HEADER_CRC.size
_CLAIMED = struct.Struct("<II")

_SEGMENT_MAGIC = b"STERNAJ\n"
_SEGMENT = struct.Struct("<8sHHQI")
SEGMENT_HEADER_BYTES = 256
NODE_NAME_BYTES_MAX = SEGMENT_HEADER_BYTES - _SEGMENT.size


class FrameHeader(NamedTuple):
    kind: int
    flags: int
    epoch: int
    items: int
    """Messages, events or records in it."""
    base: int
    newest_us: int
    """When the newest message of the frame came in, or the newest record was made; 0 for events."""
    length: int
    crc: int

    @property
    def end_offset(self) -> int:
        """The offset after the last message of the frame."""
        return self.base + self.items if self.kind == MESSAGES else self.base

    @property
    def from_elsewhere(self) -> bool:
        return bool(self.flags & FROM_ELSEWHERE)

    @property
    def starts_group(self) -> bool:
        return bool(self.flags & STARTS_GROUP)

    @property
    def ends_group(self) -> bool:
        return bool(self.flags & ENDS_GROUP)


def _frame(kind: int, flags: int, epoch: int, count: int, base: int, newest_us: int, body: Any) -> tuple[bytes, Any]:
    fields = (_MAGIC, kind, flags, 0, epoch, count, base, newest_us, len(body), zlib.crc32(body))
    checked = _HEADER.pack(*fields, 0)[:_CHECKED_BYTES]
    return checked + _HEADER_CRC.pack(zlib.crc32(checked)), body


def message_frame(messages: Sequence[Message], base: int, epoch: int, flags: int) -> tuple[bytes, Any]:
    """Header and body of a frame of messages whose offsets are dense from `base`."""
    body, from_elsewhere = encode_messages(messages)
    if from_elsewhere:
        flags |= FROM_ELSEWHERE
    return _frame(MESSAGES, flags, epoch, len(messages), base, to_microseconds(messages[-1].received_at), body)


def event_frame(events: Sequence[bytes], base: int, epoch: int, flags: int) -> tuple[bytes, Any]:
    """Header and body of a frame of events; `base` is the offset the next message will get."""
    lengths = struct.pack(f"<{len(events)}I", *map(len, events))
    return _frame(EVENTS, flags, epoch, len(events), base, 0, b"".join((lengths, *events)))


def session_frame(records: Sequence[SessionRecord], base: int, epoch: int, flags: int) -> tuple[bytes, Any]:
    from sterna.journal.audit_columns import session_batch  # loads Arrow

    newest_us = to_microseconds(records[-1].at)
    return _frame(SESSIONS, flags | NUMBERED, epoch, len(records), base, newest_us, session_batch(records).serialize())


def delivery_frame(records: Sequence[DeliveryRecord], base: int, epoch: int, flags: int) -> tuple[bytes, Any]:
    from sterna.journal.audit_columns import delivery_batch  # loads Arrow

    newest_us = to_microseconds(records[-1].at)
    return _frame(DELIVERIES, flags, epoch, len(records), base, newest_us, delivery_batch(records).serialize())


def parse_header(data: bytes) -> FrameHeader | None:
    """The frame header that `data` begins with, or None if these bytes are not one."""
    if len(data) < HEADER_BYTES:
        return None
    magic, kind, flags, _, epoch, count, base, newest_us, length, crc, header_crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or not MESSAGES <= kind <= DELIVERIES or zlib.crc32(data[:_CHECKED_BYTES]) != header_crc:
        return None
    return FrameHeader(kind, flags, epoch, count, base, newest_us, length, crc)


def claimed_body(data: bytes) -> tuple[int, int]:
    """Length and checksum of the body as a header says that need not be one: for what survived of a damaged header."""
    length, crc = _CLAIMED.unpack_from(data.ljust(HEADER_BYTES, b"\0"), _CHECKED_BYTES - _CLAIMED.size)
    return length, crc


def body_is_intact(header: FrameHeader, body: bytes) -> bool:
    return len(body) == header.length and zlib.crc32(body) == header.crc


def read_events(header: FrameHeader, body: bytes) -> list[bytes]:
    """The events of a frame whose body is intact."""
    lengths = struct.unpack_from(f"<{header.items}I", body)
    starts = [4 * header.items]
    for length in lengths:
        starts.append(starts[-1] + length)
    return [body[start:end] for start, end in pairwise(starts)]


def segment_header(node: str, serial: int) -> bytes:
    name = node.encode()
    assert len(name) <= NODE_NAME_BYTES_MAX
    fixed = _SEGMENT.pack(_SEGMENT_MAGIC, versions.JOURNAL.newest, len(name), serial, 0)[:-4]
    padded = name.ljust(NODE_NAME_BYTES_MAX, b"\0")
    return fixed + _HEADER_CRC.pack(zlib.crc32(padded, zlib.crc32(fixed))) + padded


def parse_segment_header(data: bytes, name: str) -> str | None:
    """The name of the node that wrote the segment `name`; None if the header is damaged or incomplete."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, length, _, crc = _SEGMENT.unpack_from(data)
    fixed, padded = data[: _SEGMENT.size - 4], data[_SEGMENT.size : SEGMENT_HEADER_BYTES]
    if magic != _SEGMENT_MAGIC or zlib.crc32(padded, zlib.crc32(fixed)) != crc:
        return None
    if version not in versions.JOURNAL:
        raise JournalError(versions.refusal(name, version, versions.JOURNAL))
    return padded[:length].decode()
