"""A range of the journal's records on its way to a reader: from segments, in threads, a bounded piece at a time."""

from __future__ import annotations

from sterna.journal.audit_records import place_of, serial_and_byte
from sterna.journal.frames import HEADER_BYTES, SEGMENT_HEADER_BYTES, parse_header
from sterna.journal.index import IndexedSegment
from sterna.node.feed_records import KINDS, PickedRecords, pick_records
from sterna.runtime.feed.requests import AskRecords, Unfit
from sterna.runtime.feed.segment_read import SPAN_BYTES, SegmentSource, Store, read_bytes


def segment_places(segments: list[IndexedSegment]) -> list[tuple[int, int]]:
    """Of each segment the place where its frames begin, and where they end."""
    return [
        (place_of(one.serial, SEGMENT_HEADER_BYTES), place_of(one.serial, one.size))
        for one in segments
        if one.size > SEGMENT_HEADER_BYTES
    ]


class RecordsReading:
    """A range within one segment, a piece at a time."""

    def __init__(self, source: SegmentSource, asked: AskRecords) -> None:
        self._source = source
        self._kind = KINDS[asked.table]
        self._since_us = asked.since_us
        self._serial, self._byte = serial_and_byte(asked.start)
        serial, stop = serial_and_byte(asked.stop)
        if serial != self._serial:
            raise Unfit("a range of records lies within one segment", "range")
        self._stop = min(stop, self._size())
        self.rows = 0
        self.rotten = 0

    def _size(self) -> int:
        segments = self._source.journal.segments()
        for segment in segments:
            if segment.serial == self._serial:
                return segment.size
        first = place_of(segments[0].serial, SEGMENT_HEADER_BYTES) if segments else 0
        raise Unfit("these records are no longer kept", "trimmed", first=first)

    @property
    def reached(self) -> int:
        return place_of(self._serial, self._byte)

    async def more(self) -> PickedRecords | None:
        """None at the end of the range."""
        if self._byte >= self._stop:
            return None
        self._size()
        arguments = (self._serial, self._byte, self._stop, self._kind, self._since_us)
        try:
            picked: PickedRecords = await self._source.in_thread(_read, self._source.store, *arguments)
        except KeyError:  # retention dropped the segment while we were at it
            self._size()
            raise
        self.rows += picked.rows
        self.rotten += picked.rotten
        if picked.is_broken:
            self.rotten += 1
            self._byte = self._stop
        else:
            self._byte = picked.reached
        return picked


def _read(store: Store, serial: int, start: int, stop: int, kind: int, since_us: int | None) -> PickedRecords:
    data = read_bytes(store, serial, start, min(stop, start + SPAN_BYTES))
    picked = pick_records(data, serial, start, kind, since_us)
    if picked.reached == start and not picked.is_broken:  # a frame that is bigger by itself
        header = parse_header(data[:HEADER_BYTES])
        end = stop if header is None else start + HEADER_BYTES + header.length
        picked = pick_records(read_bytes(store, serial, start, end), serial, start, kind, since_us)
        picked.is_broken = picked.is_broken or picked.reached == start
    return picked
