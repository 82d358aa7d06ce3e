"""Several connections to one neighbour that together are one ordered stream of bytes.

    preamble, the first bytes of each: magic 6 bytes, version u8, name of the bundle 16 bytes, index u8, count u8
    chunk, everything after it: number u32 (wraps), length u16, data; of length 0: the bundle is closed

A chunk goes to the connection that has the least to do, and the receiver puts them in order again.  Chunks beyond a
gap wait for it; when too much waits, connections that are ahead are not read from until the others have caught up.
A bundle is as good as its worst member: lose one, lose all, and the link session above carries on over another bundle.

Nothing here is authenticated: the proofs and MACs of the channel above cover the whole stream, so whoever guesses the
name of a bundle can break it and do nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from sterna.overlay.handshake import UNAUTHENTICATED_BYTES_MAX
from sterna.overlay.link import LinkTransport
from sterna.vocabulary.errors import SternaError

MAGIC = b"bundle"
"""No HELLO begins with its first byte: that would be one of 25,000 bytes, and they are far smaller."""
VERSION = 1
NAME_BYTES = 16
COUNT_MAX = 16
CHUNK_BYTES_MAX = 0xFFFF
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that may wait behind a gap before connections that are ahead are paused; those under way come on top."""
PIECE_COST_BYTES = 128
"""Memory per piece besides its bytes, so that many small ones count for what they are."""

_PREAMBLE = Struct(f">{len(MAGIC)}sB{NAME_BYTES}sBB")
PREAMBLE_BYTES = _PREAMBLE.size
_HEAD = Struct(">IH")
_NUMBERS = 1 << 32


