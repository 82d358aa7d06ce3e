"""Echoes: how far a worker is.  A PING with a nonce goes to its echo port, and a PONG with its coordinate comes back.

    "STE" version | kind, nonce (8 bytes), coordinate or zeros, padding | MAC (blake2b, 8 bytes)

Both are of one size, so nobody can use a worker to send more to a third than was sent to it.  A datagram without the
right MAC costs one MAC and gets no answer; a source that asks too often gets none either.  A pong that nobody waits
for, or that comes a second time or too late, changes nothing and is counted.

A ping carries no coordinate: a worker learns nothing from those who ask it, so no stranger can push it around.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from hashlib import blake2b
from hmac import compare_digest
from math import isfinite
from random import Random
from struct import Struct

from sterna.overlay.coordinates import DIMENSIONS_MAX, FAR_S, Coordinate
from sterna.overlay.round_trips import OpenPings

VERSION = 1
_MAGIC = b"STE"
_HEAD = _MAGIC + bytes([VERSION])
_MAC_BYTES = 8
"""A forged pong would have to guess a nonce of eight bytes too."""
_BODY = Struct(f">BQB{DIMENSIONS_MAX + 3}e")
"""Half precision is exact to a two-thousandth."""
ECHO_BYTES = len(_HEAD) + _BODY.size + _MAC_BYTES

PINGS_OUT_MAX = 256
"""Pings of one asker that are out at once; the oldest is given up for a new one."""
SOURCES_MAX = 4096
"""Sources whose pings are counted; the one that was silent for longest is forgotten."""


class EchoKind(IntEnum):
    PING = 1
    PONG = 2


class RefusedEcho(StrEnum):
    """Reasons for which a datagram changes nothing."""

    SIZE = "size"
    VERSION = "version"
    MAC = "mac"
    MALFORMED = "malformed"
    OFTEN = "too-often"
    UNASKED = "unasked"
    """A pong that nobody waits for: late, repeated or made up."""
    ROUND_TRIP = "round-trip"
    COORDINATE = "coordinate"


@dataclass(frozen=True, slots=True)
class Echo:
    kind: EchoKind
    nonce: int
    coordinate: Coordinate | None = None
    """None in a ping, and in the pong of a worker that has none."""


def sealed(echo: Echo, key: bytes) -> bytes:
    place = echo.coordinate
    vector = place.vector if place is not None else ()
    numbers = (*vector, *(0.0,) * (DIMENSIONS_MAX - len(vector)))
    rest = (place.height, place.error, place.adjustment) if place is not None else (0.0, 0.0, 0.0)
    content = _HEAD + _BODY.pack(echo.kind, echo.nonce, len(vector), *numbers, *rest)
    return content + _mac(content, key)


def opened(data: bytes, keys: Sequence[bytes]) -> tuple[Echo, bytes] | RefusedEcho:
    """The echo and the key it was sealed with."""
    if len(data) != ECHO_BYTES or not data.startswith(_MAGIC):
        return RefusedEcho.SIZE
    if data[len(_MAGIC)] != VERSION:
        return RefusedEcho.VERSION
    content, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    key = next((one for one in keys if compare_digest(mac, _mac(content, one))), None)
    if key is None:
        return RefusedEcho.MAC
    kind, nonce, dimensions, *numbers = _BODY.unpack_from(data, len(_HEAD))
    if kind not in (EchoKind.PING, EchoKind.PONG) or dimensions > DIMENSIONS_MAX:
        return RefusedEcho.MALFORMED
    if not dimensions:
        return Echo(EchoKind(kind), nonce), key
    height, error, adjustment = numbers[DIMENSIONS_MAX:]
    return Echo(EchoKind(kind), nonce, Coordinate(tuple(numbers[:dimensions]), height, error, adjustment)), key


def _mac(content: bytes, key: bytes) -> bytes:
    return blake2b(content, key=key, digest_size=_MAC_BYTES).digest()


class EchoAnswerer:
    """The side of a worker: pings in, pongs out."""

    def __init__(self, per_second: float = 50.0) -> None:
        """`per_second`: pings of one source that are answered."""
        self._per_second = per_second
        self._allowances: dict[str, tuple[float, float]] = {}
        self.answered = 0
        self.refusals: Counter[RefusedEcho] = Counter()

    def came(self, data: bytes, source: str, keys: Sequence[bytes], own: Coordinate, now: float) -> bytes | None:
        """The answer, sealed with the same key; None if there is none."""
        read = opened(data, keys)
        if isinstance(read, RefusedEcho):
            self.refusals[read] += 1
            return None
        echo, key = read
        if echo.kind is not EchoKind.PING:
            self.refusals[RefusedEcho.UNASKED] += 1
            return None
        if not self._may_ask(source, now):
            self.refusals[RefusedEcho.OFTEN] += 1
            return None
        self.answered += 1
        return sealed(Echo(EchoKind.PONG, echo.nonce, own), key)

    def _may_ask(self, source: str, now: float) -> bool:
        left, at = self._allowances.pop(source, (self._per_second, now))
        left = min(self._per_second, left + (now - at) * self._per_second)
        if len(self._allowances) >= SOURCES_MAX:
            del self._allowances[next(iter(self._allowances))]
        self._allowances[source] = (max(0.0, left - 1), now)
        return left >= 1


@dataclass(frozen=True, slots=True)
class EchoSample:
    peer: str
    round_trip_s: float
    coordinate: Coordinate


class EchoAsker:
    """The side of whoever measures: pings out, samples in."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._out = OpenPings(PINGS_OUT_MAX)
        self._peers: dict[int, str] = {}
        self.sent = 0
        self.refusals: Counter[RefusedEcho] = Counter()

    def ping(self, peer: str, key: bytes, now: float) -> bytes:
        nonce = self._out.ask(now, self._rng)
        if len(self._peers) >= PINGS_OUT_MAX:
            del self._peers[next(iter(self._peers))]
        self._peers[nonce] = peer
        self.sent += 1
        return sealed(Echo(EchoKind.PING, nonce), key)

    def came(self, data: bytes, keys: Sequence[bytes], now: float) -> EchoSample | None:
        read = opened(data, keys)
        sample = read if isinstance(read, RefusedEcho) else self._sample(read[0], now)
        if isinstance(sample, RefusedEcho):
            self.refusals[sample] += 1
            return None
        return sample

    def _sample(self, echo: Echo, now: float) -> EchoSample | RefusedEcho:
        elapsed = self._out.elapsed(echo.nonce, now)
        peer = self._peers.pop(echo.nonce, None)
        if echo.kind is not EchoKind.PONG or elapsed is None or peer is None:
            return RefusedEcho.UNASKED
        self._out.close(echo.nonce)
        if not isfinite(elapsed) or not 0.0 < elapsed <= FAR_S:
            return RefusedEcho.ROUND_TRIP
        if echo.coordinate is None or not echo.coordinate.is_sound:
            return RefusedEcho.COORDINATE
        return EchoSample(peer, elapsed, echo.coordinate)
