"""Sends a small batch as its difference from a similar earlier one.

Messages of one topic that come one by one differ in a few bytes.  Sending these bytes is cheaper than deflating the
batch, most of all after a pause, when the deflater's tables have left the processor's cache.

Both sides of a connection keep the same batches in the same places: a batch that was sent whole takes the next place, a
batch that was sent as a difference takes the place of the one it was compared with.

    difference: place u8, then runs: how many bytes stay u8, how many change u8, those
"""

from __future__ import annotations

from typing import Final

PLACES: Final = 256
KEPT_BYTES_MAX: Final = 255
"""Of a batch that others may be like."""
DIFFERENCE_BYTES_MAX: Final = 31
"""Batches that differ by more are not alike; the length of what is shorter takes one byte in the head of a batch."""
GAP_BYTES: Final = 2
"""So many bytes that stay cost no more within a run than a run of its own after them."""

#: Every byte there is, made once.
BYTES: Final = [bytes((value,)) for value in range(256)]


class DeltaPlaces:
    """The batches that others may be like."""

    __slots__ = ("_next", "batches")

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self._next = 0

    def keep(self, batch: bytes) -> int:
        """In the next place, whatever was there before; which one that is."""
        place = self._next
        if place < len(self.batches):
            self.batches[place] = batch
        else:
            self.batches.append(batch)
        self._next = (place + 1) % PLACES
        return place


class DeltaWriter:
    """The side that sends.  `like` is what batches that are alike have in common, their topic say; none is b""."""

    __slots__ = ("_keys", "_place_of", "_places")

    def __init__(self) -> None:
        self._places = DeltaPlaces()
        #: By what they are alike in, and size.
        self._place_of: dict[tuple[bytes, int], int] = {}
        self._keys: list[tuple[bytes, int]] = []

    def difference(self, like: bytes, batch: bytes) -> bytes | None:
        """HOT.  A difference to send instead of this batch; None if the batch has to be sent whole."""
        place = self._place_of.get((like, len(batch)))
        if place is None:
            return None
        batches = self._places.batches
        told = difference(place, batches[place], batch)
        if len(told) > DIFFERENCE_BYTES_MAX:
            return None
        batches[place] = batch
        return told

    def keep(self, like: bytes, batch: bytes) -> None:
        """It is said whole."""
        if len(batch) > KEPT_BYTES_MAX:
            return
        place = self._places.keep(batch)
        key = (like, len(batch))
        if place < len(self._keys):
            if self._place_of.get(self._keys[place]) == place:
                del self._place_of[self._keys[place]]
            self._keys[place] = key
        else:
            self._keys.append(key)
        if like:
            self._place_of[key] = place


class DeltaReader:
    """The side that receives."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places = DeltaPlaces()

    def restored(self, told: bytes) -> bytes | None:
        """HOT.  The batch that this is the difference of; None if there is none."""
        batches = self._places.batches
        if not told or told[0] >= len(batches):
            return None
        place = told[0]
        batch = changed(batches[place], told)
        if batch is not None:
            batches[place] = batch
        return batch

    def keep(self, batch: bytes) -> None:
        """It came whole."""
        if len(batch) <= KEPT_BYTES_MAX:
            self._places.keep(batch)


def difference(place: int, before: bytes, after: bytes) -> bytes:
    """HOT.  Of two batches of one size."""
    size = len(after)
    parts = [BYTES[place]]
    at = told = 0
    while at < size:
        if before[at] == after[at]:
            at += 1
            continue
        start = at
        at = end = start + 1
        while at < size and at - end <= GAP_BYTES:
            if before[at] != after[at]:
                end = at + 1
            at += 1
        parts.append(BYTES[start - told])
        parts.append(BYTES[end - start])
        parts.append(after[start:end])
        told = end
    return b"".join(parts)


def changed(before: bytes, told: bytes) -> bytes | None:
    """HOT.  The batch with every run in its place; None if one lies outside it."""
    parts: list[bytes] = []
    at, size = 0, len(before)
    place, end = 1, len(told)
    while place + 1 < end:
        start = at + told[place]
        count = told[place + 1]
        place += 2
        if start + count > size or place + count > end:
            return None
        parts.append(before[at:start])
        parts.append(told[place : place + count])
        at = start + count
        place += count
    parts.append(before[at:])
    return b"".join(parts) if place == end else None
