"""Where each message lies: segments in order, and in each the frames by base offset.

Sixteen bytes per frame.  Built by recovery, extended by every commit, shortened by retention.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple


def _numbers() -> array[int]:
    return array("Q")


@dataclass(slots=True)
class IndexedSegment:
    serial: int
    first_offset: int
    size: int
    newest_us: int
    """When its newest message came in or its newest record was made; a segment of events alone takes its
    predecessor's."""
    bases: array[int] = field(default_factory=_numbers)
    starts: array[int] = field(default_factory=_numbers)

    def add_frame(self, base: int, start: int) -> None:
        self.bases.append(base)
        self.starts.append(start)


class FramePlace(NamedTuple):
    serial: int
    start: int
    base: int


class FrameSpan(NamedTuple):
    """Bytes of one segment that begin and end with a frame of messages; frames of events may lie between."""

    serial: int
    start: int
    stop: int
    first: int
    """No message in it has a lower offset ..."""
    following: int
    """... and none from here on: the next span begins here; -1 if there is none yet."""


_first_offset = attrgetter("first_offset")


class Index:
    def __init__(self) -> None:
        self.segments: list[IndexedSegment] = []
        #: (first offset, epoch), whenever the epoch changed: few, so they outlive the segments they stood in.
        self.epochs: list[tuple[int, int]] = []

    def begin_segment(self, serial: int, first_offset: int, size: int) -> IndexedSegment:
        newest_us = self.segments[-1].newest_us if self.segments else 0
        segment = IndexedSegment(serial, first_offset, size, newest_us)
        self.segments.append(segment)
        return segment

    def note_epoch(self, offset: int, epoch: int) -> None:
        """From this offset on, messages are of this epoch."""
        if not self.epochs or self.epochs[-1][1] != epoch:
            self.epochs.append((offset, epoch))

    def epoch_of(self, offset: int) -> int:
        number = bisect_right(self.epochs, offset, key=lambda entry: entry[0]) - 1
        return self.epochs[max(number, 0)][1]

    def offset_after(self, epoch: int, sequence: int) -> int:
        """Where to go on reading after that message: behind it, or where a later epoch took its place."""
        later = (first for first, number in self.epochs if number > epoch)
        return min(sequence + 1, next(later, sequence + 1))

    def find(self, offset: int) -> FramePlace | None:
        """The last frame that begins at or before `offset`: if `offset` is kept at all, it is in there."""
        # Segments of events alone share their first offset with the one that follows; bisect_right takes the last.
        number = bisect_right(self.segments, offset, key=_first_offset) - 1
        if number < 0:
            return None
        segment = self.segments[number]
        frame = bisect_right(segment.bases, offset) - 1
        return FramePlace(segment.serial, segment.starts[frame], segment.bases[frame]) if frame >= 0 else None

    def find_after(self, offset: int) -> FramePlace | None:
        """The first frame that begins after `offset`."""
        number = max(0, bisect_right(self.segments, offset, key=_first_offset) - 1)
        for segment in self.segments[number:]:
            frame = bisect_right(segment.bases, offset)
            if frame < len(segment.bases):
                return FramePlace(segment.serial, segment.starts[frame], segment.bases[frame])
        return None

    def span(self, offset: int, stop: int, bytes_max: int) -> FrameSpan | None:
        """The frames that hold `offset` (or what comes next after it) and more, below `stop`: one at least."""
        number = max(0, bisect_right(self.segments, offset, key=_first_offset) - 1)
        for segment in self.segments[number:]:
            frame = max(0, bisect_right(segment.bases, offset) - 1)
            if frame < len(segment.bases):
                return self._span(segment, frame, stop, bytes_max) if segment.bases[frame] < stop else None
        return None

    def _span(self, segment: IndexedSegment, frame: int, stop: int, bytes_max: int) -> FrameSpan:
        bases, starts = segment.bases, segment.starts
        limit = starts[frame] + bytes_max
        fitting = len(bases) if segment.size <= limit else bisect_right(starts, limit) - 1
        end = max(frame + 1, min(fitting, bisect_left(bases, stop)))
        if end < len(bases):
            return FrameSpan(segment.serial, starts[frame], starts[end], bases[frame], bases[end])
        following = self.find_after(bases[-1])
        return FrameSpan(segment.serial, starts[frame], segment.size, bases[frame], following.base if following else -1)

    def frame_at(self, serial: int, start: int) -> tuple[int, int]:
        """Offsets in the frame at this byte: [base, the base of the next one); nothing if it is not one of messages.

        The second is -1 if there is no next one.
        """
        segment = next(segment for segment in self.segments if segment.serial == serial)
        number = bisect_left(segment.starts, start)
        if number == len(segment.starts):
            return -1, -1
        base = segment.bases[number]
        if segment.starts[number] != start:
            return base, base
        following = self.find_after(base)
        return base, following.base if following else -1

    def total_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)
