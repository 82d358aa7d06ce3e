"""The journal as a table: one row for each message that entered at this node, in columns a data engineer expects.

Copies of other nodes' messages stand in the journal too; they are left out here, so that the tables of all nodes of a
network together hold each message once.  Nothing is looked at row by row: topics and properties repeat, so each
different one is looked at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sterna.journal.filter_set import FilterSet
from sterna.mqtt import properties as prop
from sterna.mqtt import wire

_TEXT = pa.string()
_NUMBER = pa.int64()
#: As they came: in order, and a name may repeat.
_PAIRS = pa.list_(pa.field("element", pa.struct([pa.field("key", _TEXT), pa.field("value", _TEXT)])))

#: (origin, offset) names a row; so does (origin, epoch, sequence), as messages carry it through the network.
TABLE_SCHEMA: Any = pa.schema(
    [
        pa.field("topic", _TEXT),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int8()),
        pa.field("retain", pa.bool_()),
        pa.field("publisher", _TEXT),
        pa.field("origin", _TEXT),
        pa.field("epoch", _NUMBER),
        pa.field("sequence", _NUMBER),
        pa.field("offset", _NUMBER),
        pa.field("ingress_time", pa.timestamp("us", "UTC")),
        pa.field("properties", pa.map_(_TEXT, _TEXT)),
        pa.field("content_type", _TEXT),
        pa.field("user_properties", _PAIRS),
        pa.field("expiry_time", pa.timestamp("us", "UTC")),
    ]
)

#: More columns for a reader of the feed that passes messages on: encoded properties as they came, and the instant
#: after which nobody may have it (0: never).  No column of the table.
APART_SCHEMA: Any = pa.schema([pa.field("property_block", pa.binary()), pa.field("expires_us", _NUMBER)])

#: How the `shares` of a message begin that is for members of shared subscriptions only: such a one was passed on here
#: by another node, whose table has it.
FOR_SHARES_ONLY = b"\x92\xc3"

#: Names of properties that are not the user's own; no content type, which has a column.
_NAMES = {
    prop.PAYLOAD_FORMAT: "$payload-format",
    prop.RESPONSE_TOPIC: "$response-topic",
    prop.CORRELATION_DATA: "$correlation-data",
}


def schema_of(columns: Sequence[str]) -> Any:
    """Of these columns, in this order."""
    return pa.schema([(TABLE_SCHEMA if name in TABLE_SCHEMA.names else APART_SCHEMA).field(name) for name in columns])


def own_rows(batch: Any) -> Any:
    """Which rows of a frame from elsewhere entered here: a mask, or None if all did."""
    origins, shares = batch.column("origin"), batch.column("shares")
    if origins.null_count == len(origins) and shares.null_count == len(shares):
        return None
    passed_on = pc.starts_with(shares, FOR_SHARES_ONLY).fill_null(False)
    return pc.and_(origins.is_null(), pc.invert(passed_on))


def rows_of_interest(topics: Any, interest: FilterSet) -> Any:
    """Which rows have a topic of interest: a mask."""
    coded = topics.dictionary_encode()
    wanted = pa.array([topic in interest for topic in coded.dictionary.to_pylist()], pa.bool_())
    return wanted.take(coded.indices)


def rows_between(instants: Any, since_us: int | None, until_us: int | None) -> Any:
    """Which rows came in at `since_us` or later and before `until_us`: a mask."""
    numbers = instants.view(_NUMBER)
    kept = pc.greater_equal(numbers, since_us) if since_us is not None else None
    if until_us is None:
        return kept
    before = pc.less(numbers, until_us)
    return before if kept is None else pc.and_(kept, before)


def numbers(runs: Sequence[tuple[int, int]]) -> Any:
    """Dense numbers: for each (first, count) of `runs` first, first + 1, ..."""
    joined: list[list[int]] = []  # one run where they follow each other, as they nearly always do
    for first, count in runs:
        if joined and joined[-1][1] == first:
            joined[-1][1] = first + count
        else:
            joined.append([first, first + count])
    return pa.concat_arrays([pa.arange(first, stop) for first, stop in joined] or [pa.array([], _NUMBER)])


def repeated(runs: Sequence[tuple[int, int]]) -> Any:
    """For each (number, count) of `runs` the number so often."""
    made = array("q")
    for number, same in groupby(runs, itemgetter(0)):
        made.extend(array("q", [number]) * sum(count for _, count in same))
    return pa.Array.from_buffers(_NUMBER, len(made), [None, pa.py_buffer(made)])


def as_table(rows: Any, offsets: Any, epochs: Any, node: str, columns: Sequence[str] | None = None) -> Any:
    """Rows of the journal, all of them this node's own, as a batch of the table (or of these columns of it)."""
    schema = TABLE_SCHEMA if columns is None else schema_of(columns)
    told: tuple[Any, Any, Any] = (None, None, None)
    if {"properties", "content_type", "user_properties"} & set(schema.names):
        told = _properties(rows.column("properties"))
    makers = {
        "topic": lambda: rows.column("topic").cast(_TEXT),
        "payload": lambda: rows.column("payload"),
        "qos": lambda: rows.column("qos").view(pa.int8()),
        "retain": lambda: rows.column("retain"),
        "publisher": lambda: rows.column("publisher").cast(_TEXT),
        "origin": lambda: pa.repeat(pa.scalar(node, _TEXT), rows.num_rows),
        "epoch": lambda: epochs,
        "sequence": lambda: offsets,
        "offset": lambda: offsets,
        "ingress_time": lambda: rows.column("received_at"),
        "properties": lambda: told[0],
        "content_type": lambda: told[1],
        "user_properties": lambda: told[2],
        "expiry_time": lambda: rows.column("expires_at"),
        "property_block": lambda: rows.column("properties"),
        "expires_us": lambda: pc.fill_null(rows.column("expires_at").cast(_NUMBER), 0),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in schema.names], schema=schema)


