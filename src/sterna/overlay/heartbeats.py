"""The short datagram between nodes that know each other: a heartbeat says "still here, still on this way to the root".

For any bytes `open_heartbeat` gives a heartbeat or None and raises nothing.

    "h" flags | boot, counter (lowest 32 bits each) | echo, edition, round, hold (lowest 16 bits each) | cost |
    MAC (blake2b, 12 bytes, over everything before it, both boots, and counter and round in full)

Names, addresses and the root are in beacons; `edition` says which of the sender's beacons it refers to.  The counter is
the nonce: it was never used before by this start of the sender, and an echo of it that is bound to both boots cannot
have been recorded earlier.  `hold` is how long the receiver had the echoed heartbeat before it answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct

MAGIC = b"h"
MAC_BYTES = 12
HOLD_UNIT_S = 0.00005
HOLD_S_MAX = 0xFFFF * HOLD_UNIT_S
LOW_BOOT = 0xFFFF_FFFF
LOW_EDITION = 0xFFFF
LOW_ECHO = 0xFFFF
"""So few nonces are out at once that the lowest bits tell them apart."""

_ASK, _ECHO = 1, 2
_COUNTER_BITS, _ROUND_BITS = 32, 16
_WIRE = Struct(">1sBIIHHHHI")
_FULL = Struct(">QQQQ")
HEARTBEAT_BYTES = _WIRE.size + MAC_BYTES


@dataclass(frozen=True, slots=True)
class Heartbeat:
    counter: int
    edition: int
    round: int
    cost_us: int
    ask: bool = False
    """To be answered at once."""
    echo: int | None = None
    """The lowest 16 bits of the counter of the receiver's last heartbeat."""
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """Facts that both sides of a heartbeat know of its sender; the receiver from the sender's earlier datagrams."""

    sender_boot: int
    receiver_boot: int
    counter: int
    """The highest counter so far ..."""
    round: int
    """... and the round; what is sent of both is completed to the number nearest to these."""


def close_heartbeat(key: bytes, beat: Heartbeat, sender_boot: int, receiver_boot: int) -> bytes:
    flags = _ASK * beat.ask | _ECHO * (beat.echo is not None)
    counter, round_ = _low(beat.counter, _COUNTER_BITS), _low(beat.round, _ROUND_BITS)
    hold = min(round(beat.hold_s / HOLD_UNIT_S), 0xFFFF)
    numbers = (counter, beat.echo or 0, beat.edition, round_, hold, beat.cost_us)
    content = _WIRE.pack(MAGIC, flags, sender_boot & LOW_BOOT, *numbers)
    return content + _mac(key, content, sender_boot, receiver_boot, beat.counter, beat.round)


def sender_of(data: bytes) -> int | None:
    """The lowest bits of the sender's boot; None if this is no heartbeat."""
    if len(data) != HEARTBEAT_BYTES or not data.startswith(MAGIC):
        return None
    return int.from_bytes(data[2:6], "big")


def open_heartbeat(key: bytes, data: bytes, known: Acquaintance) -> Heartbeat | None:
    if sender_of(data) != known.sender_boot & LOW_BOOT:
        return None
    _, flags, _, counter_low, echo, edition, round_low, hold, cost_us = _WIRE.unpack_from(data)
    counter = _nearest(counter_low, _COUNTER_BITS, known.counter)
    round_ = _nearest(round_low, _ROUND_BITS, known.round)
    mac = _mac(key, data[: _WIRE.size], known.sender_boot, known.receiver_boot, counter, round_)
    if not compare_digest(mac, data[_WIRE.size :]) or flags & ~(_ASK | _ECHO):
        return None
    echoed = echo if flags & _ECHO else None
    return Heartbeat(counter, edition, round_, cost_us, bool(flags & _ASK), echoed, hold * HOLD_UNIT_S)


def _mac(key: bytes, content: bytes, sender_boot: int, receiver_boot: int, counter: int, round_: int) -> bytes:
    whole = content + _FULL.pack(sender_boot, receiver_boot, counter, round_)
    return blake2b(whole, key=key, digest_size=MAC_BYTES).digest()


def _low(number: int, bits: int) -> int:
    return number & ((1 << bits) - 1)


def _nearest(low: int, bits: int, known: int) -> int:
    """The number with these lowest bits that is nearest to a known one, and not negative."""
    span = 1 << bits
    found = known - known % span + low
    if found - known > span // 2 and found >= span:
        found -= span
    elif known - found > span // 2:
        found += span
    return found % (1 << 64)
