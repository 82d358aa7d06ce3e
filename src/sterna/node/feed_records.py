"""Records of sessions and deliveries on their way to a reader, and back into rows there.

A piece is the byte RECORDS, then frames of the journal as they lie on the disk, each after its place (u64, big endian).
A reader that was interrupted goes on behind the last frame it has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sterna.journal.audit_columns import DELIVERY_SCHEMA, SESSION_SCHEMA
from sterna.journal.audit_records import place_of
from sterna.journal.frames import DELIVERIES, HEADER_BYTES, NUMBERED, SESSIONS, FrameHeader, parse_header
from sterna.journal.table import numbers, repeated
from sterna.node.arrow_checks import check_batch, check_message
from sterna.vocabulary.errors import JournalCorrupt

RECORDS = 2

#: Readers' names for the kinds of records.
KINDS = {"sessions": SESSIONS, "deliveries": DELIVERIES}

_PLACE = struct.Struct(">Q")

_TEXT = ("client", "filter", "share")
_OF_ANY = [("node", pa.string()), ("node_epoch", pa.int64()), ("place", pa.int64())]


def _table_schema(frame: Any) -> Any:
    fields = [pa.field(name, kind) for name, kind in _OF_ANY]
    for one in frame:
        kind = pa.string() if one.name in _TEXT else pa.int8() if one.type == pa.uint8() else one.type
        fields.append(pa.field(one.name, kind))
    return pa.schema(fields)


_SCHEMAS = {"sessions": SESSION_SCHEMA, "deliveries": DELIVERY_SCHEMA}

#: The tables of records as readers see them: those of the journal, with where and when each stands.
RECORD_TABLES = {name: _table_schema(schema) for name, schema in _SCHEMAS.items()}


@dataclass(slots=True)
class PickedRecords:
    buffers: list[Any] = field(default_factory=list)
    rows: int = 0
    reached: int = 0
    """The byte of the segment to go on from."""
    rotten: int = 0
    """Frames whose checksum does not hold."""
    is_broken: bool = False
    """There is no frame at `reached`."""


def pick_records(data: bytes, serial: int, start: int, kind: int, since_us: int | None) -> PickedRecords:
    """The frames of a kind in these bytes, which begin with a frame at byte `start` of the segment.

    A frame that is not whole is reached and not passed: the caller reads on from there.
    """
    picked = PickedRecords(reached=start)
    view = memoryview(data)
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = parse_header(data[position : position + HEADER_BYTES])
        if header is None:
            picked.is_broken = True
            break
        end = position + HEADER_BYTES + header.length
        if header.kind == kind and (since_us is None or header.newest_us >= since_us):
            if end > len(data):
                break
            if zlib.crc32(view[position + HEADER_BYTES : end]) == header.crc:
                picked.buffers += _PLACE.pack(place_of(serial, start + position)), view[position:end]
                picked.rows += header.items
            else:
                picked.rotten += 1
        position = end
        picked.reached = start + end
    return picked


def unpack_records(piece: memoryview, table: str, node: str) -> Iterator[tuple[int, Any]]:
    """Batches of the table, each with the place to go on from.  Raises JournalCorrupt if the piece is none."""
    try:
        if piece[0] != RECORDS:
            raise ValueError("it does not say that it holds records")
        position = 1
        while position < len(piece):
            (place,) = _PLACE.unpack_from(piece, position)
            position += _PLACE.size
            header = parse_header(bytes(piece[position : position + HEADER_BYTES]))
            if header is None or header.kind != KINDS[table]:
                raise ValueError(f"no frame at byte {position}")
            end = position + HEADER_BYTES + header.length
            body = piece[position + HEADER_BYTES : end]
            if end > len(piece):
                raise ValueError(f"the frame at byte {position} is longer than what is left")
            if zlib.crc32(body) != header.crc:
                raise ValueError(f"the checksum of the frame at byte {position} does not hold")
            rows = _read(header, body, _SCHEMAS[table])
            yield place + HEADER_BYTES + header.length, _as_table(rows, table, node, header.epoch, place)
            position = end
    # Arrow calls some of what it cannot read an OSError, though nothing is read from any file.
    except (struct.error, pa.ArrowException, OSError, ValueError, LookupError, OverflowError, TypeError) as error:
        raise JournalCorrupt(f"what the node sent are no records: {error}") from error


def _read(header: FrameHeader, body: memoryview, schema: Any) -> Any:
    is_older = header.kind == SESSIONS and not header.flags & NUMBERED
    written = pa.schema(list(schema)[:-1]) if is_older else schema
    check_message(body)
    rows = pa.ipc.read_record_batch(pa.py_buffer(body), written)
    check_batch(rows, written)
    if not is_older:
        return rows
    return pa.RecordBatch.from_arrays([*rows.columns, pa.nulls(rows.num_rows, schema.types[-1])], schema=schema)


def _as_table(rows: Any, table: str, node: str, epoch: int, place: int) -> Any:
    schema = RECORD_TABLES[table]
    count = rows.num_rows
    where = [
        pa.repeat(pa.scalar(node, pa.string()), count),
        repeated([(epoch, count)]),
        numbers([(place, count)]),
    ]
    columns = [
        column.view(pa.int8()) if kind == pa.int8() else column.cast(kind) if kind != column.type else column
        for column, kind in zip(rows.columns, schema.types[len(where) :], strict=True)
    ]
    return pa.RecordBatch.from_arrays([*where, *columns], schema=schema)
