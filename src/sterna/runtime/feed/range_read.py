"""A range of the journal on its way to a reader, a span at a time, and the reasons to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sterna.journal.frames import ENDS_GROUP, STARTS_GROUP, message_frame
from sterna.mqtt.topics import is_topic_filter
from sterna.node.feed_pieces import AS_IT_LIES, FeedQuestion, Picked
from sterna.runtime.feed import requests as asks
from sterna.runtime.feed.segment_read import LOOK_SPAN_BYTES, SPAN_BYTES, SegmentSource, read_span

if TYPE_CHECKING:
    from sterna.journal.journal import Journal


BLIND_SPANS = 16
"""Where looking into frames left nothing out, so many spans are sent unseen before the next look."""


class RangeReading:
    """A range on its way to a reader, a span at a time; `offset` is how far it has got."""

    def __init__(self, source: SegmentSource, question: FeedQuestion) -> None:
        self._source = source
        self._question = question
        #: Rows that come in later are not part of the answer: a reader that asks again gets the same.
        self._stop = min(question.stop, source.journal.safe_offset)
        self.offset = question.start
        self.rows = 0
        self.lost = 0
        #: Spans that are sent without a look.
        self._blind_for = 0

    async def more(self) -> Picked | None:
        """None at the end of the range."""
        journal = self._source.journal
        if self.offset >= self._stop:
            return None
        if self.offset < journal.first_offset:
            raise trimmed(self.offset, journal.first_offset)
        look = not self._blind_for
        looks = look and not self._question.is_plain
        span = journal.span(self.offset, self._stop, LOOK_SPAN_BYTES if looks else SPAN_BYTES)
        if span is None:
            return self._from_memory()
        # From here on: a frame that has been sent may be the last one before a gap, and be found again.
        question = replace(self._question, start=self.offset)
        try:
            picked: Picked = await self._source.in_thread(read_span, self._source.store, span, question, look)
        except KeyError:  # retention dropped the segment while we were at it
            raise trimmed(self.offset, journal.first_offset) from None
        following = span.following
        for rot in picked.rot:
            first, stop = journal.unreadable(span.serial, span.start + rot.byte)
            self.lost += max(0, min(stop, self._stop) - max(first, self._question.start))
            if rot.chain:
                following = stop
        in_vain = picked.looks > 0 and picked.looks == picked.looks_in_vain
        self._blind_for = BLIND_SPANS if in_vain else max(0, self._blind_for - 1)
        self.rows += picked.rows
        self.offset = min(max(following, self.offset), self._stop)
        return picked

    def _from_memory(self) -> Picked:
        """Messages that a journal in memory has not made frames of yet."""
        picked = Picked()
        first, messages = self._source.journal.not_stored(self.offset, self._stop)
        if messages:
            flags = STARTS_GROUP | ENDS_GROUP
            for part in message_frame(messages, first, self._source.journal.epoch, flags):
                picked.add(AS_IT_LIES, part)
            self.rows += len(messages)
        self.offset = self._stop
        return picked


def reach(journal: Journal, start: int, bytes_max: int, before: int | None = None) -> tuple[int, int]:
    """Up to which offset about so many bytes go, a frame of messages at least, and how many they are."""
    stop, size = journal.safe_offset if before is None else min(before, journal.safe_offset), 0
    offset = max(start, journal.first_offset)
    while offset < stop and size < bytes_max:
        span = journal.span(offset, stop, bytes_max - size)
        if span is None:
            _, messages = journal.not_stored(offset, stop)
            size += sum(len(message.payload) for message in messages)
            return stop, size
        if size and span.stop - span.start > bytes_max - size:
            break
        size += span.stop - span.start
        offset = min(span.following, stop)
    return min(offset, stop), size


def filters_of(asked: asks.AskRead) -> list[bytes] | None:
    if asked.filters is None:
        return None
    filters = [topic_filter.encode("utf-8", "surrogatepass") for topic_filter in asked.filters]
    for topic_filter in filters:
        if not is_topic_filter(topic_filter, 512, 65535):
            raise asks.Unfit(f'"{topic_filter.decode(errors="replace")}" is no topic filter', "filter")
    return filters


def trimmed(offset: int, first: int) -> asks.Unfit:
    return asks.Unfit(f"offset {offset} is no longer kept, the journal begins at {first}", "trimmed", first=first)
