"""The long datagram of the spanning tree: a beacon.  It says who sends it and what it knows of the root; it may ask,
answer, introduce others and tell of one that is missing.  Nodes that know each other exchange `heartbeats`.

For any bytes `Seal.open` gives a beacon or None and raises nothing; without the network's key it costs one MAC.

    "STO" version | flags, boot, counter, ask, echo, capability, root, round, cost, edition |
    coordinate (if the flag says so) | name, address, root's name, parent, missing | addresses of others |
    MAC (blake2b, 16 bytes, over everything before it)

Replay: `counter` rises with every datagram of a `boot` (a random number per start of a node), and a boot is believed
only after it echoed a nonce of ours.  So no clocks need to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from math import isfinite
from struct import Struct

from sterna.overlay.coordinates import DIMENSIONS, Coordinate
from sterna.overlay.neighbours import ADDRESS_BYTES_MAX
from sterna.vocabulary.errors import ConfigurationError

VERSION = 2
DATAGRAM_BYTES_MAX = 1200
NAME_BYTES_MAX = 128
INTRODUCED_MAX = 64
NO_PATH = 0xFFFF_FFFF
"""The cost of a node that has lost its way to the root.  Other costs are microseconds."""

ASK, ECHO, DISCOVER, LEAVING, GROUP, PLACED = 1, 2, 4, 8, 16, 32
_FLAGS = ASK | ECHO | DISCOVER | LEAVING | GROUP | PLACED

_MAGIC = b"STO"
_HEAD = _MAGIC + bytes([VERSION])
MAC_BYTES = 16
"""Of the MAC at the end of a datagram."""
_FIXED = Struct(">BQQQQdQdQIH")
_COORDINATE = Struct(f">{DIMENSIONS + 2}f")
_TEXTS = 5
_LEAST = len(_HEAD) + _FIXED.size + _TEXTS + 1 + MAC_BYTES


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """One life of a node that is, or could be, the root."""

    capability: float
    name: str
    boot: int

    def outranks(self, other: RootIdentity) -> bool:
        """The more capable is root; of equals the one whose name comes first."""
        return (-self.capability, self.name) < (-other.capability, other.name)


@dataclass(frozen=True, slots=True)
class Advert:
    """The path to the root that a node advertises."""

    root: RootIdentity
    round: int
    cost_us: int
    parent: str
    """The next node on the way; empty if there is none."""

    def leads_like(self, other: Advert) -> bool:
        """Do they differ in nothing but round and cost?"""
        both_lead = (self.cost_us == NO_PATH) == (other.cost_us == NO_PATH)
        return self.root == other.root and self.parent == other.parent and both_lead


@dataclass(frozen=True, slots=True)
class Beacon:
    name: str
    address: str
    boot: int
    counter: int
    capability: float
    advert: Advert
    ask: int | None = None
    """A nonce to be echoed at once."""
    echo: int | None = None
    """The nonce that this beacon answers."""
    discover: bool = False
    """Whom do you know?"""
    leaving: bool = False
    group: bool = False
    """It went to the multicast group: nobody who knows the sender needs to answer."""
    introduced: tuple[str, ...] = ()
    """Addresses of peers that the sender knows to be alive."""
    missing: str = ""
    """The name of a peer that no longer answers the sender."""
    edition: int = 0
    """Changes with everything here that a heartbeat does not say."""
    coordinate: Coordinate | None = None
    """Where the sender is; None if that was not told, or makes no sense."""


class Seal:
    """Turns beacons into authenticated bytes and back."""

    def __init__(self, network: str, key: bytes) -> None:
        self.key = blake2b(network.encode(), key=blake2b(key).digest(), person=b"sterna-overlay").digest()
        self.other_version: int | None = None
        """The version of the last authentic datagram that was not of ours."""

    def close(self, beacon: Beacon) -> bytes:
        return self.signed(_HEAD + _body(beacon))

    def open(self, data: bytes) -> Beacon | None:
        if not _LEAST <= len(data) <= DATAGRAM_BYTES_MAX or not data.startswith(_MAGIC):
            return None
        if not self.is_authentic(data):
            return None
        if data[3] != VERSION:
            self.other_version = data[3]
            return None
        try:
            return _parsed(data)
        except (ValueError, IndexError):
            return None

    def signed(self, content: bytes, mac_bytes: int = MAC_BYTES) -> bytes:
        """The content with its MAC."""
        return content + self._mac(content, mac_bytes)

    def is_authentic(self, data: bytes, mac_bytes: int = MAC_BYTES) -> bool:
        """Was this signed with the key of our network?"""
        return compare_digest(self._mac(data[:-mac_bytes], mac_bytes), data[-mac_bytes:])

    def _mac(self, content: bytes, mac_bytes: int) -> bytes:
        return blake2b(content, key=self.key, digest_size=mac_bytes).digest()


def checked_length(name: str, text: str, bytes_max: int) -> None:
    """Raise unless `text` has at most `bytes_max` bytes."""
    if len(text.encode()) > bytes_max:
        raise ConfigurationError(f"{name} {text[:40]!r}... is longer than {bytes_max} bytes")


def introductions(beacon: Beacon, addresses: list[str]) -> list[tuple[str, ...]]:
    """`addresses` in portions that fit into copies of `beacon`."""
    room = DATAGRAM_BYTES_MAX - len(_HEAD) - len(_body(beacon)) - MAC_BYTES
    portions: list[tuple[str, ...]] = []
    portion: list[str] = []
    left = room
    for address in addresses:
        size = 1 + len(address.encode())
        if size > left or len(portion) == INTRODUCED_MAX:
            portions.append(tuple(portion))
            portion, left = [], room
        portion.append(address)
        left -= size
    if portion:
        portions.append(tuple(portion))
    return portions


def _body(beacon: Beacon) -> bytes:
    advert = beacon.advert
    flags = (ASK * (beacon.ask is not None)) | (ECHO * (beacon.echo is not None))
    flags |= (DISCOVER * beacon.discover) | (LEAVING * beacon.leaving) | (GROUP * beacon.group)
    flags |= PLACED * (beacon.coordinate is not None)
    numbers = (flags, beacon.boot, beacon.counter, beacon.ask or 0, beacon.echo or 0, beacon.capability)
    path = (advert.root.boot, advert.root.capability, advert.round, advert.cost_us, beacon.edition)
    texts = (beacon.name, beacon.address, advert.root.name, advert.parent, beacon.missing)
    parts = [_FIXED.pack(*numbers, *path)]
    if (place := beacon.coordinate) is not None:
        parts.append(_COORDINATE.pack(*place.vector, place.height, place.error))
    parts += [text_bytes(text) for text in texts]
    parts.append(bytes([len(beacon.introduced)]))
    parts += [text_bytes(address) for address in beacon.introduced]
    return b"".join(parts)


def text_bytes(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def _parsed(data: bytes) -> Beacon | None:
    """The beacon in authentic bytes.  ValueError, IndexError or None if even so they make no sense."""
    start = len(_HEAD)
    flags, boot, counter, ask, echo, capability, *path = _FIXED.unpack_from(data, start)
    root_boot, root_capability, round_, cost, edition = path
    start += _FIXED.size
    coordinate = None
    if flags & PLACED:
        if len(data) < start + _COORDINATE.size:
            return None
        *vector, height, error = _COORDINATE.unpack_from(data, start)
        told = Coordinate(tuple(vector), height, error)
        coordinate = told if told.is_sound else None
        start += _COORDINATE.size
    texts, at = read_texts(data, start, _TEXTS)
    introduced, end = read_texts(data, at + 1, data[at])
    name, address, root_name, parent, missing = texts
    finite = isfinite(capability) and isfinite(root_capability)
    named = name and root_name and max(map(len, (name, root_name, parent, missing))) <= NAME_BYTES_MAX
    if end != len(data) - MAC_BYTES or flags & ~_FLAGS or not finite or not named or "" in introduced:
        return None
    return Beacon(
        name=name,
        address=address,
        boot=boot,
        counter=counter,
        capability=capability,
        advert=Advert(RootIdentity(root_capability, root_name, root_boot), round_, cost, parent),
        ask=ask if flags & ASK else None,
        echo=echo if flags & ECHO else None,
        discover=bool(flags & DISCOVER),
        leaving=bool(flags & LEAVING),
        group=bool(flags & GROUP),
        introduced=introduced,
        missing=missing,
        edition=edition,
        coordinate=coordinate,
    )


def read_texts(data: bytes, at: int, count: int) -> tuple[tuple[str, ...], int]:
    texts = []
    for _ in range(count):
        size = data[at]
        # UnicodeDecodeError is a ValueError; a slice past the end is caught by the length check of the caller.
        texts.append(data[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return tuple(texts), at


assert _LEAST + _COORDINATE.size + 4 * NAME_BYTES_MAX + ADDRESS_BYTES_MAX + 1 + ADDRESS_BYTES_MAX <= DATAGRAM_BYTES_MAX
