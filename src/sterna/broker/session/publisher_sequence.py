"""Sequence numbers of publishers: a message that is sent again is acknowledged and not published twice.

A client that may send a message again under another packet identifier, because it was restarted from an earlier state,
puts "batch.row" into the user property `sterna-sequence` and counts upwards.  Its session remembers the last number; a
message whose number is not greater is acknowledged and goes nowhere.  The number stands in the message, so the journal
that keeps the message keeps the number, and a crash loses both or neither.
"""

from __future__ import annotations

from sterna.mqtt import properties as prop
from sterna.mqtt import wire

Number = tuple[int, int]

#: Of a session that has had none.
NO_NUMBER: Number = (-1, -1)

_MARK = bytes((prop.USER_PROPERTY,)) + wire.binary(b"sterna-sequence")
_DIGITS_MAX = 18


def numbered(batch: int, row: int) -> bytes:
    """The encoded property."""
    return _MARK + wire.binary(b"%d.%d" % (batch, row))


def number_of(block: bytes) -> Number | None:
    """The number among encoded properties, as `Message.properties` has them; None if there is none."""
    place = block.find(_MARK)
    if place < 0:
        return None
    value, _ = wire.read_binary(block, place + len(_MARK), len(block))
    batch, _, row = value.partition(b".")
    if not (batch.isdigit() and row.isdigit() and len(batch) <= _DIGITS_MAX and len(row) <= _DIGITS_MAX):
        return None
    return int(batch), int(row)
