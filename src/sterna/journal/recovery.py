"""Recovery of the journal after a restart, from its bytes alone.

Iterating a Recovery replays every frame after the checkpoint in the order of writing; the attributes then say where the
journal goes on and what did not survive.  A torn tail is cut, from the start of the group it tore: nobody was told the
group is kept, and half of one would be worse than nothing.  Anything else a checksum refuses is damage to a group that
was once whole: the frame is stepped over and reported, never guessed at and never silent, and the group's other frames
are kept.  Where a frame's header is damaged, the walk looks for the next frame, so that nothing is cut off that can
still be read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sterna.journal.frames import (
    DELIVERIES,
    EVENTS,
    HEADER_BYTES,
    MAGIC_BYTES,
    MESSAGES,
    SEGMENT_HEADER_BYTES,
    SESSIONS,
    FrameHeader,
    body_is_intact,
    claimed_body,
    parse_header,
    parse_segment_header,
    read_events,
)
from sterna.journal.index import Index
from sterna.journal.record_batch import MessageRows
from sterna.journal.store import BEGINNING, Position, SegmentFile, Store
from sterna.mqtt.message import Message

_CONTENTS = {
    MESSAGES: "messages",
    EVENTS: "session events",
    SESSIONS: "records of sessions",
    DELIVERIES: "records of deliveries",
}

_WINDOW_BYTES = 16 * 1024
"""Read-ahead of the walk: many small frames per read, little waste on big ones."""

_SCAN_BYTES = 1024 * 1024
"""Bytes read at a time to find the next frame behind damage."""


class RecoveredMessages(NamedTuple):
    epoch: int
    group: int
    """Offset of the first message of the group it was written in."""
    messages: list[Message]


class RecoveredEvents(NamedTuple):
    epoch: int
    group: int
    events: list[bytes]


class Damage(NamedTuple):
    """Bytes that were kept once and are no longer readable, with the offsets [first, stop) that went with them."""

    file: str
    byte: int
    first_offset: int
    stop_offset: int
    what: str


class Cut(NamedTuple):
    """A torn tail, removed."""

    file: str
    byte: int
    bytes_cut: int


def recover(store: Store, since: Position = BEGINNING) -> Recovery:
    """Begin a recovery: iterate the answer for the frames after `since`, then read what it found."""
    return Recovery(store, since)


class Recovery:
    """Iterate it to the end, once; then read its attributes and hand it to Journal."""

    def __init__(self, store: Store, since: Position) -> None:
        self._store = store
        self._since = since
        self.index = Index()
        self.next_offset = since.offset
        #: The end of the last whole group.
        self.position = since
        #: The highest epoch in any frame.
        self.last_epoch = 0
        self.cuts: list[Cut] = []
        self.damage: list[Damage] = []
        #: The checkpoint's segment no longer exists: the replay began at the oldest frame after it.
        self.since_is_gone = False
        #: The journal ends before the checkpoint: its tail was never synced, or someone removed it.
        self.behind_checkpoint = False
        self.complete = False

    @property
    def first_offset(self) -> int:
        return self.index.segments[0].first_offset if self.index.segments else self.next_offset

    def __iter__(self) -> Iterator[RecoveredMessages | RecoveredEvents]:
        files = self._store.segments()
        self.since_is_gone = self._since.serial > 0 and all(file.serial != self._since.serial for file in files)
        previous = None
        for number, file in enumerate(files):
            following = files[number + 1] if number + 1 < len(files) else None
            self._report_missing(previous, file)
            walk = _SegmentWalk(self._store, file, self.index, self.damage, is_last=following is None)
            yield from walk.replay(self._since)
            if following is None:
                self._cut_tail(walk)
            elif walk.end < file.size or walk.lacks_the_end:
                stop = max(walk.next_offset, following.first_offset)
                self.damage.append(Damage(file.name, walk.end, walk.next_offset, stop, "the rest of the segment"))
            if walk.end:  # else it was torn while it was begun, and is gone
                previous = Position(file.serial, walk.end, walk.next_offset)
            self.last_epoch = max(self.last_epoch, walk.last_epoch)
        self._finish(previous or BEGINNING)

    def _report_missing(self, previous: Position | None, file: SegmentFile) -> None:
        if previous is None:  # the oldest one left: was it the checkpoint's, or one before?
            missing, first = 0 < self._since.serial < file.serial, self._since.offset
        else:
            missing, first = file.serial > previous.serial + 1, previous.offset
        if missing and file.first_offset > first:
            self.damage.append(Damage(file.name, 0, first, file.first_offset, "what came before this segment"))

    def _cut_tail(self, walk: _SegmentWalk) -> None:
        file = walk.file
        if walk.end == file.size > 0:
            return
        self._store.truncate(file.serial, walk.end)
        self.cuts.append(Cut(file.name, walk.end, file.size - walk.end))
        if walk.end == 0:
            self.index.segments.pop()
        else:
            self.index.segments[-1].size = walk.end

    def _finish(self, end: Position) -> None:
        self.behind_checkpoint = end[:2] < self._since[:2]
        self.next_offset = max(end.offset, self._since.offset)
        self.position = max(end, self._since)._replace(offset=self.next_offset, events=0)
        # Otherwise what is written from now on could lie before the checkpoint, and the next replay would skip it.
        self._store.continue_after(self._since.serial)
        self.complete = True


class _Gap(NamedTuple):
    """Bytes between two frames that are no frame: the header of what stood there is damaged."""

    start: int
    end: int
    stop_offset: int
    """No message that stood here had this offset or a later one."""


class _Found(NamedTuple):
    """A frame on the way."""

    start: int
    header: FrameHeader
    body: bytes | None
    """None if it need not be replayed."""
    intact: bool

    @property
    def end(self) -> int:
        return self.start + HEADER_BYTES + self.header.length


class _SegmentWalk:
    """One pass over one segment: indexes it, replays it from the checkpoint on, and finds where it ends."""

    def __init__(self, store: Store, file: SegmentFile, index: Index, damage: list[Damage], *, is_last: bool) -> None:
        self.file = file
        self.end = SEGMENT_HEADER_BYTES
        self.next_offset = file.first_offset
        self.last_epoch = 0
        #: The segment stops between two frames of a group.
        self.lacks_the_end = False
        self._store = store
        self._whole_index = index
        self._segment = index.begin_segment(file.serial, file.first_offset, file.size)
        self._damage = damage
        self._is_last = is_last
        #: The frames of a group whose last frame has not been reached.
        self._group: list[_Found | _Gap] = []
        self._window = b""
        self._window_start = 0

    def replay(self, since: Position) -> Iterator[RecoveredMessages | RecoveredEvents]:
        node = parse_segment_header(self._read(0, SEGMENT_HEADER_BYTES), self.file.name)
        for found in self._frames(SEGMENT_HEADER_BYTES, since):
            rotten = isinstance(found, _Gap) or not found.intact
            if rotten and self._is_last and not self._a_group_starts_after(found.end):
                break
            if isinstance(found, _Found) and found.header.starts_group and self._group:
                yield from self._group_is_whole(since)  # its last frame is in a gap
            self._group.append(found)
            if isinstance(found, _Found) and found.header.ends_group:
                yield from self._group_is_whole(since)
        if self._group and not self._is_last:
            # Its end was cut off after a later segment had been begun, so it was whole once.
            yield from self._group_is_whole(since)
            self.lacks_the_end = True
        if node is None:
            self._judge_bad_header()

    def _group_is_whole(self, since: Position) -> Iterator[RecoveredMessages | RecoveredEvents]:
        group, self._group = self._group, []
        base = next((found.header.base for found in group if isinstance(found, _Found)), self.next_offset)
        known = since.events if (self.file.serial, group[0].start) == since[:2] else 0
        for found in group:
            self.end = found.end
            if isinstance(found, _Gap):
                known = 0  # how many events stood there nobody can tell; none is left out that the checkpoint may lack
                self._report_gap(found)
                continue
            start, header, body, intact = found
            skip = min(known, header.items) if header.kind == EVENTS else 0
            known -= skip
            if not intact:
                self._report(start, header)
            else:
                self._index(start, header)
                if body is not None and header.kind in (MESSAGES, EVENTS):
                    yield _decode(header, body, base, skip)
            self.next_offset = max(self.next_offset, header.end_offset)
            self.last_epoch = max(self.last_epoch, header.epoch)

    def _frames(self, start: int, since: Position) -> Iterator[_Found | _Gap]:
        for piece in self._headers(start):
            if isinstance(piece, _Gap):
                yield piece
                continue
            start, header = piece
            wanted = (self.file.serial, start) >= since[:2]
            # The last segment is checked wholly: it is the one a crash may have torn.
            body = self._read(start + HEADER_BYTES, header.length) if wanted or self._is_last else None
            intact = body is None or body_is_intact(header, body)
            yield _Found(start, header, body if wanted else None, intact)

    def _headers(self, start: int) -> Iterator[tuple[int, FrameHeader] | _Gap]:
        """The frames from `start` on that lie wholly in the file, by their headers, and the gaps between them."""
        offset = epoch = 0
        while start < self.file.size:
            header = parse_header(self._read(start, HEADER_BYTES))
            if header is None:
                gap = self._gap(start, offset, epoch)
                if gap is None:
                    return
                yield gap
                start = gap.end
                continue
            end = start + HEADER_BYTES + header.length
            if end > self.file.size:
                return
            yield start, header
            start, offset, epoch = end, header.end_offset, header.epoch

    def _gap(self, start: int, offset: int, epoch: int) -> _Gap | None:
        """From bytes that are no header up to the next frame; None if there is none.

        A payload may hold bytes that look like a frame.  So where the length or the checksum of the body survived in
        the damaged header, they say where the body ends; only where both are gone the first frame found is believed,
        if it can come after offset and epoch of those before.
        """
        size = self.file.size
        length, crc = claimed_body(self._read(start, HEADER_BYTES))
        body = start + HEADER_BYTES
        if body + length == size:
            return None
        if header := self._frame_at(body + length):
            return _Gap(start, body + length, header.base)
        first: _Gap | None = None
        checked, running = body, 0
        for place in self._places_of_magic(start + 1):
            header = self._frame_at(place)
            if header is None or header.base < offset or header.epoch < epoch:
                continue
            checked, running = self._checksum(checked, place, running)
            if checked == place and running == crc:
                return _Gap(start, place, header.base)
            first = first or _Gap(start, place, header.base)
        return None if self._checksum(checked, size, running) == (size, crc) else first

    def _checksum(self, start: int, end: int, crc: int) -> tuple[int, int]:
        """Goes on with a checksum from `start` to `end`; how far it got, and the checksum."""
        while start < end:
            piece = self._read(start, min(end - start, _SCAN_BYTES))
            start, crc = start + len(piece), zlib.crc32(piece, crc)
        return start, crc

    def _frame_at(self, start: int) -> FrameHeader | None:
        header = parse_header(self._read(start, HEADER_BYTES))
        if header is None or start + HEADER_BYTES + header.length > self.file.size:
            return None
        return header

    def _places_of_magic(self, start: int) -> Iterator[int]:
        """Where a frame may begin, from `start` on."""
        while start < self.file.size:
            data = self._store.read(self.file.serial, start, _SCAN_BYTES)
            place = data.find(MAGIC_BYTES)
            while place >= 0:
                yield start + place
                place = data.find(MAGIC_BYTES, place + 1)
            start += max(1, len(data) - len(MAGIC_BYTES) + 1)

    def _a_group_starts_after(self, end: int) -> bool:
        return any(not isinstance(later, _Gap) and later[1].starts_group for later in self._headers(end))

    def _index(self, start: int, header: FrameHeader) -> None:
        if header.kind == MESSAGES:
            self._segment.add_frame(header.base, start)
            self._whole_index.note_epoch(header.base, header.epoch)
        self._segment.newest_us = max(self._segment.newest_us, header.newest_us)

    def _report(self, start: int, header: FrameHeader) -> None:
        what = f"a frame of {header.items} {_CONTENTS[header.kind]}"
        self._damage.append(Damage(self.file.name, start, header.base, header.end_offset, what))

    def _report_gap(self, gap: _Gap) -> None:
        what = f"{gap.end - gap.start} bytes: the header of a frame"
        stop = max(self.next_offset, gap.stop_offset)
        self._damage.append(Damage(self.file.name, gap.start, self.next_offset, stop, what))

    def _judge_bad_header(self) -> None:
        """A bad segment header before good frames rotted; before none, the segment was torn while it was begun."""
        if self.end > SEGMENT_HEADER_BYTES:
            first = self.file.first_offset
            self._damage.append(Damage(self.file.name, 0, first, first, "the segment's header (its frames are whole)"))
        else:
            self.end = 0

    def _read(self, start: int, length: int) -> bytes:
        skip = start - self._window_start
        if skip < 0 or skip + length > len(self._window):
            self._window = self._store.read(self.file.serial, start, max(length, _WINDOW_BYTES))
            self._window_start, skip = start, 0
        return self._window[skip : skip + length]


def _decode(header: FrameHeader, body: bytes, group: int, skip: int) -> RecoveredMessages | RecoveredEvents:
    if header.kind != MESSAGES:
        return RecoveredEvents(header.epoch, group, read_events(header, body)[skip:])
    rows = MessageRows(body, header.base, from_elsewhere=header.from_elsewhere)
    messages = [rows.message(offset) for offset in range(header.base, header.end_offset)]
    return RecoveredMessages(header.epoch, group, messages)
