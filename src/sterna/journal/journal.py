"""A node's journal: messages get dense offsets, are committed in groups, and can be read until retention drops them.

Appending touches memory only.  The world closes a group, has the store write it (in another thread if it likes, while
appending goes on), and reports the outcome with `committed` or `failed`, in the order the groups were closed.
A message can be read from the moment it is appended; only `committed` says that it is kept.

Session events of a group are written before its messages, so an event may rely on messages of earlier groups only.
"""

from __future__ import annotations

import errno
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.frame_cache import FrameCache
from sterna.journal.frames import HEADER_BYTES, FrameHeader, body_is_intact, parse_header
from sterna.journal.group_encoding import FRAME_BYTES_MAX, FRAME_ROWS_MAX, encode_group, message_weight
from sterna.journal.index import FramePlace, FrameSpan, Index, IndexedSegment
from sterna.journal.reader_cursors import HeldOffsets
from sterna.journal.record_batch import MessageRows, to_microseconds
from sterna.journal.recovery import Damage, Recovery
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Group, Position, Store
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import Stamp

BASE_OFFSET_KEY = b"sterna.base_offset"
EPOCH_KEY = b"sterna.epoch"

#: Troubles with a file that say nothing about its contents.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EINTR, errno.EAGAIN)

_FRAME_CACHE_BYTES = 16 * 1024 * 1024

#: Records that wait for a group to go with; so many make one.
RECORDS_WAITING_MAX = 4096


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    first_offset: int
    next_offset: int
    bytes: int
    """Kept by the store, all segments together."""
    segments: int
    lost_messages: int
    """Messages once kept and no longer readable, because bytes were damaged; see `Journal.damage`."""


