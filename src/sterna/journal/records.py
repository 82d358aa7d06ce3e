"""What became of messages and sessions, as columns: the records an audit is made from.

They stand in the journal beside the messages, in frames of their own that recovery steps over.  A record is numbered by
its place: the byte its frame begins at, counted over all segments, and its row, so places grow in the order of writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sterna.vocabulary.stamps import Stamp

_INSTANT = pa.timestamp("us", "UTC")
_BYTE_BITS = 40
"""A segment has fewer bytes than 2 to this."""


class SessionRecord(NamedTuple):
    """Something that happened to a session, or to the node: then `client` is empty."""

    what: str
    """started | opened | closed | ended | moved | subscribed | stands | carried | arrived | unsubscribed; see
    `broker/records.py`."""
    at: float
    client: bytes = b""
    session: int = 0
    """Which of the client's sessions."""
    topic_filter: bytes | None = None
    qos: int = 0
    no_local: bool = False
    rules: str | None = None
    """What of its filter the client may read, if not everything: see `Permissions.reading`."""
    vector: Mapping[str, Stamp] | None = None
    number: int | None = None
    """Of one that moved or arrived: under which number another node came to own it."""


class DeliveryRecord(NamedTuple):
    """A message that a client has, or will not get."""

    at: float
    client: bytes
    """Empty if it was dropped for a shared subscription as a whole."""
    session: int
    share: bytes | None
    origin: str | None
    epoch: int | None
    sequence: int | None
    """Null, as origin and epoch, of messages of which only the number is known."""
    qos: int
    resent: bool = False
    retained: bool = False
    """It was sent because of a new subscription, not because it was published."""
    dropped: str | None = None
    """Why the client will not get it."""
    messages: int = 1


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


def place_of(serial: int, byte: int) -> int:
    return serial << _BYTE_BITS | byte


def serial_and_byte(place: int) -> tuple[int, int]:
    return place >> _BYTE_BITS, place & (1 << _BYTE_BITS) - 1