def _properties(column: Any) -> tuple[Any, Any, Any]:
    """The columns `properties`, `content_type` and `user_properties`."""
    if _all_empty(column):  # nearly always
        return *_no_properties(len(column)), _no_pairs(len(column))
    coded = column.dictionary_encode()
    found = zip(*map(_read, coded.dictionary.to_pylist()), strict=True)
    kinds = (TABLE_SCHEMA.field("properties").type, _TEXT, _PAIRS)
    maps, types, pairs = (pa.array(one, kind).take(coded.indices) for one, kind in zip(found, kinds, strict=True))
    return maps, types, pairs


def _all_empty(column: Any) -> bool:
    """Where the first value begins, the last one ends."""
    if not len(column):
        return True
    starts = memoryview(column.buffers()[1]).cast("i")
    return bool(starts[column.offset] == starts[column.offset + len(column)])


def _no_properties(rows: int) -> tuple[Any, Any]:
    maps = pa.MapArray.from_arrays(_nowhere(rows), pa.array([], _TEXT), pa.array([], _TEXT))
    return maps, pa.nulls(rows, _TEXT)


def _no_pairs(rows: int) -> Any:
    return pa.ListArray.from_arrays(_nowhere(rows), pa.array([], _PAIRS.value_type), type=_PAIRS)


def _nowhere(rows: int) -> Any:
    return pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(bytes(4 * (rows + 1)))])


def _read(block: bytes) -> tuple[list[tuple[str, str]], str | None, list[dict[str, str]]]:
    """One block of properties, as the broker checked it when it came in: (the map, the content type, the user's own).

    A map has a name once and MQTT may say it several times: the last one stands, and one of ours before a user's.
    """
    ours: dict[str, str] = {}
    users: list[dict[str, str]] = []
    content_type = None
    position = 0
    while position < len(block):
        identifier, position = wire.read_variable(block, position, len(block))
        value, position = prop.READERS[identifier](block, position, len(block))
        if identifier == prop.USER_PROPERTY:
            users.append({"key": value[0].decode(), "value": value[1].decode()})
        elif identifier == prop.CONTENT_TYPE:
            content_type = value.decode()
        elif identifier in _NAMES:
            ours[_NAMES[identifier]] = _shown(identifier, value)
    return list(({one["key"]: one["value"] for one in users} | ours).items()), content_type, users


def _shown(identifier: int, value: Any) -> str:
    if identifier == prop.CORRELATION_DATA:
        return bytes(value).hex()
    return value.decode() if isinstance(value, bytes) else str(value)
