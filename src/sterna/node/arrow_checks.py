"""Is what claims to be an Arrow record batch one?  Asked before anything looks into bytes that came from elsewhere."""

from __future__ import annotations

import re
import struct
from typing import Any

_U32, _I32, _U16, _I64 = (struct.Struct(code) for code in ("<I", "<i", "<H", "<q"))
_BYTE = struct.Struct("<B")

_PREFIX_BYTES = 8
"""Before the metadata: four bytes that say it is new-style, and its length."""
_RECORD_BATCH = 3
#: Slots in the tables of Arrow's Message and RecordBatch (format/Message.fbs), each two bytes behind the first two.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 4 + 2 * 1, 4 + 2 * 2, 4 + 2 * 3
_COMPRESSION = 4 + 2 * 3

LAYOUTS_MAX = 16
"""Remembered: whoever writes batches lays their metadata out in the same way each time."""

#: Of messages that were looked into: what others like them have in common, where the length of the body stands, and how
#: much comes before the body.
_known: list[tuple[re.Pattern[bytes], int, int]] = []


def check_message(message: memoryview) -> None:
    """One encapsulated record batch, no more and no less, and not compressed: no node compresses, and nobody could tell
    what a few bytes would grow to.  Raises ValueError or struct.error.  Arrow itself checks the rest of the metadata.
    """
    for layout, size_at, before in _known:
        if layout.match(message):
            if _I64.unpack_from(message, size_at)[0] + before != len(message):
                raise ValueError("a record batch of another length than it has")
            return
    looked = _Looked(message)
    if len(_known) < LAYOUTS_MAX:
        _known.append(looked.layout())


class _Looked:
    """A look into the metadata of one message, which remembers where it looked."""

    def __init__(self, message: memoryview) -> None:
        self._message = message
        self._seen: list[tuple[int, int]] = []
        self._size_at, self._before = self._look()

    def _at(self, kind: struct.Struct, place: int) -> int:
        if not 0 <= place <= len(self._message) - kind.size:
            raise ValueError("no Arrow message")
        self._seen.append((place, place + kind.size))
        return int(kind.unpack_from(self._message, place)[0])

    def _slot(self, table: int, slot: int) -> int:
        """Where a field of a table stands; 0 if it has none."""
        slots = table - self._at(_I32, table)
        place = self._at(_U16, slots + slot) if self._at(_U16, slots) > slot else 0
        return table + place if place else 0

    def _look(self) -> tuple[int, int]:
        size = self._at(_I32, 4)
        if self._at(_U32, 0) != 0xFFFFFFFF or not 0 < size <= len(self._message) - _PREFIX_BYTES:
            raise ValueError("no Arrow message")
        table = _PREFIX_BYTES + self._at(_U32, _PREFIX_BYTES)
        kind, header, body = (self._slot(table, slot) for slot in (_HEADER_TYPE, _HEADER, _BODY_LENGTH))
        if not kind or self._at(_BYTE, kind) != _RECORD_BATCH or not header or not body:
            raise ValueError("no record batch")
        if self._slot(header + self._at(_U32, header), _COMPRESSION):
            raise ValueError("a compressed record batch")
        if not 0 <= body <= len(self._message) - _I64.size or any(
            start < body + _I64.size and body < stop for start, stop in self._seen
        ):
            raise ValueError("no Arrow message")
        if _PREFIX_BYTES + size + _I64.unpack_from(self._message, body)[0] != len(self._message):
            raise ValueError("a record batch of another length than it has")
        return body, _PREFIX_BYTES + size

    def layout(self) -> tuple[re.Pattern[bytes], int, int]:
        """A look would find the same of whatever matches, but for the length of the body."""
        seen = {place for start, stop in self._seen for place in range(start, stop)}
        upto = max(seen) + 1
        bytes_of = (
            re.escape(bytes(self._message[place : place + 1])) if place in seen else b"." for place in range(upto)
        )
        return re.compile(b"".join(bytes_of), re.DOTALL), self._size_at, self._before


def check_batch(batch: Any, schema: Any) -> None:
    """A batch or a table whose lengths are those of its bytes, and that has a value where there must be one.  Raises
    ValueError."""
    batch.validate(full=True)
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"{field.name} is missing in some rows")