class Journal:
    """The public attributes are for reading.

    next_offset: what the next message gets.  first_offset: the oldest one kept.  pending_bytes: weight of the open
    group's messages.  epoch: the number of the node's start.  damage: what could not be read back, each piece once.
    """

    def __init__(
        self,
        store: Store,
        settings: JournalSettings,
        *,
        epoch: int,
        next_offset: int = 0,
        recovered: Recovery | None = None,
        tail_messages: int = 16384,
        tail_bytes: int = 64 * 1024 * 1024,
        tell_damage: Callable[[Damage], None] = lambda _: None,
    ) -> None:
        assert recovered is None or recovered.complete, "iterate the recovery to its end first"
        self._store = store
        self._settings = settings
        self.epoch = epoch
        self._in_memory = settings.durability == "memory"
        #: There was no start of the node before this one, as far as the disk tells.
        self.is_first_start = False
        self.next_offset = max(next_offset, recovered.next_offset if recovered else 0)
        self.first_offset = recovered.first_offset if recovered else self.next_offset
        self._end = recovered.position if recovered else BEGINNING
        self.damage: list[Damage] = list(recovered.damage) if recovered else []
        self.pending_bytes = 0
        self._index = recovered.index if recovered else Index()
        if epoch:
            self._index.note_epoch(self.next_offset, epoch)
        self._tell_damage = tell_damage
        self._unreadable: set[FramePlace] = set()
        self._frames = FrameCache(_FRAME_CACHE_BYTES)
        self._events: list[bytes] = []
        self._put_back = 0  # how many of them come from groups that failed
        # Records wait for the next group, and nobody waits for them.
        self._sessions: list[SessionRecord] = []
        self._deliveries: list[DeliveryRecord] = []
        self._records_back = (0, 0)
        self._records_due = False
        # The newest messages, without a gap up to next_offset: committed ones within the bounds, then the groups being
        # written, then the open group.  None stands for a message of a group that failed.
        self._tail: list[Message | None] = []
        self._tail_base = self.next_offset
        self._tail_limits = (tail_messages, tail_bytes)
        self._settled: deque[tuple[int, int]] = deque()  # (end offset, weight) of groups in the tail that are done with
        self._settled_bytes = 0
        self._open_base = self.next_offset
        self._writing: deque[Group] = deque()

    @property
    def position(self) -> Position:
        """The end of the last committed group: a checkpoint of now, recovered `since` here, misses nothing."""
        return self._end._replace(offset=self.next_offset)

    @property
    def safe_offset(self) -> int:
        """Every message below it is kept, or never will be."""
        if self._writing:
            return self._writing[0].base_offset
        return self.next_offset if self._in_memory else self._open_base

    # Appending

    def append(self, message: Message) -> int:
        """Give `message` the next offset and put it in the open group."""
        offset = self.next_offset
        message.offset = offset
        self._tail.append(message)
        self.pending_bytes += message_weight(message)
        self.next_offset = offset + 1
        return offset

    def note(self, event: bytes) -> None:
        """Put a session event in the open group; with durability "memory" there is nobody to replay it to."""
        if not self._in_memory:
            self._events.append(event)

    def record_session(self, record: SessionRecord) -> None:
        self._sessions.append(record)
        if len(self._sessions) >= RECORDS_WAITING_MAX:
            self._records_due = True

    def record_delivery(self, record: DeliveryRecord) -> None:
        self._deliveries.append(record)
        if len(self._deliveries) >= RECORDS_WAITING_MAX:
            self._records_due = True

    def let_records_be_written(self) -> bool:
        """Records have waited long enough; True if there are any."""
        self._records_due = bool(self._sessions or self._deliveries)
        return self._records_due

    @property
    def pending(self) -> bool:
        """Would `close_group` return a group?"""
        rows = self.next_offset - self._open_base
        if self._in_memory:
            # Nobody waits for the write, so it is put off until it fills a frame; the tail serves readers meanwhile.
            return rows >= FRAME_ROWS_MAX or self.pending_bytes >= FRAME_BYTES_MAX
        return rows > 0 or bool(self._events) or self._records_due

    @property
    def pending_events(self) -> int:
        return len(self._events)

    def close_group(self) -> Group | None:
        """Encode what was appended since the last call, for the store to write; None if there is nothing to write."""
        if not self.pending:
            return None
        messages: Any = self._tail[self._open_base - self._tail_base :]
        group = encode_group(
            messages,
            self._events,
            base=self._open_base,
            epoch=self.epoch,
            weight=self.pending_bytes,
            sessions=self._sessions,
            deliveries=self._deliveries,
        )
        self._events = []
        self._sessions = []
        self._deliveries = []
        self._records_back = (0, 0)
        self._records_due = False
        self._put_back = 0
        self._open_base = self.next_offset
        self.pending_bytes = 0
        self._writing.append(group)
        return group

    def committed(self, group: Group, at: Position) -> None:
        """The store keeps `group`, from `at` on."""
        self._settle(group, group.weight)
        segments = self._index.segments
        if not segments or segments[-1].serial != at.serial:
            self._index.begin_segment(at.serial, group.base_offset, at.byte)
        segment = segments[-1]
        for base, start in group.frames:
            segment.add_frame(base, at.byte + start)
        segment.newest_us = max(segment.newest_us, group.newest_us)
        segment.size = at.byte + len(group.data)
        self._end = at._replace(byte=segment.size)

    def failed(self, group: Group) -> None:
        """The store refused `group`: its messages read as None from now on, its events go with the next group.

        Sessions go on from what they noted, so it must not be missing from the journal; a message can be sent again.
        Groups that were closed after this one have to fail too, or events would overtake each other.

        The messages' offsets stay unused while this process runs, and after a restart from any later checkpoint.
        Without one, offsets go on behind the last committed group, in a new epoch: (epoch, offset) never names two
        messages.
        """
        start = group.base_offset - self._tail_base
        self._tail[start : start + len(group.messages)] = [None] * len(group.messages)
        self._settle(group, 0)
        self._events[self._put_back : self._put_back] = group.events
        self._put_back += len(group.events)
        sessions, deliveries = self._records_back
        self._sessions[sessions:sessions] = group.sessions
        self._deliveries[deliveries:deliveries] = group.deliveries
        self._records_back = sessions + len(group.sessions), deliveries + len(group.deliveries)

    def _settle(self, group: Group, weight: int) -> None:
        expected = self._writing.popleft()
        assert expected is group, "groups are settled in the order they were closed"
        self._settled.append((group.end_offset, weight))
        self._settled_bytes += weight
        self._trim_tail()

    def _trim_tail(self) -> None:
        messages_max, bytes_max = self._tail_limits
        keep_from = self._tail_base
        while self._settled and (self._settled_bytes > bytes_max or self.next_offset - keep_from > messages_max):
            keep_from, weight = self._settled.popleft()
            self._settled_bytes -= weight
        if keep_from > self._tail_base:
            del self._tail[: keep_from - self._tail_base]
            self._tail_base = keep_from

    # Reading

    def read(self, offset: int) -> Message | None:
        """The message at `offset`; None if it is trimmed, lost, of a failed group, or not there yet.

        Raises JournalError if it is there and cannot be read just now.
        """
        if not self.first_offset <= offset < self.next_offset:
            return None
        if offset >= self._tail_base:
            return self._tail[offset - self._tail_base]
        place = self._index.find(offset)
        if place is None:
            return None
        rows = self._frames.get(place.base) or self._rows(place)
        return rows.message(offset) if rows is not None and offset < rows.end else None

    def read_range(self, start: int, stop: int) -> Iterator[Any]:
        """The kept messages of [start, stop) as record batches, in order.

        Each batch is dense; its schema's metadata says the offset of its first row (BASE_OFFSET_KEY) and the epoch
        (EPOCH_KEY).  Rows missing between two batches are trimmed, lost or failed.
        """
        from sterna.journal.columns import read_batch, to_batch  # loads Arrow

        offset = max(start, self.first_offset)
        place = self._index.find(offset) or self._index.find_after(offset)
        while place is not None and place.base < stop:
            loaded = self._load(place)
            if loaded is not None and loaded[0].end_offset > offset:
                header, body = loaded
                batch = read_batch(body, from_elsewhere=header.from_elsewhere)
                yield _slice(batch, header.base, header.epoch, offset, stop)
            place = self._index.find_after(max(place.base, self.first_offset - 1))
        if self._in_memory and max(offset, self._open_base) < min(stop, self.next_offset):
            messages: Any = self._tail[self._open_base - self._tail_base :]
            yield _slice(to_batch(messages), self._open_base, self.epoch, offset, stop)

    def span(self, offset: int, stop: int, bytes_max: int) -> FrameSpan | None:
        """Where in the store the messages from `offset` on lie, as far as one piece of about `bytes_max` goes.

        For readers that take bytes from the store themselves.  None if the store has none of [offset, stop): see
        `not_stored`.
        """
        found = self._index.span(offset, stop, bytes_max)
        if found is not None and found.following < 0:
            found = found._replace(following=self._open_base)
        return found if found is not None and found.following > offset else None

    def not_stored(self, offset: int, stop: int) -> tuple[int, list[Message]]:
        """Messages of [offset, stop) that the store has not been given yet though they count as kept, and the offset of
        the first: there are some with durability "memory" only."""
        first = max(offset, self._open_base)
        if not self._in_memory or first >= min(stop, self.next_offset):
            return first, []
        found: Any = self._tail[first - self._tail_base : stop - self._tail_base]
        return first, found

    def segments(self) -> list[IndexedSegment]:
        """Oldest first; the last one is still written to.  For reading only."""
        return self._index.segments

    def unreadable(self, serial: int, start: int) -> tuple[int, int]:
        """A reader that takes bytes from the store itself found that those from this byte on are no frame, or a damaged
        one.  Says which messages [first, stop) that costs; `stop` is where to read on."""
        if all(segment.serial != serial for segment in self._index.segments):
            return self.first_offset, self.first_offset  # dropped meanwhile
        first, stop = self._index.frame_at(serial, start)
        first, stop = (self._open_base if place < 0 else place for place in (first, stop))
        if first < stop:
            self._report(FramePlace(serial, start, first), "a checksum does not hold")
        return first, stop

    def _rows(self, place: FramePlace) -> MessageRows | None:
        loaded = self._load(place)
        if loaded is None:
            return None
        header, body = loaded
        rows = MessageRows(body, header.base, from_elsewhere=header.from_elsewhere)
        self._frames.put(rows, len(body))
        return rows

    def _load(self, place: FramePlace) -> tuple[FrameHeader, bytes] | None:
        """A frame of messages from the store; None, and once a line in `damage`, if it cannot be read any more."""
        try:
            header = parse_header(self._store.read(place.serial, place.start, HEADER_BYTES))
            if header is not None:
                body = self._store.read(place.serial, place.start + HEADER_BYTES, header.length)
                if body_is_intact(header, body):
                    return header, body
            problem = "a checksum does not hold"
        except JournalError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING:
                raise  # the message is there: whoever wants it has to ask again
            problem = str(error)
        self._report(place, problem)
        return None

    def _report(self, place: FramePlace, problem: str) -> None:
        if place in self._unreadable:
            return
        self._unreadable.add(place)
        following = self._index.find_after(place.base)
        stop = following.base if following else self._open_base
        name = next(
            (file.name for file in self._store.segments() if file.serial == place.serial), "a segment that is gone"
        )
        damage = Damage(name, place.start, place.base, stop, f"a frame of messages: {problem}")
        self.damage.append(damage)
        self._tell_damage(damage)

    # Retention

    def begin_epoch(self, epoch: int, *, is_first: bool = False) -> None:
        """The number of this start of the node, known only once retention has made room to write it down."""
        self.is_first_start = is_first
        assert not self._writing, "groups of the epoch before are under way"
        self.epoch = epoch
        self._index.note_epoch(self.next_offset, epoch)

    def epoch_of(self, offset: int) -> int:
        """The epoch in which a message was given this offset."""
        return self._index.epoch_of(offset)

    def offset_after(self, stamp: Stamp) -> int:
        """The offset a reader that has seen this stamp goes on from."""
        return self._index.offset_after(stamp.epoch, stamp.sequence)

    def enforce_retention(
        self,
        *,
        now: float,
        checkpoint: Position | None = None,
        most: int = sys.maxsize,
        held: HeldOffsets | None = None,
    ) -> int:
        """Drop whole old segments by size and age, never the newest; returns the new `first_offset`.

        `checkpoint` is where the next recovery will begin to replay: segments it needs stay.  None: nobody replays.
        `most` is how many segments may go at once: removing a file takes time.
        `held` is what readers still need; what they need may stay longer, see there.
        """
        segments = self._index.segments
        size = self._index.total_bytes()
        spared = max(1, len(segments) - most)
        while len(segments) > spared and self._may_go(segments, size, now, held):
            if checkpoint is not None and segments[0].serial >= checkpoint.serial:
                break
            self._store.drop(segments[0].serial)
            size -= segments.pop(0).size
            self.first_offset = max(self.first_offset, segments[0].first_offset)
        self._frames.forget_before(self.first_offset)
        return self.first_offset

    def _may_go(self, segments: list[IndexedSegment], size: int, now: float, held: HeldOffsets | None) -> bool:
        bytes_max, age_s = self._settings.retention_bytes, self._settings.retention_age_s
        if held is not None and segments[1].first_offset > held.offset:
            bytes_max, age_s = max(bytes_max, held.bytes), max(age_s, held.age_s)
        return size > bytes_max or segments[0].newest_us < to_microseconds(now - age_s)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            bytes=self._index.total_bytes(),
            segments=len(self._index.segments),
            lost_messages=sum(piece.stop_offset - piece.first_offset for piece in self.damage),
        )


def _slice(batch: Any, base: int, epoch: int, start: int, stop: int) -> Any:
    from sterna.journal.columns import with_every_column

    first = max(start, base)
    rows = with_every_column(batch).slice(first - base, stop - first)
    return rows.replace_schema_metadata({BASE_OFFSET_KEY: b"%d" % first, EPOCH_KEY: b"%d" % epoch})
