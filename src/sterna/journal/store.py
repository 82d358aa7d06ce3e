"""The store that the journal needs from the world: it keeps groups and reads bytes back.

The world calls `write` (from one thread at a time, which need not be the journal's); the journal and its recovery call
the rest from theirs.  A store never interprets frames, and a group it has refused leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError


class Position(NamedTuple):
    """A place between two groups.  Compares in the order of writing; `str` and `parse` carry it through a checkpoint.

    `offset` is one that no message had yet when the position was taken.  Recovery goes on no lower, so whatever else
    the checkpoint mentions (messages not yet committed, or of a tail or a journal since lost), no offset comes twice.

    `events` is how many events of the group that begins here the checkpoint knows already: it was taken when they had
    happened, and saved when that group was safe.
    """

    serial: int
    byte: int
    offset: int
    events: int = 0

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            serial, byte, offset, *events = map(int, text.split(":"))
            return cls(serial, byte, offset, *events)
        except (ValueError, TypeError):
            raise JournalError(f"not a position in a journal: {text!r}") from None


BEGINNING = Position(0, 0, 0)


@dataclass(slots=True)
class Group:
    """The frames that are written and synced as one.  Event frames come first, then message frames."""

    data: bytes
    base_offset: int
    end_offset: int
    messages: Sequence[Message]
    """The messages in it: those whose publishers may be answered once it is committed."""
    newest_us: int
    weight: int
    """Bytes its messages occupy in memory, roughly."""
    frames: list[tuple[int, int]] = field(default_factory=list)
    """Base offset of each message frame, and where in `data` it starts."""
    events: Sequence[bytes] = ()
    """The events in it, and records of sessions and deliveries, should they have to be written again."""
    sessions: Sequence[SessionRecord] = ()
    deliveries: Sequence[DeliveryRecord] = ()


class SegmentFile(NamedTuple):
    """One segment as the store finds it."""

    serial: int
    first_offset: int
    size: int
    name: str
    """For people: the path, where there is one."""


class Store(Protocol):
    def write(self, group: Group) -> Position:
        """Keep `group.data`, as durably as configured, and say where it begins; or raise JournalError, nothing kept."""

    def segments(self) -> list[SegmentFile]:
        """All segments, oldest first."""

    def read(self, serial: int, start: int, length: int) -> bytes:
        """Up to `length` bytes of a segment; fewer at its end."""

    def truncate(self, serial: int, size: int) -> None:
        """Cut a segment to `size` bytes, durably; one cut to nothing disappears."""

    def drop(self, serial: int) -> None:
        """Forget a segment."""

    def continue_after(self, serial: int) -> None:
        """The next write begins a segment, and its serial is greater than this."""
