"""The body of a frame of messages: one Arrow IPC record batch, written and read without Arrow's library.

The schema never changes (`columns.py` has it in Arrow's words), so of the metadata, a FlatBuffer, only numbers differ
from batch to batch: how many rows, how many nulls in each column, and where each buffer lies.  Any reader of Arrow IPC
takes these bytes, and record batches of this schema that others wrote are read here, whatever the layout of their
metadata.

Row i of a batch is the message at the frame's base offset + i.  Instants are kept to the microsecond.  Most frames hold
only messages that entered at this node; they are spared the columns that say where a message comes from.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalCorrupt
from sterna.vocabulary.identity import Identity

#: Buffers of each column: validity and values, and between the two of byte strings where each begins.
OWN_BUFFERS: Final = (3, 3, 2, 2, 3, 2, 2, 3)
EVERY_BUFFER: Final = (*OWN_BUFFERS, 3, 2, 2, 3)

_CONTINUATION: Final = b"\xff\xff\xff\xff"
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")


def to_microseconds(instant: float) -> int:
    return int(instant * 1e6 + 0.5)


def _metadata(buffers: Sequence[int]) -> tuple[struct.Struct, bytes, bytes, bytes, bytes]:
    """The metadata of a batch, as Arrow's C++ library lays it out, and the bytes in it that never change.

    In between stand: length of the body, number of rows, (offset, length) of each buffer, (rows, nulls) of each column.
    """
    count, columns = sum(buffers), len(buffers)
    layout = struct.Struct(f"<40sq24sq8s{2 * count}q8s{2 * columns}q")
    # Message: vtable at 8, table at 20 (version 5, a record batch, which stands at 52); the table's last field is next.
    message = struct.pack("<IIHHHHHHiBBHI", 20, 0, 12, 22, 6, 5, 8, 12, 12, 0, 3, 4, 24)
    # RecordBatch: vtable at 42, table at 52, whose last field, the number of rows, is next; buffers at 76, then nodes.
    batch = struct.pack("<HHHHHHiII", 0, 10, 24, 12, 4, 8, 10, 80 + 16 * count + 4 - 56, 76 - 60)
    first = _CONTINUATION + _U32.pack(layout.size - 8) + message
    return layout, first, batch, struct.pack("<II", 0, count), struct.pack("<II", 0, columns)


_OWN: Final = _metadata(OWN_BUFFERS)
_EVERY: Final = _metadata(EVERY_BUFFER)
_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class _Body:
    """The buffers of a batch, one after the other."""

    __slots__ = ("nodes", "parts", "places", "rows", "size")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        length = len(data)
        self.places.append(self.size)
        self.places.append(length)
        if length:
            self.parts.append(data)
            rest = length & 7
            if rest:
                self.parts.append(_PADDING[rest])
                length += 8 - rest
            self.size += length

    def column(self, data: bytes) -> None:
        """Without nulls."""
        self.nodes.append(self.rows)
        self.nodes.append(0)
        self.add(b"")
        self.add(data)

    def byte_strings(self, values: list[bytes]) -> None:
        self.nodes.append(self.rows)
        self.nodes.append(0)
        self.add(b"")
        self._add_strings(values)

    def _add_strings(self, values: list[bytes]) -> None:
        data = b"".join(values)
        if data:
            self.add(array("i", accumulate(map(len, values), initial=0)).tobytes())
        else:
            self.add(bytes(4 * (self.rows + 1)))
        self.add(data)

    def validity(self, there: list[bool]) -> None:
        """Of a column that may have nulls; its values follow.  An empty list: nothing but nulls."""
        nulls = self.rows - sum(there)
        self.nodes.append(self.rows)
        self.nodes.append(nulls)
        if not nulls:
            self.add(b"")
        else:
            self.add(_bits(there) if there else bytes((self.rows + 7) // 8))

    def optional_strings(self, values: list[bytes], there: list[bool]) -> None:
        self.validity(there)
        self._add_strings(values)


def encode_messages(messages: Sequence[Message]) -> tuple[bytes, bool]:
    """HOT.  The body of a frame, and whether it has every column."""
    body = _Body(len(messages))
    body.byte_strings([m.topic for m in messages])
    body.byte_strings([m.payload for m in messages])
    body.column(bytes([m.qos for m in messages]))
    body.column(_bits([m.retain for m in messages]))
    body.byte_strings([m.publisher for m in messages])
    body.column(array("q", [int(m.received_at * 1e6 + 0.5) for m in messages]).tobytes())
    expiries = [m.expires_at for m in messages]
    body.validity([at != 0.0 for at in expiries] if any(expiries) else [])
    body.add(array("q", [int(at * 1e6 + 0.5) for at in expiries]).tobytes() if any(expiries) else bytes(8 * body.rows))
    body.byte_strings([m.properties for m in messages])
    for m in messages:
        if m.identity is not None or m.shares:
            _add_identities(body, messages)
            return _batch(body, _EVERY), True
    return _batch(body, _OWN), False


def _add_identities(body: _Body, messages: Sequence[Message]) -> None:
    identities = [m.identity for m in messages]
    there = [known is not None for known in identities]
    body.optional_strings([b"" if known is None else known.origin.encode() for known in identities], there)
    body.validity(there)
    body.add(struct.pack(f"<{body.rows}I", *[0 if known is None else known.epoch for known in identities]))
    body.validity(there)
    body.add(struct.pack(f"<{body.rows}Q", *[0 if known is None else known.sequence for known in identities]))
    shares = [m.shares for m in messages]
    body.optional_strings(shares, [share != b"" for share in shares])


def _batch(body: _Body, metadata: tuple[struct.Struct, bytes, bytes, bytes, bytes]) -> bytes:
    layout, message, batch, buffers, nodes = metadata
    packed = layout.pack(message, body.size, batch, body.rows, buffers, *body.places, nodes, *body.nodes)
    return b"".join([packed, *body.parts])


def _bits(flags: list[bool]) -> bytes:
    """Eight to a byte, the first one lowest."""
    if True not in flags:
        return bytes((len(flags) + 7) // 8)
    number = int("".join(["1" if flag else "0" for flag in reversed(flags)]), 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def _field(body: bytes, table: int, number: int) -> int:
    """Where a field of a FlatBuffer's table stands."""
    vtable = table - _I32.unpack_from(body, table)[0]
    place: int = body[vtable + 4 + 2 * number] | body[vtable + 5 + 2 * number] << 8
    return table + place if place else 0


