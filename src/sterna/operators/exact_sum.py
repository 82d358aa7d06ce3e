"""Sums without rounding: a double becomes an integer, a multiple of 2^-128, and stays one until the answer.

Integers can be added and subtracted in any order with the same outcome; doubles cannot.  Digits of a double below
2^-128 (3e-39) are cut off, everywhere alike; a double of 2^-75 (3e-23) or more has none there.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 128
_SCALE: Final = 2.0**128

#: Numbers in payloads are smaller than this in magnitude; so are the numbers they are compared with.
NUMBER_MAX: Final = 2.0**127


def to_exact(value: float) -> int:
    # Multiplying by a power of two changes the exponent only; `int` then cuts.
    return int(value * _SCALE)


def ratio(numerator: int, denominator: int) -> float:
    """Correctly rounded; OverflowError where there is no such double."""
    return numerator / denominator


def to_wire(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


def from_wire(wire: bytes) -> int:
    return int.from_bytes(wire, "big", signed=True)
