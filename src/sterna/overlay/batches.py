"""Bytes of an authenticated connection: frames joined into batches, each with a number, an acknowledgement and a MAC.

    batch: length u32 (top bit: farewell), number u32, ack u32, MAC 16 bytes, frames
    frame: kind u8, length u16 (0xFFFF: a u32 follows), body

A batch is opened only if its MAC holds, and the MAC also covers how many batches came before it on this connection:
whatever is changed, dropped, repeated or moved on the way ends the connection and is never delivered.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from struct import Struct

from sterna.vocabulary.errors import SternaError

MAC_BYTES = 16
LONG = 0xFFFF
FAREWELL = 0x8000_0000
LOW = 0xFFFF_FFFF
"""Numbers and acknowledgements travel as their lowest 32 bits; sender and receiver know the rest."""

_HEAD = Struct(">III")
_SHORT_FRAME = Struct(">BH")
_LONG_FRAME = Struct(">BHI")
_LENGTH = Struct(">I")
HEAD_BYTES = _HEAD.size + MAC_BYTES
FRAME_HEAD_BYTES = _SHORT_FRAME.size
PROGRESS_BYTES = 4096
"""So much of an unfinished batch counts as a sign of life."""


class BrokenBatch(SternaError):
    """The bytes are not what the peer sent, or the peer does not keep to the protocol."""


class Batch:
    __slots__ = ("ack", "farewell", "frames", "number", "size")

    def __init__(self, number: int, ack: int, size: int, frames: list[tuple[int, bytes]], farewell: bytes) -> None:
        self.number = number
        self.ack = ack
        self.size = size
        self.frames = frames
        #: Empty unless this is the last thing the peer says in this session.
        self.farewell = farewell


class Sealer:
    """One direction of one connection, sending."""

    __slots__ = ("_count", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, number: int, ack: int, payload: bytes, farewell: bool = False) -> bytes:
        """HOT."""
        length = len(payload) | FAREWELL if farewell else len(payload)
        head = _HEAD.pack(length, number & LOW, ack & LOW)
        mac = _mac(self._key, self._count, head, payload)
        self._count += 1
        return b"".join((head, mac, payload))


class Opener:
    """One direction of one connection, receiving: `feed` bytes, then ask `next` until it has no more."""

    __slots__ = ("_at", "_chunks", "_count", "_data", "_have", "_key", "_limit", "_need", "_noted")

    def __init__(self, key: bytes, limit: int) -> None:
        self._key = key
        self._count = 0
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
        if available < HEAD_BYTES:
            self._wait_for(HEAD_BYTES)
            return None
        length, number, ack = _HEAD.unpack_from(data, at)
        is_farewell = length >= FAREWELL
        length &= FAREWELL - 1
        if length > self._limit:
            raise BrokenBatch(f"a batch of {length} bytes; {self._limit} is the most")
        if available < HEAD_BYTES + length:
            self._wait_for(HEAD_BYTES + length)
            return None
        begin = at + HEAD_BYTES
        end = begin + length
        payload = memoryview(data)[begin:end]
        mac = _mac(self._key, self._count, data[at : at + _HEAD.size], payload)
        if not compare_digest(mac, data[at + _HEAD.size : begin]):
            raise BrokenBatch("a batch with a wrong MAC")
        self._count += 1
        self._at = end
        self._noted = 0
        if is_farewell:
            return Batch(number, ack, length, [], data[begin:end] or b"?")
        return Batch(number, ack, length, frames_in(data, begin, end), b"")

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
    """HOT.  The frames between two positions, which must hold them exactly."""
    frames: list[tuple[int, bytes]] = []
    while at < end:
        if end - at < FRAME_HEAD_BYTES:
            raise BrokenBatch("half a frame")
        kind, size = _SHORT_FRAME.unpack_from(data, at)
        at += FRAME_HEAD_BYTES
        if size == LONG:
            if end - at < _LENGTH.size:
                raise BrokenBatch("half a frame")
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
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