def _target(body: bytes, place: int) -> int:
    target: int = place + _U32.unpack_from(body, place)[0]
    return target


class _Layout:
    """Where the buffers of a record batch lie in a body, and how many nulls each column has."""

    def __init__(self, body: bytes, columns: Sequence[int]) -> None:
        try:
            message = _target(body, 8)
            start = 8 + _U32.unpack_from(body, 4)[0]
            batch = _target(body, _field(body, message, 2))
            self.rows: int = _I64.unpack_from(body, _field(body, batch, 0))[0]
            nodes, buffers = _target(body, _field(body, batch, 1)), _target(body, _field(body, batch, 2))
            self.nulls: tuple[int, ...] = struct.unpack_from(f"<{2 * len(columns)}q", body, nodes + 4)[1::2]
            places = struct.unpack_from(f"<{2 * sum(columns)}q", body, buffers + 4)
        except (struct.error, IndexError) as error:
            raise JournalCorrupt(f"a record batch of the journal has no sense: {error}") from error
        self.spans: list[tuple[int, int]] = []
        for number in range(0, len(places), 2):
            first = start + places[number]
            self.spans.append((first, first + places[number + 1]))
            if not start <= first <= self.spans[-1][1] <= len(body):
                raise JournalCorrupt("a record batch of the journal has no sense: a buffer lies outside of it")
        if not 0 <= self.rows <= len(body):
            raise JournalCorrupt(f"a record batch of the journal has no sense: {self.rows} rows")

    def buffer(self, number: int, bytes_min: int) -> tuple[int, int]:
        """Where the first so many bytes of a buffer lie."""
        first, end = self.spans[number]
        if first + bytes_min > end:
            raise JournalCorrupt(f"a record batch of the journal has no sense: buffer {number} is too short")
        return first, first + bytes_min

    def piece(self, body: bytes, number: int, length: int) -> bytes:
        start, stop = self.buffer(number, length)
        return body[start:stop]

    def part(self, view: memoryview, number: int, length: int) -> memoryview:
        start, stop = self.buffer(number, length)
        return view[start:stop]

    def strings(self, body: bytes, view: memoryview, number: int) -> tuple[bytes, Sequence[int]]:
        """All values of a column end to end, and where each begins."""
        first, end = self.spans[number + 2]
        if not self.rows:
            return b"", (0,)
        return body[first:end], self.part(view, number + 1, 4 * (self.rows + 1)).cast("i")

    def there(self, body: bytes, column: int, number: int) -> list[bool]:
        """Which rows of a column are not null."""
        rows = self.rows
        if not rows or not self.nulls[column]:
            return [True] * rows
        bits = int.from_bytes(self.piece(body, number, (rows + 7) // 8), "little")
        return [digit == "1" for digit in reversed(format(bits, f"0{rows}b")[-rows:])]


class MessageRows:
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

    def __init__(self, body: bytes, base: int, *, from_elsewhere: bool) -> None:
        """Of a frame's body, whose checksum the caller has checked."""
        layout = _Layout(body, EVERY_BUFFER if from_elsewhere else OWN_BUFFERS)
        rows, view = layout.rows, memoryview(body)
        self.base = base
        self.end = base + rows
        self._topic = layout.strings(body, view, 0)
        self._payload = layout.strings(body, view, 3)
        self._qos = layout.piece(body, 7, rows)
        self._retain = layout.piece(body, 9, (rows + 7) // 8)
        self._publisher = layout.strings(body, view, 10)
        self._received_at: Sequence[int] = layout.part(view, 14, 8 * rows).cast("q")
        self._expires_at: Sequence[int] | None = None  # all are null, which is NEVER
        if layout.nulls[6] < rows:
            instants: Sequence[int] = layout.part(view, 16, 8 * rows).cast("q")
            known = layout.there(body, 6, 15)
            self._expires_at = [instants[i] if known[i] else 0 for i in range(rows)]
        self._properties = layout.strings(body, view, 17)
        self._identities: list[Identity | None] | None = None
        self._shares: list[bytes] | None = None
        if from_elsewhere:
            self._identities = _identities(body, view, layout)
            shares, starts = layout.strings(body, view, 27)
            given = layout.there(body, 11, 27)
            self._shares = [shares[starts[i] : starts[i + 1]] if given[i] else b"" for i in range(rows)]

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
            0.0 if self._expires_at is None else self._expires_at[row] / 1e6,
            publishers[publisher[row] : publisher[row + 1]],
            self._received_at[row] / 1e6,
            offset,
        )
        if self._identities is not None:
            message.identity = self._identities[row]
        if self._shares is not None:
            message.shares = self._shares[row]
        return message


def _identities(body: bytes, view: memoryview, layout: _Layout) -> list[Identity | None]:
    rows, known = layout.rows, layout.there(body, 8, 20)
    origins, starts = layout.strings(body, view, 20)
    epochs: Sequence[int] = layout.part(view, 24, 4 * rows).cast("I")
    numbers: Sequence[int] = layout.part(view, 26, 8 * rows).cast("Q")
    return [
        Identity(origins[starts[i] : starts[i + 1]].decode(), epochs[i], numbers[i]) if known[i] else None
        for i in range(rows)
    ]
