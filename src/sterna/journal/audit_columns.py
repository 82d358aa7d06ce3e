"""Audit records of sessions and deliveries as Arrow columns; see `audit_records` for their meaning.

Only nodes with `[journal] deliveries` write them, and only those load Arrow for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.vocabulary.identity import Stamp

_INSTANT = pa.timestamp("us", "UTC")

SESSION_SCHEMA: Any = pa.schema(
    [
        pa.field("what", pa.string(), nullable=False),
        pa.field("at", _INSTANT, nullable=False),
        pa.field("client", pa.binary(), nullable=False),
        pa.field("session", pa.int64(), nullable=False),
        pa.field("filter", pa.binary()),
        pa.field("qos", pa.uint8(), nullable=False),
        pa.field("no_local", pa.bool_(), nullable=False),
        pa.field("rules", pa.string()),
        pa.field("vector", pa.map_(pa.string(), pa.struct([("epoch", pa.int64()), ("sequence", pa.int64())]))),
        pa.field("number", pa.int64()),
    ]
)

DELIVERY_SCHEMA: Any = pa.schema(
    [
        pa.field("at", _INSTANT, nullable=False),
        pa.field("client", pa.binary(), nullable=False),
        pa.field("session", pa.int64(), nullable=False),
        pa.field("share", pa.binary()),
        pa.field("origin", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("qos", pa.uint8(), nullable=False),
        pa.field("resent", pa.bool_(), nullable=False),
        pa.field("retained", pa.bool_(), nullable=False),
        pa.field("dropped", pa.string()),
        pa.field("messages", pa.int64(), nullable=False),
    ]
)


def session_batch(records: Sequence[SessionRecord]) -> Any:
    return _batch(records, SESSION_SCHEMA, {"at": _microseconds, "vector": _entries})


def delivery_batch(records: Sequence[DeliveryRecord]) -> Any:
    return _batch(records, DELIVERY_SCHEMA, {"at": _microseconds})


def _batch(records: Sequence[tuple[Any, ...]], schema: Any, spelled: Mapping[str, Any]) -> Any:
    columns = []
    for field, values in zip(schema, zip(*records, strict=True), strict=True):
        spell = spelled.get(field.name)
        columns.append(pa.array(list(map(spell, values)) if spell else values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _microseconds(instant: float) -> int:
    return int(instant * 1e6 + 0.5)


def _entries(vector: Mapping[str, Stamp] | None) -> list[tuple[str, dict[str, int]]] | None:
    if vector is None:
        return None
    return [(origin, {"epoch": epoch, "sequence": sequence}) for origin, (epoch, sequence) in sorted(vector.items())]
