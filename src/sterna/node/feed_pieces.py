"""The bytes that a feed sends for a range of the journal, and how a reader gets the rows back.

A piece of a read is one byte that says its kind, and then

    AS_IT_LIES  frames of the journal (header and body, see journal/frames.py) end to end, the very bytes of the disk;
    CUT         frames of which most rows are of no interest, each as a msgpack array [base, epoch, from_elsewhere, size
                of the row numbers, size of the batch], then the row numbers (u32, little endian) of the rows left, then
                these rows as an Arrow IPC record batch.  A u16 before the array is its length.

The node may send more rows than were asked for and the reader cuts exactly: rows outside the range, copies of other
nodes' messages, other topics, other times.  So leaving rows out on the node is a matter of cost alone.  It leaves out
frames in whose bytes no word of a filter stands, or that turn out to have no row of interest, cuts those that are
mostly of none, and sends all others as they lie; small frames are not looked into.  Offsets and epochs are in the
headers, and no batch is rebuilt for them.

A reader believes nothing of what it is sent: Arrow reads as it is told to, and where lengths lie it reads what is not
there, which ends the process.  So every batch is checked (`arrow_checks`) before anybody looks into it.
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sterna.journal.columns import OWN_SCHEMA, SCHEMA, read_batch
from sterna.journal.filter_set import FilterSet
from sterna.journal.frames import FROM_ELSEWHERE, HEADER_BYTES, MESSAGES, FrameHeader, parse_header
from sterna.journal.table import as_table, numbers, own_rows, repeated, rows_between, rows_of_interest
from sterna.node.arrow_checks import check_batch, check_message
from sterna.vocabulary.errors import JournalCorrupt, ProtocolError

AS_IT_LIES = 0
CUT = 1

LOOK_ROWS_MIN = 256
"""Looking into a frame costs what sending hundreds of rows costs: smaller ones are sent unseen."""
NEEDLES_MAX = 8
"""Filters whose words are looked for in the bytes of a frame."""
CUT_SHARE = 0.5
"""A frame is cut if less than this part of its rows is of interest."""

_HEADER = struct.Struct("<IBBHIIQQIII")
_CHECKED_BYTES = HEADER_BYTES - 4
_CUT_LENGTH = struct.Struct("<H")
_MAGIC = 0x4E525453


@dataclass(frozen=True, slots=True)
class FeedQuestion:
    """Which rows a reader wants."""

    start: int
    stop: int
    interest: FilterSet | None = None
    """None: every topic."""
    since_us: int | None = None
    until_us: int | None = None
    needles: tuple[bytes, ...] = ()
    """Words one of which stands in every message of interest; none if there are no such words.  See `needles_of`."""
    publishers: frozenset[bytes] | None = None
    qos: frozenset[int] | None = None

    @property
    def is_plain(self) -> bool:
        """No row of our own messages has to be looked at."""
        return self.interest is None and self.until_us is None and self.publishers is None and self.qos is None

    def inside(self, offsets: Any) -> Any:
        """Which offsets lie in the range; None: all of them.  They grow."""
        if not len(offsets) or (self.start <= offsets[0].as_py() and offsets[-1].as_py() < self.stop):
            return None
        return pc.and_(pc.greater_equal(offsets, self.start), pc.less(offsets, self.stop))

    def mask(self, batch: Any) -> Any:
        """Which rows it wants, offsets aside; None: all of them."""
        masks = []
        if batch.num_columns > len(OWN_SCHEMA):
            masks.append(own_rows(batch))
        if self.interest is not None:
            masks.append(rows_of_interest(batch.column("topic"), self.interest))
        masks.append(rows_between(batch.column("received_at"), self.since_us, self.until_us))
        if self.publishers is not None:
            masks.append(pc.is_in(batch.column("publisher"), value_set=pa.array(self.publishers, pa.binary())))
        if self.qos is not None:
            masks.append(pc.is_in(batch.column("qos"), value_set=pa.array(self.qos, pa.uint8())))
        found = [mask for mask in masks if mask is not None]
        whole = found[0] if found else None
        for mask in found[1:]:
            whole = pc.and_(whole, mask)
        return None if whole is not None and whole.true_count == batch.num_rows else whole


def needles_of(filters: Sequence[bytes] | None, publishers: Sequence[bytes] | None = None) -> tuple[bytes, ...]:
    """For each filter the longest part of it that a matching topic must have, nothing if one has none; then the names
    of publishers."""
    found = [max(re.split(rb"/?#|\+", topic_filter), key=len) for topic_filter in filters or ()]
    for words in (found, list(publishers or ())):
        if words and all(words) and len(words) <= NEEDLES_MAX:
            return tuple(dict.fromkeys(words))
    return ()


class Rot(NamedTuple):
    """A frame whose checksum does not hold."""

    byte: int
    """Where in the bytes that were picked from."""
    chain: bool = False
    """Its header cannot be trusted, so where the next frame begins cannot be told from here."""


@dataclass(slots=True)
class Picked:
    """Pieces to send of some bytes of a segment."""

    pieces: list[tuple[int, list[Any]]] = field(default_factory=list)
    """(kind, buffers); the buffers are views of the bytes given, or new ones."""
    rows: int = 0
    looks: int = 0
    looks_in_vain: int = 0
    """Frames that were looked into and sent as they lie."""
    rot: list[Rot] = field(default_factory=list)

    def add(self, kind: int, buffer: Any) -> None:
        if self.pieces and self.pieces[-1][0] == kind:
            self.pieces[-1][1].append(buffer)
        else:
            self.pieces.append((kind, [buffer]))


def pick(data: bytes, question: FeedQuestion, *, look: bool = True) -> Picked:
    """Pieces to send of `data`, which begins with a frame and ends with one.

    About a microsecond per frame if nothing has to be looked into; without `look` nothing is.
    """
    picked = Picked()
    view = memoryview(data)
    unpack, crc32, find, needles = _HEADER.unpack_from, zlib.crc32, data.find, question.needles
    plain = question.is_plain
    look_rows_min = LOOK_ROWS_MIN if look else 1 << 32
    run = position = 0  # what lies between them is to be sent as it lies
    while position + HEADER_BYTES <= len(data):
        magic, kind, flags, _, _, items, base, newest_us, length, crc, header_crc = unpack(data, position)
        if magic != _MAGIC or crc32(view[position : position + _CHECKED_BYTES]) != header_crc:
            break
        body = position + HEADER_BYTES
        end = body + length
        send = kind == MESSAGES and base < question.stop and base + items > question.start
        if send and (end > len(data) or crc32(view[body:end]) != crc):
            picked.rot.append(Rot(position))
            send = False
        if send and question.since_us is not None and newest_us < question.since_us and not flags & FROM_ELSEWHERE:
            send = False
        if send and needles and all(find(needle, body, end) < 0 for needle in needles):
            send = False
        cut = None
        if send and items >= look_rows_min and not (plain and not flags & FROM_ELSEWHERE):
            send, cut = _look(view[position:end], question)
            picked.looks_in_vain += send
            picked.looks += 1
        if send:
            picked.rows += items
        else:
            if position > run:
                picked.add(AS_IT_LIES, view[run:position])
            run = end
            if cut is not None:
                picked.rows += cut[0]
                picked.add(CUT, cut[1])
        position = end
    if position < len(data):
        picked.rot.append(Rot(position, chain=True))
    if min(position, len(data)) > run:
        picked.add(AS_IT_LIES, view[run:position])
    return picked


def _look(frame: memoryview, question: FeedQuestion) -> tuple[bool, tuple[int, bytes] | None]:
    """Send the frame as it lies?  If not: how many rows of it to send, and these."""
    header = parse_header(bytes(frame[:HEADER_BYTES]))
    assert header is not None
    batch = read_batch(frame[HEADER_BYTES:], from_elsewhere=header.from_elsewhere)  # type: ignore[arg-type]  # a view is as good
    mask = question.mask(batch)
    wanted = batch.num_rows if mask is None else mask.true_count
    if wanted >= CUT_SHARE * batch.num_rows:
        return True, None
    if not wanted:
        return False, None
    chosen = pc.indices_nonzero(mask).cast(pa.uint32())
    body = batch.filter(mask).serialize()
    places = array("I", chosen.to_pylist()).tobytes()
    words = (header.base, header.epoch, header.from_elsewhere, len(places), len(body))
    head = msgspec.msgpack.encode(words)
    return False, (wanted, b"".join((_CUT_LENGTH.pack(len(head)), head, places, body)))


#: Arrow calls some of what it cannot read an OSError, though nothing is read from any file.
_NONSENSE = (
    struct.error,
    msgspec.MsgspecError,
    pa.ArrowException,
    ProtocolError,
    OSError,
    ValueError,
    LookupError,
    OverflowError,
    TypeError,
)


class Rows(NamedTuple):
    """Some rows as a reader gets them, and the offset and epoch of each."""

    batch: Any
    offsets: Any
    epochs: Any


def unpack(piece: memoryview, rows_min: int = 1) -> Iterator[Rows]:
    """The rows in a piece of a read, frames gathered until there are `rows_min` rows.  Raises JournalCorrupt if the
    piece is none."""
    try:
        yield from _frames(piece[1:], rows_min) if piece[0] == AS_IT_LIES else _cuts(piece[1:])
    except _NONSENSE as error:
        raise JournalCorrupt(f"what the node sent is no piece of a journal: {error}") from error


def _frames(data: memoryview, rows_min: int) -> Iterator[Rows]:
    gathered: list[tuple[FrameHeader, memoryview]] = []
    rows = position = 0
    while position < len(data):
        header = parse_header(bytes(data[position : position + HEADER_BYTES]))
        if header is None:
            raise ValueError(f"no frame at byte {position}")
        end = position + HEADER_BYTES + header.length
        if end > len(data):
            raise ValueError(f"the frame at byte {position} is longer than what is left")
        body = data[position + HEADER_BYTES : end]
        position = end
        if header.kind != MESSAGES:
            continue
        if zlib.crc32(body) != header.crc:
            raise ValueError(f"the checksum of the frame at offset {header.base} does not hold")
        if gathered and (rows >= rows_min or gathered[-1][0].from_elsewhere != header.from_elsewhere):
            yield _gathered(gathered)
            gathered, rows = [], 0
        gathered.append((header, body))
        rows += header.items
    if gathered:
        yield _gathered(gathered)


def _gathered(frames: list[tuple[FrameHeader, memoryview]]) -> Rows:
    """Several frames with the same columns as one batch.  Arrow reads many at once as a stream much faster than one by
    one, and small frames are what a quiet node writes."""
    headers = [header for header, _ in frames]
    for _, body in frames:
        check_message(body)
    schema = SCHEMA if headers[0].from_elsewhere else OWN_SCHEMA
    if len(frames) == 1:
        batch = pa.ipc.read_record_batch(pa.py_buffer(frames[0][1]), schema)
        check_batch(batch, schema)
    else:
        stream = b"".join((schema.serialize(), *(body for _, body in frames)))
        table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
        check_batch(table, schema)
        table = table.combine_chunks()
        batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema)
    if batch.num_rows != sum(header.items for header in headers):
        raise ValueError(f"the frame at offset {headers[0].base} has not as many rows as it says")
    offsets = numbers([(header.base, header.items) for header in headers])
    return Rows(batch, offsets, repeated([(header.epoch, header.items) for header in headers]))


def _cuts(data: memoryview) -> Iterator[Rows]:
    position = 0
    while position < len(data):
        (length,) = _CUT_LENGTH.unpack_from(data, position)
        position += _CUT_LENGTH.size
        words = msgspec.msgpack.decode(data[position : position + length], type=tuple[int, int, bool, int, int])
        base, epoch, from_elsewhere, places_size, body_size = words
        position += length
        if not 0 <= places_size <= len(data) - position or not 0 < body_size <= len(data) - position - places_size:
            raise ValueError(f"the rows of the frame at offset {base} are longer than what is left")
        numbers_end = position + places_size
        places = pa.Array.from_buffers(pa.uint32(), places_size // 4, [None, pa.py_buffer(data[position:numbers_end])])
        position = numbers_end + body_size
        body, schema = data[numbers_end:position], SCHEMA if from_elsewhere else OWN_SCHEMA
        check_message(body)
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        check_batch(batch, schema)
        if batch.num_rows != len(places):
            raise ValueError(f"the frame at offset {base} has not as many rows as it says")
        yield Rows(batch, pc.add(places.cast(pa.int64()), base), repeated([(epoch, batch.num_rows)]))


def table_of(rows: Rows, question: FeedQuestion, node: str, columns: Sequence[str] | None = None) -> Any:
    """The rows that were asked for as a batch of the table; None if there are none.  Raises JournalCorrupt."""
    try:
        return _table_of(rows, question, node, columns)
    except _NONSENSE as error:  # topics that are no text, properties that are none
        raise JournalCorrupt(f"what the node sent are no messages: {error}") from error


def _table_of(rows: Rows, question: FeedQuestion, node: str, columns: Sequence[str] | None) -> Any:
    batch, offsets, epochs = rows
    mask, inside = question.mask(batch), question.inside(offsets)
    if inside is not None:
        mask = inside if mask is None else pc.and_(mask, inside)
    if mask is not None:
        batch, offsets, epochs = batch.filter(mask), offsets.filter(mask), epochs.filter(mask)
    return as_table(batch, offsets, epochs, node, columns) if batch.num_rows else None
