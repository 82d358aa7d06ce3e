"""Bytes of an authenticated connection: frames joined into batches, each with an acknowledgement and a MAC.

    batch: length and what it is (variable), batches acknowledged since the last one (variable), MAC 8 bytes, frames
    frame: kind u8, length u16 (0xFFFF: a u32 follows), body

A batch is opened only if its MAC holds, and the MAC also covers how many batches came before it on this connection:
whatever is changed, dropped, repeated or moved on the way ends the connection and is never delivered.  So numbers need
not be sent: batches with frames follow each other from the one the handshake agreed on.

Small batches are sent as their difference from a similar earlier one (`batch_delta`).  Where there is none they are
deflated, each as a continuation of those before it: what they share is then said once per connection.  Large ones are
not worth the time.  A forger has one try per connection, so eight bytes of MAC are enough.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final

from sterna.overlay.batch_delta import BYTES, DeltaReader, DeltaWriter
from sterna.vocabulary.errors import SternaError

MAC_BYTES: Final = 8
LONG: Final = 0xFFFF
# Kinds of batches: lowest bits of the first number.
PLAIN: Final = 0
DEFLATED: Final = 1
FAREWELL: Final = 2
DIFFERENCE: Final = 3
DEFLATE_BYTES_MAX: Final = 2048
WINDOW_BITS: Final = 13
LOW: Final = 0xFFFF_FFFF
"""Acknowledgements travel as their lowest 32 bits; sender and receiver know the rest."""

_SHORT_FRAME: Final = Struct(">BH")
_LONG_FRAME: Final = Struct(">BHI")
HEAD_BYTES: Final = 2 + MAC_BYTES
"""Of a batch that is small and acknowledges little; larger ones have a few bytes more."""
_TAIL: Final = b"\x00\x00\xff\xff"
"""The end of every piece that zlib writes; it is left out on the wire."""
NUMBER_BYTES_MAX: Final = 5
FRAME_HEAD_BYTES: Final = _SHORT_FRAME.size
FRAME_HEAD_BYTES_MAX: Final = _LONG_FRAME.size
LENGTH_BYTES: Final = 4
PROGRESS_BYTES: Final = 4096
"""So much of an unfinished batch counts as a sign of life."""


class BrokenBatch(SternaError):
    """The bytes are not what the peer sent, or the peer does not keep to the protocol."""


class Batch:
    __slots__ = ("ack", "farewell", "frames", "size")

    def __init__(self, ack: int, size: int, frames: list[tuple[int, bytes]], farewell: bytes) -> None:
        self.ack = ack
        self.size = size
        self.frames = frames
        #: Empty unless this is the last thing the peer says in this session.
        self.farewell = farewell


def _number(value: int) -> bytes:
    """Seven bits a byte, lowest first; all but the last have the highest bit set."""
    if value < 0x80:
        return BYTES[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); the position is 0 if the number is not whole."""
    value = shift = 0
    for place in range(at, min(at + NUMBER_BYTES_MAX, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    if len(data) - at >= NUMBER_BYTES_MAX:
        raise BrokenBatch("a number without an end")
    return 0, 0


def read_head(data: bytes, at: int) -> tuple[int, int, int, int] | None:
    """(length, what it is, acknowledged, where the MAC begins) of the batch here; None if its head is not whole."""
    first, middle = _read_number(data, at)
    if not middle:
        return None
    acknowledged, end = _read_number(data, middle)
    return (first >> 2, first & 3, acknowledged, end) if end else None


class Unfolder:
    """Undoes what a `Sealer` does to small batches."""

    __slots__ = ("_limit", "_listener", "_stream")

    def __init__(self, limit: int) -> None:
        self._stream = zlib.decompressobj(-WINDOW_BITS)
        self._listener = DeltaReader()
        self._limit = limit

    def unfold(self, what: int, data: bytes) -> bytes:
        """HOT.  The frames of a batch that was deflated or told by a difference."""
        if what == DIFFERENCE:
            found = self._listener.restored(data)
            if found is None:
                raise BrokenBatch("a batch that differs from none")
            return found
        plain = self.inflate(data)
        self._listener.keep(plain)
        return plain

    def inflate(self, data: bytes) -> bytes:
        try:
            # One more than may come: zlib does not tell reliably whether it held something back.
            plain = self._stream.decompress(data + _TAIL, self._limit + 1)
        except zlib.error:
            raise BrokenBatch("a batch that cannot be inflated") from None
        if len(plain) > self._limit:
            raise BrokenBatch(f"a batch that inflates to more than {self._limit} bytes")
        if not plain or self._stream.eof:
            # Nothing is never deflated, and a stream lasts as long as its connection: what came after would be lost.
            raise BrokenBatch("a batch that ends its stream")
        return plain


class Sealer:
    """One direction of one connection, sending."""

    __slots__ = ("_acked", "_count", "_key", "_small_max", "_stream", "_teller")

    def __init__(self, key: bytes, *, compress: bool = True) -> None:
        self._key = key
        self._count = 0
        self._acked = 0
        self._small_max = DEFLATE_BYTES_MAX if compress else 0
        self._stream = zlib.compressobj(6, zlib.DEFLATED, -WINDOW_BITS, 6)
        self._teller = DeltaWriter()

    def seal(self, ack: int, payload: bytes, like: bytes = b"", farewell: bool = False) -> tuple[bytes, int]:
        """HOT.  The batch, and how many of its bytes are head."""
        what = PLAIN
        if farewell:
            what = FAREWELL
        elif 0 < len(payload) <= self._small_max:
            told = self._teller.difference(like, payload) if like else None
            if told is not None:
                payload = told
                what = DIFFERENCE
            else:
                self._teller.keep(like, payload)
                payload = (self._stream.compress(payload) + self._stream.flush(zlib.Z_SYNC_FLUSH))[: -len(_TAIL)]
                what = DEFLATED
        head = _number(len(payload) << 2 | what) + _number((ack - self._acked) & LOW)
        self._acked = ack
        if len(payload) <= DEFLATE_BYTES_MAX:
            mac = _mac_of_small(self._key, self._count, head + payload)
        else:
            mac = _mac(self._key, self._count, head, payload)
        self._count += 1
        return b"".join((head, mac, payload)), len(head) + MAC_BYTES


class Opener:
    """One direction of one connection, receiving: `feed` bytes, then ask `next` until it has no more."""

    __slots__ = (
        "_acked",
        "_at",
        "_chunks",
        "_count",
        "_data",
        "_have",
        "_key",
        "_limit",
        "_need",
        "_noted",
        "_unfolder",
    )

    def __init__(self, key: bytes, limit: int) -> None:
        self._key = key
        self._count = 0
        self._acked = 0
        self._unfolder = Unfolder(limit)
        self._limit = limit
        self._data = b""
        self._at = 0
        #: The beginning of a batch that is not here yet, in the pieces it came in; joined only when it is whole.
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._noted = 0

    def feed(self, data: bytes) -> None:
        if self._have:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
            self._have = 0
        self._data = data
        self._at = 0

    def progressed(self) -> bool:
        """An unfinished batch has grown by enough to believe that somebody is sending it."""
        if self._have - self._noted < PROGRESS_BYTES:
            return False
        self._noted = self._have
        return True

    def next(self) -> Batch | None:
        """HOT."""
        data, at = self._data, self._at
        available = len(data) - at
        found = read_head(data, at)
        if found is None:
            self._wait_for(available + 1)
            return None
        length, what, acknowledged, middle = found
        if length > self._limit:
            raise BrokenBatch(f"a batch of {length} bytes; {self._limit} is the most")
        begin = middle + MAC_BYTES
        end = begin + length
        if len(data) < end:
            self._wait_for(end - at)
            return None
        head = data[at:middle]
        if length <= DEFLATE_BYTES_MAX:
            mac = _mac_of_small(self._key, self._count, head + data[begin:end])
        else:
            mac = _mac(self._key, self._count, head, memoryview(data)[begin:end])
        if not compare_digest(mac, data[middle:begin]):
            raise BrokenBatch("a batch with a wrong MAC")
        self._count += 1
        self._at = end
        self._noted = 0
        self._acked = (self._acked + acknowledged) & LOW
        return self._batch(data, begin, end, what)

    def _batch(self, data: bytes, begin: int, end: int, what: int) -> Batch:
        if what == FAREWELL:
            return Batch(self._acked, end - begin, [], data[begin:end] or b"?")
        if what != PLAIN:
            data = self._unfolder.unfold(what, data[begin:end])
            begin, end = 0, len(data)
        return Batch(self._acked, end - begin, frames_in(data, begin, end), b"")

    def _wait_for(self, need: int) -> None:
        if self._at < len(self._data):
            rest = self._data[self._at :]
            self._chunks = [rest]
            self._have = len(rest)
            self._need = need
        self._data = b""
        self._at = 0


def frame_head(kind: int, size: int) -> bytes:
    """HOT."""
    if size < LONG:
        return _SHORT_FRAME.pack(kind, size)
    return _LONG_FRAME.pack(kind, LONG, size)


def frames_in(data: bytes, at: int, end: int) -> list[tuple[int, bytes]]:
    """HOT.  The frames between two positions, which must hold them exactly.  Read byte by byte: compiled that is
    arithmetic, where a `Struct` takes a call and a tuple."""
    frames: list[tuple[int, bytes]] = []
    while at < end:
        if end - at < FRAME_HEAD_BYTES:
            raise BrokenBatch("half a frame")
        kind = data[at]
        size = data[at + 1] << 8 | data[at + 2]
        at += FRAME_HEAD_BYTES
        if size == LONG:
            if end - at < LENGTH_BYTES:
                raise BrokenBatch("half a frame")
            size = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
            at += LENGTH_BYTES
        stop = at + size
        if stop > end:
            raise BrokenBatch("half a frame")
        frames.append((kind, data[at:stop]))
        at = stop
    return frames


def _mac(key: bytes, count: int, head: bytes, payload: bytes | memoryview) -> bytes:
    hashed = blake2b(head, digest_size=MAC_BYTES, key=key, salt=count.to_bytes(16, "big"))
    hashed.update(payload)
    return hashed.digest()


def _mac_of_small(key: bytes, count: int, batch: bytes) -> bytes:
    """HOT.  The same of head and payload in one: to copy a little takes less than another call."""
    return blake2b(batch, digest_size=MAC_BYTES, key=key, salt=count.to_bytes(16, "big")).digest()
