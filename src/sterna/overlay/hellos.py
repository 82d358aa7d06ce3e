"""The datagram of nodes that move: a hello to all within reach.  It says who sends it, whom the sender has heard, and
its way to the leader of its partition.

For any bytes `open_hello` gives a hello or None and raises nothing; without the network's key it costs one MAC.

    "STM" version | flags, boot, counter, pause, leader's boot, age, round, hops, children |
    name, leader's name, parent | identities heard, each with the lowest 16 bits of its last counter | MAC

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
_FIXED = Struct(">BQIHQBIBH")
_IDENTITY_BYTES = 6
_HEARD = Struct(f">{_IDENTITY_BYTES}sH")
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


def identity_of(name: str, boot: int) -> bytes:
    """Few bytes that tell one start of one node from all others in reach."""
    return blake2b(name.encode() + boot.to_bytes(8, "big"), digest_size=_IDENTITY_BYTES).digest()


def close_hello(seal: Seal, hello: Hello) -> bytes:
    path = hello.path
    fixed = _FIXED.pack(
        _LEAVING * hello.leaving,
        hello.boot,
        hello.counter & 0xFFFF_FFFF,
        min(0xFFFF, max(1, round(hello.pause_s / PAUSE_UNIT_S))),
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


def open_hello(seal: Seal, data: bytes) -> Hello | None:
    if not _LEAST <= len(data) <= DATAGRAM_BYTES_MAX or not data.startswith(_HEAD[:3]) or not seal.is_authentic(data):
        return None
    if data[3] != VERSION:
        seal.other_version = data[3]
        return None
    try:
        return _parsed(data)
    except (ValueError, IndexError):
        return None


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