class BrokenBundle(SternaError):
    """The other side does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """Which member of which bundle a connection is."""

    name: bytes
    index: int
    count: int

    def encode(self) -> bytes:
        return _PREAMBLE.pack(MAGIC, VERSION, self.name, self.index, self.count)

    @classmethod
    def decode(cls, data: bytes) -> Preamble:
        _, version, name, index, count = _PREAMBLE.unpack_from(data)
        if version != VERSION:
            text = f"one node speaks version {version} of bundles, the other version {VERSION}"
            raise BrokenBundle(f"{text}; run the same release on both")
        if not index < count <= COUNT_MAX:
            raise BrokenBundle("a member that fits into no bundle")
        return cls(name, index, count)


def may_be_preamble(data: bytes) -> bool:
    """Whether the first bytes of a connection are those of a member, as far as they have come."""
    return data[: len(MAGIC)] == MAGIC[: len(data)]


class _Chunk:
    """One that has begun to come in: what there is of it and not passed on yet, and what is still to come."""

    __slots__ = ("left", "number", "pieces")

    def __init__(self, number: int, left: int) -> None:
        self.number = number
        self.left = left
        self.pieces: list[bytes] = []


class _Member:
    __slots__ = ("chunk", "congested", "ended", "head", "last", "lost", "paused", "transport")

    def __init__(self, transport: LinkTransport) -> None:
        self.transport = transport
        #: The start of a chunk's head.
        self.head = b""
        #: The chunk it is in the middle of.
        self.chunk: _Chunk | None = None
        #: Number of the last chunk it began.  Those of one member only grow.
        self.last = -1
        self.congested = False
        self.paused = False
        #: It said that nothing more comes.
        self.ended = False
        self.lost = False


class Bundle:
    """A `LinkTransport` made of several.  Nothing is passed on before all `count` have joined."""

    def __init__(self, count: int, *, waiting_bytes_max: int = WAITING_BYTES_MAX, first: int = 0) -> None:
        """`first` is the number of the first chunk."""
        self.count = count
        self._waiting_bytes_max = waiting_bytes_max
        self._members: dict[int, _Member] = {}
        self._sent = first
        self._is_closed = False
        #: The other side closes the bundle and listens no more.
        self._is_ended = False
        self._is_paused = False
        #: Number of the chunk that is to be passed on next.
        self._next = first
        #: Chunks that have begun to come in, by number.
        self._chunks: dict[int, _Chunk] = {}
        self._waiting_bytes = 0
        #: Too much of it waits.
        self._is_full = False

    def join(self, index: int, count: int, transport: LinkTransport) -> None:
        if self._is_closed:
            raise BrokenBundle("the bundle is closed")
        if count != self.count:
            raise BrokenBundle("connections of one bundle disagree on how many they are")
        if index in self._members:
            raise BrokenBundle("two connections claim the same place in a bundle")
        self._members[index] = _Member(transport)

    @property
    def is_complete(self) -> bool:
        return len(self._members) == self.count

    # -- the channel's side --

    def write(self, data: bytes) -> None:
        if self._is_closed or self._is_ended:
            return
        for at in range(0, len(data), CHUNK_BYTES_MAX):
            piece = data[at : at + CHUNK_BYTES_MAX]
            self._idlest().write(_HEAD.pack(self._sent % _NUMBERS, len(piece)) + piece)
            self._sent += 1

    def _idlest(self) -> LinkTransport:
        """Of equals each in its turn: so none falls silent, and one that is dead is noticed before it is needed."""
        count = self.count
        turns = [self._members[(self._sent + step) % count].transport for step in range(count)]
        return min(turns, key=lambda transport: transport.get_write_buffer_size())

    def close(self) -> None:
        """Send what was written, then close.  Each connection says so: one that just ends was cut."""
        self._is_closed = True
        for member in self._members.values():
            if not member.lost:
                member.transport.write(_HEAD.pack(self._sent % _NUMBERS, 0))
                member.transport.close()

    def abort(self) -> None:
        self._is_closed = True
        for member in self._members.values():
            if not member.lost:
                member.transport.abort()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._pace()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._pace()

    def get_write_buffer_size(self) -> int:
        return sum(member.transport.get_write_buffer_size() for member in self._members.values() if not member.lost)

    # -- the world's side --

    def congested(self, index: int) -> bool:
        """This connection has enough to do; True if now all have."""
        self._members[index].congested = True
        return self._is_congested()

    def writable(self, index: int) -> bool:
        """This connection has room again; True if none had."""
        was_congested = self._is_congested()
        self._members[index].congested = False
        return was_congested

    def _is_congested(self) -> bool:
        return self.is_complete and all(member.congested for member in self._members.values())

    def lost(self, index: int) -> bool:
        """A connection is gone; True if the bundle is.  It is not while the other side closes one after the other."""
        member = self._members.get(index)
        if member is None:  # it came too late to join
            return False
        member.lost = True
        return not member.ended or all(other.lost for other in self._members.values())

    def feed(self, index: int, data: bytes, *, believed: bool) -> bytes:
        """Bytes of one connection; what of the stream can be passed on now.  Those not believed yet may say little."""
        self._take(self._members[index], data)
        if not self.is_complete:
            passed = b""
        else:
            passed = b"".join(self._in_order())
            self._check_gap()
        if not believed and self._waiting_bytes > UNAUTHENTICATED_BYTES_MAX:
            raise BrokenBundle("too much at once from somebody who has proved nothing")
        is_full = self._waiting_bytes > self._waiting_bytes_max
        if is_full or self._is_full:
            self._is_full = is_full
            self._pace()
        return passed

    def _take(self, member: _Member, data: bytes) -> None:
        if member.head:
            data = member.head + data
            member.head = b""
        at, end = 0, len(data)
        while at < end:
            chunk = member.chunk
            if chunk is None:
                if end - at < _HEAD.size:
                    member.head = data[at:]
                    return
                number, length = _HEAD.unpack_from(data, at)
                self._begin(member, number, length)
                at += _HEAD.size
                continue
            piece = data[at : at + chunk.left]
            at += len(piece)
            chunk.pieces.append(piece)
            chunk.left -= len(piece)
            self._waiting_bytes += len(piece) + PIECE_COST_BYTES
            if not chunk.left:
                member.chunk = None

    def _begin(self, member: _Member, number: int, length: int) -> None:
        ahead = (number - self._next) % _NUMBERS
        number = self._next + ahead
        if member.ended:
            raise BrokenBundle("something after the end of a bundle")
        if not length:
            member.ended = self._is_ended = True
            return
        if ahead >= _NUMBERS // 2 or number in self._chunks or number <= member.last:
            raise BrokenBundle("a chunk that came before")
        member.last = number
        member.chunk = self._chunks[number] = _Chunk(number, length)

    def _in_order(self) -> list[bytes]:
        """Data up to the next gap.  The beginning of a chunk need not wait for its end."""
        passed: list[bytes] = []
        while (chunk := self._chunks.get(self._next)) is not None:
            passed += chunk.pieces
            self._waiting_bytes -= sum(map(len, chunk.pieces)) + PIECE_COST_BYTES * len(chunk.pieces)
            chunk.pieces = []
            if chunk.left:
                break
            del self._chunks[self._next]
            self._next += 1
        return passed

    def _check_gap(self) -> None:
        """Numbers of one member only grow, so one that is past the gap cannot fill it; if all are, nobody will."""
        if not self._chunks or self._next in self._chunks:
            return
        if all(member.last > self._next or member.ended for member in self._members.values()):
            raise BrokenBundle("a chunk was left out")

    def _pace(self) -> None:
        """Read from whom we should read from, and from nobody else."""
        if self._is_closed:
            return
        for member in self._members.values():
            wants_pause = self._is_paused or (self._is_full and member.last > self._next)
            if wants_pause != member.paused and not member.lost:
                member.paused = wants_pause
                if wants_pause:
                    member.transport.pause_reading()
                else:
                    member.transport.resume_reading()
