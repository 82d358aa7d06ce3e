"""A disk that knows what is safe on it: the journal's segments and the checkpoint, through crashes and full spells.

Synced bytes survive everything.  Of what was being written when the power went, any beginning may be there, and
a bit of it may be wrong.  A checkpoint is one transaction: the old one or the new one, nothing between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sterna.journal.frames import segment_header
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Group, Position, SegmentFile
from sterna.node.node import Changes, Saved
from sterna.vocabulary.errors import JournalError

FULL = "no space left on the disk; free some"


@dataclass(slots=True)
class _Segment:
    first_offset: int
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """Bytes from the beginning that no crash takes away."""


class DiskStore:
    """A journal.Store.  `write` places a group and syncs it, as the file store does with durability "fsync"."""

    def __init__(self, settings: JournalSettings, node: str, dice: Random) -> None:
        self._segment_bytes = settings.segment_bytes
        self._node = node
        self._dice = dice
        self._segments: dict[int, _Segment] = {}
        self._next_serial = 1
        self._active: int | None = None
        self.full = False
        #: Groups written, and how often a crash tore what was not synced.
        self.writes = 0
        self.torn = 0

    # -- what the journal and its world call --

    def write(self, group: Group) -> Position:
        if self.full:
            self._active = None  # as the file store does: nothing is written behind a group that failed
            raise JournalError(FULL)
        position = self.place(group)
        self.sync(position.serial)
        return position

    def place(self, group: Group) -> Position:
        """Hand it to the system, which has it until the machine stops."""
        segment = None if self._active is None else self._segments[self._active]
        if segment is None or len(segment.data) + len(group.data) > self._segment_bytes:
            segment = _Segment(group.base_offset, bytearray(segment_header(self._node, self._next_serial)))
            self._active = self._next_serial
            self._segments[self._active] = segment
            self._next_serial += 1
        assert self._active is not None
        start = len(segment.data)
        segment.data += group.data
        self.writes += 1
        return Position(self._active, start, group.base_offset)

    def sync(self, serial: int) -> None:
        segment = self._segments[serial]
        segment.synced = len(segment.data)

    def segments(self) -> list[SegmentFile]:
        return [
            SegmentFile(serial, segment.first_offset, len(segment.data), f"segment {serial} of {self._node}")
            for serial, segment in self._segments.items()
        ]

    def read(self, serial: int, start: int, length: int) -> bytes:
        return bytes(self._segments[serial].data[start : start + length])

    def truncate(self, serial: int, size: int) -> None:
        if size == 0:
            self.drop(serial)
            return
        segment = self._segments[serial]
        del segment.data[size:]
        segment.synced = size

    def drop(self, serial: int) -> None:
        del self._segments[serial]

    def continue_after(self, serial: int) -> None:
        self._next_serial = max(self._next_serial, serial + 1)

    # -- what happens to disks --

    def crash(self, being_written: Group | None) -> None:
        """The machine stops.  Data that was not synced goes, except for what the dice leave of the group under way."""
        if being_written is not None and not self.full:
            self.place(being_written)
        for serial in list(self._segments):
            segment = self._segments[serial]
            if segment.synced < len(segment.data):
                self._tear(segment)
            if not segment.data:
                del self._segments[serial]
        self._active = None
        self._next_serial = max(self._segments, default=self._next_serial - 1) + 1

    def _tear(self, segment: _Segment) -> None:
        self.torn += 1
        kept = self._dice.randint(segment.synced, len(segment.data))
        del segment.data[kept:]
        if kept > segment.synced and self._dice.random() < 0.3:
            place = self._dice.randrange(segment.synced, kept)
            segment.data[place] ^= 1 << self._dice.randrange(8)
        segment.synced = kept

    def rot(self) -> str | None:
        """One bit of what is kept goes wrong; where, or None if nothing is kept."""
        if not self._segments:
            return None
        serial = self._dice.choice(list(self._segments))
        data = self._segments[serial].data
        place = self._dice.randrange(len(data))
        data[place] ^= 1 << self._dice.randrange(8)
        return f"segment {serial} byte {place}"

    @property
    def bytes(self) -> int:
        return sum(len(segment.data) for segment in self._segments.values())


class CheckpointStore:
    """The counterpart of runtime.SessionStore: the last whole checkpoint, and how often the node was started."""

    def __init__(self) -> None:
        self.full = False
        self.checkpoints = 0
        self._position = str(BEGINNING)
        self._sessions: dict[str, bytes] = {}
        self._retained: dict[bytes, bytes] = {}
        self._epoch = 0

    def load(self) -> Saved:
        return Saved(Position.parse(self._position), dict(self._sessions), dict(self._retained), self._epoch)

    def next_epoch(self, after: int) -> int:
        self._refuse_if_full()
        self._epoch = max(self._epoch, after) + 1
        return self._epoch

    def checkpoint(self, changes: Changes) -> None:
        self._refuse_if_full()
        for name in changes.sessions_gone:
            self._sessions.pop(name, None)
        self._sessions.update(changes.sessions)
        for topic in changes.retained_gone:
            self._retained.pop(topic, None)
        self._retained.update(changes.retained)
        self._position = str(changes.position)
        self.checkpoints += 1

    def _refuse_if_full(self) -> None:
        if self.full:
            raise JournalError(FULL)


class Disk:
    """Both stores of one machine."""

    def __init__(self, settings: JournalSettings, node: str, dice: Random) -> None:
        self.dice = dice
        self.journal = DiskStore(settings, node, dice)
        self.checkpoints = CheckpointStore()

    @property
    def full(self) -> bool:
        return self.journal.full

    @full.setter
    def full(self, full: bool) -> None:
        self.journal.full = self.checkpoints.full = full

    def crash(self, group: Group | None, changes: Changes | None) -> None:
        """`group` and `changes` were being written."""
        self.journal.crash(group)
        if changes is not None and not self.full and self.dice.random() < 0.5:
            self.checkpoints.checkpoint(changes)
