"""Frames lately read back from the store, decoded; the least recently used go first.

Bounded by the bytes of their bodies.  Sequential readers of old messages hit the same frame many times.
"""

from __future__ import annotations

from sterna.journal.record_batch import MessageRows


class FrameCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._frames: dict[int, tuple[MessageRows, int]] = {}

    def get(self, base: int) -> MessageRows | None:
        entry = self._frames.pop(base, None)
        if entry is None:
            return None
        self._frames[base] = entry  # to the young end
        return entry[0]

    def put(self, rows: MessageRows, size: int) -> None:
        self._frames[rows.base] = (rows, size)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._frames) > 1:
            self._evict(next(iter(self._frames)))

    def forget_before(self, offset: int) -> None:
        for base in [base for base in self._frames if base < offset]:
            self._evict(base)

    def _evict(self, base: int) -> None:
        _, size = self._frames.pop(base)
        self._bytes -= size
