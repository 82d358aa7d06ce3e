"""Encodes all that was appended since the last commit as the bytes of one group.

A group becomes one write; inside it, frames are kept small enough that reading a single message back stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.frames import (
    ENDS_GROUP,
    HEADER_BYTES,
    STARTS_GROUP,
    delivery_frame,
    event_frame,
    message_frame,
    session_frame,
)
from sterna.journal.record_batch import to_microseconds
from sterna.journal.store import Group
from sterna.mqtt.message import Message

FRAME_ROWS_MAX = 4096
FRAME_BYTES_MAX = 2 * 1024 * 1024
"""A frame holds at most this much, or a single item that is bigger by itself."""

MESSAGE_OVERHEAD_BYTES = 256
"""Memory of a message beyond payload and properties: the object, its topic and publisher, roughly."""

RECORD_BYTES = 128
"""Size of a record in a frame, roughly."""

T = TypeVar("T")


def message_weight(message: Message) -> int:
    return (
        len(message.payload)
        + len(message.properties)
        + len(message.topic)
        + len(message.publisher)
        + MESSAGE_OVERHEAD_BYTES
    )


def encode_group(
    messages: Sequence[Message],
    events: Sequence[bytes],
    *,
    base: int,
    epoch: int,
    weight: int,
    sessions: Sequence[SessionRecord] = (),
    deliveries: Sequence[DeliveryRecord] = (),
) -> Group:
    """Encode one group; `weight` is the sum of its message weights, known to the caller without another pass."""
    event_runs: list[tuple[Callable[..., tuple[bytes, Any]], Any]] = [
        (event_frame, run) for run in _frames_worth(events, len, None)
    ]
    if sessions:
        event_runs += [(session_frame, run) for run in _frames_worth(sessions, _record_weight, None)]
    if deliveries:
        event_runs += [(delivery_frame, run) for run in _frames_worth(deliveries, _record_weight, None)]
    message_runs = list(_frames_worth(messages, message_weight, weight))
    last = len(event_runs) + len(message_runs) - 1
    parts: list[Any] = []
    frames: list[tuple[int, int]] = []
    size = 0
    for number, (make_frame, some) in enumerate(event_runs):
        header, body = make_frame(some, base, epoch, _flags(number, last))
        parts += header, body
        size += HEADER_BYTES + len(body)
    offset = base
    for number, some_messages in enumerate(message_runs, len(event_runs)):
        header, body = message_frame(some_messages, offset, epoch, _flags(number, last))
        frames.append((offset, size))
        parts += header, body
        size += HEADER_BYTES + len(body)
        offset += len(some_messages)
    newest_us = to_microseconds(_newest(messages, sessions, deliveries))
    return Group(b"".join(parts), base, offset, messages, newest_us, weight, frames, events, sessions, deliveries)


def _newest(
    messages: Sequence[Message], sessions: Sequence[SessionRecord], deliveries: Sequence[DeliveryRecord]
) -> float:
    """When the newest of them came in, or was noted; 0: there are none."""
    came = messages[-1].received_at if messages else 0.0
    return max(came, *(records[-1].at for records in (sessions, deliveries) if records), 0.0)


def _record_weight(_record: object) -> int:
    return RECORD_BYTES


def _flags(number: int, last: int) -> int:
    return (STARTS_GROUP if number == 0 else 0) | (ENDS_GROUP if number == last else 0)


def _frames_worth(items: Sequence[T], weigh: Callable[[T], int], weight: int | None) -> Iterator[Sequence[T]]:
    """`items` in runs of one frame each; nearly always there is one."""
    if not items:
        return
    if weight is None:
        weight = sum(map(weigh, items))
    if len(items) <= FRAME_ROWS_MAX and weight <= FRAME_BYTES_MAX:
        yield items
        return
    start = filled = 0
    for index, item in enumerate(items):
        item_weight = weigh(item)
        if index > start and (index - start == FRAME_ROWS_MAX or filled + item_weight > FRAME_BYTES_MAX):
            yield items[start:index]
            start, filled = index, 0
        filled += item_weight
    yield items[start:]
