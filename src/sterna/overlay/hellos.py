"""The datagrams of nodes that move: hellos to all within reach.  One says who sends it, whom the sender has heard, and
its way to the leader of its partition.

For any bytes `open_hello` gives a hello or None and raises nothing; without the network's key it costs one MAC.

A long hello has the names:

    "STM" version | flags, boot, counter, pause, leader's boot, age, round, hops, children |
    name, leader's name, parent | identities heard, each with the lowest 16 bits of its last counter | MAC

A short one says what changes from hello to hello, and refers to names by the digest of what the last long one said:

    "STm" version | identity, counter, pause, digest of leader and parent, age, round, hops, children, turns |
    the first bytes of identities heard, each with the lowest 16 bits of its last counter | MAC of 8 bytes

Replay: `counter` rises with every hello of a `boot` (a random number per start of a node).  A hello is believed when it
names a counter that the receiver used lately: then the sender has heard the receiver, and the hello is not an old one.
So a link that works one way only is no link, no pings are needed, and no clocks need to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

from sterna.overlay.datagrams import DATAGRAM_BYTES_MAX, MAC_BYTES, NAME_BYTES_MAX, Seal, read_texts, text_bytes
from sterna.overlay.leadership import NO_PATH, Leader, LeaderPath

VERSION = 1
HEARD_MAX = 48
"""Identities in one hello; where more are in reach they take turns, the neighbours in the tree always among them."""
AGE_MAX = 63
LOW_COUNTER = 0xFFFF
PAUSE_UNIT_S = 0.01

_LEAVING = 1
_HEAD = b"STM" + bytes([VERSION])
SHORT_HEARD_MAX = 16
"""Identities in a short hello."""
TURNS_MAX = 255
SHORT_MAC_BYTES = 8
"""A forger would have to send 2^63 hellos to have one believed, and be heard for as long."""
SHORT_IDENTITY_BYTES = 2

_SHORT_HEAD = b"STm" + bytes([VERSION])
_FIXED = Struct(">BQIHQBIBH")
_IDENTITY_BYTES = 6
_HEARD = Struct(f">{_IDENTITY_BYTES}sH")
_SHORT = Struct(f">{_IDENTITY_BYTES}sIH2sBIBBB")
_SHORT_HEARD = Struct(f">{SHORT_IDENTITY_BYTES}sH")
_SHORT_LEAST = len(_SHORT_HEAD) + _SHORT.size + SHORT_MAC_BYTES
_TEXTS = 3
_LEAST = len(_HEAD) + _FIXED.size + _TEXTS + 1 + MAC_BYTES


@dataclass(frozen=True, slots=True)
class Hello:
    name: str
    boot: int
    counter: int
    pause_s: float
    """When the next one will follow, at the latest."""
    path: LeaderPath
    children: int = 0
    heard: tuple[tuple[bytes, int], ...] = ()
    """Identities, and the lowest bits of the last counter heard of each."""
    leaving: bool = False

    @property
    def identity(self) -> bytes:
        return identity_of(self.name, self.boot)


@dataclass(frozen=True, slots=True)
class ShortHello:
    """Of a node that has said a long one before."""

    identity: bytes
    counter: int
    pause_s: float
    names: bytes
    """`names_of` its path."""
    age: int
    """Of the leader."""
    round: int
    hops: int
    children: int
    turns: int
    """In so many hellos all are named whom the sender hears."""
    heard: tuple[tuple[bytes, int], ...] = ()
    """The first bytes of identities, and the lowest bits of the last counter heard of each."""


def names_of(path: LeaderPath) -> bytes:
    """Tells which long hello a short one refers to."""
    leader = path.leader
    said = b"\0".join((leader.name.encode(), path.parent.encode(), leader.boot.to_bytes(8, "big")))
    return blake2b(said, digest_size=2).digest()


def path_said(known: LeaderPath, hello: ShortHello) -> LeaderPath | None:
    """The path that a short hello tells of, to one that knows the last long one; None: names have changed since."""
    if names_of(known) != hello.names:
        return None
    leader = Leader(known.leader.name, known.leader.boot, hello.age)
    return LeaderPath(leader, hello.round, hello.hops, known.parent)


def identity_of(name: str, boot: int) -> bytes:
    """Few bytes that tell one start of one node from all others in reach."""
    return blake2b(name.encode() + boot.to_bytes(8, "big"), digest_size=_IDENTITY_BYTES).digest()


def close_hello(seal: Seal, hello: Hello) -> bytes:
    path = hello.path
    fixed = _FIXED.pack(
        _LEAVING * hello.leaving,
        hello.boot,
        hello.counter & 0xFFFF_FFFF,
        _pause_units(hello.pause_s),
        path.leader.boot,
        min(AGE_MAX, path.leader.age),
        path.round & 0xFFFF_FFFF,
        min(NO_PATH, path.hops),
        min(0xFFFF, hello.children),
    )
    texts = b"".join(map(text_bytes, (hello.name, path.leader.name, path.parent)))
    heard = hello.heard[:HEARD_MAX]
    listed = b"".join(_HEARD.pack(identity, counter & LOW_COUNTER) for identity, counter in heard)
    return seal.signed(_HEAD + fixed + texts + bytes([len(heard)]) + listed)


def room_for_heard(seal_bytes: int, short: bool, path: LeaderPath, name: str) -> int:
    """How many identities fit into a hello of at most so many bytes; one always does."""
    if short:
        return max(1, min(SHORT_HEARD_MAX, (seal_bytes - _SHORT_LEAST) // _SHORT_HEARD.size))
    names = sum(len(text.encode()) for text in (name, path.leader.name, path.parent))
    return max(1, min(HEARD_MAX, (seal_bytes - _LEAST - names) // _HEARD.size))


def close_short_hello(seal: Seal, hello: ShortHello) -> bytes:
    fixed = _SHORT.pack(
        hello.identity,
        hello.counter & 0xFFFF_FFFF,
        _pause_units(hello.pause_s),
        hello.names,
        min(AGE_MAX, hello.age),
        hello.round & 0xFFFF_FFFF,
        min(NO_PATH, hello.hops),
        min(255, hello.children),
        min(TURNS_MAX, hello.turns),
    )
    listed = b"".join(
        _SHORT_HEARD.pack(identity[:SHORT_IDENTITY_BYTES], counter & LOW_COUNTER)
        for identity, counter in hello.heard[:SHORT_HEARD_MAX]
    )
    return seal.signed(_SHORT_HEAD + fixed + listed, SHORT_MAC_BYTES)


def _pause_units(pause_s: float) -> int:
    return min(0xFFFF, max(1, round(pause_s / PAUSE_UNIT_S)))


def open_hello(seal: Seal, data: bytes) -> Hello | ShortHello | None:
    if data.startswith(_SHORT_HEAD):
        return _opened_short(seal, data)
    if not _LEAST <= len(data) <= DATAGRAM_BYTES_MAX or not data.startswith(_HEAD[:3]) or not seal.is_authentic(data):
        return None
    if data[3] != VERSION:
        seal.other_version = data[3]
        return None
    try:
        return _parsed(data)
    except (ValueError, IndexError):
        return None


def _opened_short(seal: Seal, data: bytes) -> ShortHello | None:
    listed = data[_SHORT_LEAST - SHORT_MAC_BYTES : -SHORT_MAC_BYTES]
    fits = len(data) >= _SHORT_LEAST and len(listed) <= SHORT_HEARD_MAX * _SHORT_HEARD.size
    if not fits or len(listed) % _SHORT_HEARD.size or not seal.is_authentic(data, SHORT_MAC_BYTES):
        return None
    identity, counter, pause, names, age, round_, hops, children, turns = _SHORT.unpack_from(data, len(_SHORT_HEAD))
    if not pause or not turns or age > AGE_MAX:
        return None
    heard = tuple((start, low) for start, low in _SHORT_HEARD.iter_unpack(listed))
    return ShortHello(identity, counter, pause * PAUSE_UNIT_S, names, age, round_, hops, children, turns, heard)


def _parsed(data: bytes) -> Hello | None:
    start = len(_HEAD)
    flags, boot, counter, pause, leader_boot, age, round_, hops, children = _FIXED.unpack_from(data, start)
    (name, leader_name, parent), at = read_texts(data, start + _FIXED.size, _TEXTS)
    count, listed = data[at], data[at + 1 : -MAC_BYTES]
    named = name and leader_name and max(map(len, (name, leader_name, parent))) <= NAME_BYTES_MAX
    if flags & ~_LEAVING or not named or not pause or age > AGE_MAX or len(listed) != count * _HEARD.size:
        return None
    heard = tuple((identity, low) for identity, low in _HEARD.iter_unpack(listed))
    path = LeaderPath(Leader(leader_name, leader_boot, age), round_, hops, parent)
    return Hello(name, boot, counter, pause * PAUSE_UNIT_S, path, children, heard, bool(flags & _LEAVING))


assert _LEAST + 3 * NAME_BYTES_MAX + HEARD_MAX * _HEARD.size <= DATAGRAM_BYTES_MAX
