"""A store that forgets everything when the process ends: durability "memory", and the store of fast tests.

It keeps groups as the bytes a file would hold, in segments of the same size, so that reading, retention and recovery
run the same lines.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from sterna.journal.frames import segment_header
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Group, Position, SegmentFile


@dataclass(slots=True)
class _MemorySegment:
    first_offset: int
    chunks: list[bytes]
    """The header, then one per group: a frame never spans two."""
    starts: list[int]
    size: int

    def add(self, data: bytes) -> None:
        self.chunks.append(data)
        self.starts.append(self.size)
        self.size += len(data)


class MemoryStore:
    def __init__(self, settings: JournalSettings, node: str = "") -> None:
        self._segment_bytes = settings.segment_bytes
        self._node = node
        self._segments: dict[int, _MemorySegment] = {}
        self._serial = 0
        self._active: _MemorySegment | None = None

    def write(self, group: Group) -> Position:
        active = self._active
        if active is None or active.size + len(group.data) > self._segment_bytes:
            active = self._begin(group.base_offset)
        start = active.size
        active.add(group.data)
        return Position(self._serial, start, group.base_offset)

    def _begin(self, first_offset: int) -> _MemorySegment:
        self._serial += 1
        self._active = self._segments[self._serial] = _MemorySegment(first_offset, [], [], 0)
        self._active.add(segment_header(self._node, self._serial))
        return self._active

    def segments(self) -> list[SegmentFile]:
        return [
            SegmentFile(serial, segment.first_offset, segment.size, f"segment {serial} in memory")
            for serial, segment in self._segments.items()
        ]

    def read(self, serial: int, start: int, length: int) -> bytes:
        segment = self._segments[serial]
        index = bisect_right(segment.starts, start) - 1
        begin = start - segment.starts[index]
        found = segment.chunks[index][begin : begin + length]
        while len(found) < length and (index := index + 1) < len(segment.chunks):
            found += segment.chunks[index][: length - len(found)]
        return found

    def truncate(self, serial: int, size: int) -> None:
        kept = self.read(serial, 0, size)
        if kept:
            self._segments[serial] = _MemorySegment(self._segments[serial].first_offset, [kept], [0], len(kept))
        else:
            self.drop(serial)

    def drop(self, serial: int) -> None:
        del self._segments[serial]

    def continue_after(self, serial: int) -> None:
        self._active = None
        self._serial = max(self._serial, serial)
