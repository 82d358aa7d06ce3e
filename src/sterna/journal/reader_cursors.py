"""The cursors of the journal's named readers: what retention must hold for them, and which of them it had to drop.

Pure bookkeeping: the owner writes `records` to disk before it answers, and hands them back at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Of the name of a reader.
NAME_BYTES_MAX = 128


class ReaderRecord(NamedTuple):
    """The fields of a reader that have to outlive a restart."""

    name: str
    started: int
    committed: int


class FellOff(NamedTuple):
    """Offsets that a reader had not committed and retention took: [committed, first)."""

    reader: str
    committed: int
    first: int

    @property
    def messages(self) -> int:
        return self.first - self.committed


@dataclass(slots=True)
class _JournalReader:
    started: int
    committed: int
    lost: FellOff | None = None
    """Told to it until it has committed past the gap."""


@dataclass(frozen=True, slots=True)
class HeldOffsets:
    """Offsets that retention spares for readers: everything from `offset` on, within these limits.

    Segments the journal's own limits would drop stay until these are passed too.
    """

    offset: int
    bytes: int
    age_s: float


class ReaderCursors:
    def __init__(self, records: Iterable[ReaderRecord] = (), *, most: int = 256) -> None:
        self._most = most
        self._readers = {one.name: _JournalReader(one.started, one.committed) for one in records}
        #: Messages that readers lost to retention, all together.
        self.messages_lost = 0

    def __len__(self) -> int:
        return len(self._readers)

    def records(self) -> list[ReaderRecord]:
        return [ReaderRecord(name, one.started, one.committed) for name, one in sorted(self._readers.items())]

    def find(self, name: str) -> ReaderRecord | None:
        one = self._readers.get(name)
        return None if one is None else ReaderRecord(name, one.started, one.committed)

    def register(self, name: str, offset: int) -> ReaderRecord | None:
        """The reader as it stands; a new one begins at `offset`.  None if there are too many."""
        one = self._readers.get(name)
        if one is None:
            if len(self._readers) >= self._most:
                return None
            one = self._readers[name] = _JournalReader(offset, offset)
        return ReaderRecord(name, one.started, one.committed)

    def commit(self, name: str, offset: int) -> int | None:
        """The reader needs nothing below `offset` any more; where it stands now.  None if nobody knows it.

        It never goes back: after a crash a reader may repeat what it said before.
        """
        one = self._readers.get(name)
        if one is None:
            return None
        one.committed = max(one.committed, offset)
        if one.lost is not None and one.committed >= one.lost.first:
            one.lost = None
        return one.committed

    def forget(self, name: str) -> bool:
        return self._readers.pop(name, None) is not None

    def slowest(self) -> int | None:
        """The oldest offset some reader has not committed; None if there are no readers."""
        return min((one.committed for one in self._readers.values()), default=None)

    def lost(self, name: str) -> FellOff | None:
        """Offsets that the reader has lost and not gone past yet."""
        one = self._readers.get(name)
        return one.lost if one is not None else None

    def trimmed(self, first: int) -> list[FellOff]:
        """The journal begins at `first` now: who has lost something by it, or more than before."""
        fallen = []
        for name, one in sorted(self._readers.items()):
            known = one.committed if one.lost is None else one.lost.first
            if known < first:
                one.lost = FellOff(name, one.committed, first)
                self.messages_lost += first - known
                fallen.append(one.lost)
        return fallen

    def bring_back(self, next_offset: int) -> list[str]:
        """Readers beyond the journal's end, as happens when a journal was lost: put to the end, by name."""
        ahead = [name for name, one in sorted(self._readers.items()) if one.committed > next_offset]
        for name in ahead:
            self._readers[name].committed = next_offset
        return ahead
