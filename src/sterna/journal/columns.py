"""The frames of the journal in Arrow's words, for readers that take them in bulk: the feed, files of Parquet, Spark.

The journal itself writes and reads them without Arrow's library, see `record_batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sterna.journal.record_batch import encode_messages
from sterna.mqtt.message import Message

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

#: The columns that readers see: all.
SCHEMA: Any = pa.schema([*OWN_SCHEMA, *_ELSEWHERE])


def to_batch(messages: Sequence[Message]) -> Any:
    body, from_elsewhere = encode_messages(messages)
    return read_batch(body, from_elsewhere=from_elsewhere)


def read_batch(body: bytes, *, from_elsewhere: bool) -> Any:
    """The record batch in a frame's body; the caller has checked the checksum."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA if from_elsewhere else OWN_SCHEMA)


def with_every_column(batch: Any) -> Any:
    if batch.num_columns == len(SCHEMA):
        return batch
    nulls = [pa.nulls(batch.num_rows, field.type) for field in _ELSEWHERE]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=SCHEMA)
