"""Messages as Arrow columns, and back.

A frame of the journal is one record batch, so bulk readers take it without parsing.  Row i of a frame is the message
at the frame's base offset + i.  Instants are kept to the microsecond.  Most frames hold only messages that entered at
this node; they are spared the columns that say where a message comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sterna.mqtt.message import Message
from sterna.vocabulary.stamps import Identity

_INSTANT = pa.timestamp("us", "UTC")

#: Topic and publisher are UTF-8; they are declared binary because the broker keeps them as bytes and casting is free.
OWN_SCHEMA: Any = pa.schema(
    [
        pa.field("topic", pa.binary(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.uint8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("publisher", pa.binary(), nullable=False),
        pa.field("received_at", _INSTANT, nullable=False),
        pa.field("expires_at", _INSTANT),  # null: never
        pa.field("properties", pa.binary(), nullable=False),
    ]
)

_EPOCH, _SEQUENCE = pa.uint32(), pa.uint64()

#: Null for what entered at this node: then the epoch is the frame's and the sequence the row's offset.
_ELSEWHERE = [
    pa.field("origin", pa.binary()),
    pa.field("epoch", _EPOCH),
    pa.field("sequence", _SEQUENCE),
    pa.field("shares", pa.binary()),
]

#: What readers see: every column.
SCHEMA: Any = pa.schema([*OWN_SCHEMA, *_ELSEWHERE])

_BINARY, _QOS, _RETAIN, _MICROSECONDS = pa.binary(), pa.uint8(), pa.bool_(), pa.int64()


def to_microseconds(instant: float) -> int:
    return int(instant * 1e6 + 0.5)


def to_batch(messages: Sequence[Message]) -> Any:
    """One record batch.  Measured: pa.array beats hand-built buffers for byte strings, loses for the small columns."""
    rows = len(messages)
    columns = [
        pa.array([m.topic for m in messages], _BINARY),
        pa.array([m.payload for m in messages], _BINARY),
        pa.Array.from_buffers(_QOS, rows, [None, pa.py_buffer(bytes([m.qos for m in messages]))]),
        _retain_column([m.retain for m in messages]),
        pa.array([m.publisher for m in messages], _BINARY),
        pa.array([int(m.received_at * 1e6 + 0.5) for m in messages], _INSTANT),
        _expiry_column([m.expires_at for m in messages]),
        pa.array([m.properties for m in messages], _BINARY),
    ]
    if all(m.identity is None and not m.shares for m in messages):
        return pa.RecordBatch.from_arrays(columns, schema=OWN_SCHEMA)
    columns += _identity_columns([m.identity for m in messages])
    columns.append(pa.array([m.shares or None for m in messages], _BINARY))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _identity_columns(identities: list[Identity | None]) -> list[Any]:
    return [
        pa.array([known.origin.encode() if known else None for known in identities], _BINARY),
        pa.array([known.epoch if known else None for known in identities], _EPOCH),
        pa.array([known.sequence if known else None for known in identities], _SEQUENCE),
    ]


def _retain_column(flags: list[bool]) -> Any:
    if any(flags):
        return pa.array(flags, _RETAIN)
    return pa.Array.from_buffers(_RETAIN, len(flags), [None, pa.py_buffer(bytes((len(flags) + 7) // 8))])


def _expiry_column(instants: list[float]) -> Any:
    if any(instants):
        return pa.array([to_microseconds(at) if at else None for at in instants], _INSTANT)
    return pa.nulls(len(instants), _INSTANT)


def read_batch(body: bytes, *, from_elsewhere: bool) -> Any:
    """The record batch in a frame's body; the caller has checked the checksum."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA if from_elsewhere else OWN_SCHEMA)


def with_every_column(batch: Any) -> Any:
    if batch.num_columns == len(SCHEMA):
        return batch
    nulls = [pa.nulls(batch.num_rows, field.type) for field in _ELSEWHERE]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=SCHEMA)


class Rows:
    """The messages of one frame, made one at a time: a reader that wants one row does not pay for a thousand."""

    __slots__ = (
        "_expires_at",
        "_identities",
        "_payload",
        "_properties",
        "_publisher",
        "_qos",
        "_received_at",
        "_retain",
        "_shares",
        "_topic",
        "base",
        "end",
    )

    def __init__(self, batch: Any, base: int) -> None:
        topic, payload, qos, retain, publisher, received_at, expires_at, properties, *elsewhere = batch.columns
        self.base = base
        self.end: int = base + batch.num_rows
        self._topic = _byte_strings(topic)
        self._payload = _byte_strings(payload)
        self._publisher = _byte_strings(publisher)
        self._properties = _byte_strings(properties)
        self._qos: bytes = qos.buffers()[1].to_pybytes()
        self._retain: bytes = retain.buffers()[1].to_pybytes()
        self._received_at = memoryview(received_at.buffers()[1]).cast("q")
        # Null becomes 0, which is NEVER.
        self._expires_at = memoryview(expires_at.view(_MICROSECONDS).fill_null(0).buffers()[1]).cast("q")

        self._identities = _identities(*elsewhere[:3]) if elsewhere else None
        self._shares = elsewhere[3].to_pylist() if elsewhere else None

    def message(self, offset: int) -> Message:
        row = offset - self.base
        topics, topic = self._topic
        payloads, payload = self._payload
        publishers, publisher = self._publisher
        properties, block = self._properties
        message = Message(
            topics[topic[row] : topic[row + 1]],
            payloads[payload[row] : payload[row + 1]],
            self._qos[row],
            bool(self._retain[row >> 3] >> (row & 7) & 1),
            properties[block[row] : block[row + 1]],
            self._expires_at[row] / 1e6,
            publishers[publisher[row] : publisher[row + 1]],
            self._received_at[row] / 1e6,
            offset,
        )
        if self._identities is not None:
            message.identity = self._identities[row]
        if self._shares is not None:
            message.shares = self._shares[row] or b""
        return message


def _identities(origins: Any, epochs: Any, sequences: Any) -> list[Identity | None]:
    columns = zip(origins.to_pylist(), epochs.to_pylist(), sequences.to_pylist(), strict=True)
    return [None if origin is None else Identity(origin.decode(), epoch, number) for origin, epoch, number in columns]


def _byte_strings(column: Any) -> tuple[bytes, memoryview[int]]:
    """All values end to end, and where each begins."""
    _, starts, data = column.buffers()
    return data.to_pybytes() if data is not None else b"", memoryview(starts).cast("i")
