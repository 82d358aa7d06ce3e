"""Gaps: messages that a node had lost before they were read.

With `failOnDataLoss` a gap ends the query.  Without it the query continues, and the gap becomes one JSON file in the
directory that option `gaps` names; `spark.read.json` makes a table of these files.  A range that is read again writes
the same gap under the same name and replaces the gaps inside it.  Late messages are noted likewise: they are read, but
a watermark may have passed them.  Needs no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from sterna.pipeline.errors import DataLoss
from sterna.pipeline.offsets import node_of
from sterna.pipeline.options import ReadOptions
from sterna.runtime.feed.cursors import replace_shared_file
from sterna.vocabulary.errors import ConfigurationError

log = logging.getLogger(__name__)

FORGOTTEN = "it was started again, and its journal was in memory"
LATE = "late: others were not kept waiting any longer, and have been read beyond these; a watermark may drop them"
_LATE = "-late"
REPLACED = "its data directory was replaced"


class JournalGap(msgspec.Struct, frozen=True):
    node: str
    start: int
    stop: int
    """The offsets [start, stop) are concerned; the same twice if nobody knows how far it goes."""
    messages: int | None
    """How many of them are lost; None if nobody knows."""
    cause: str
    noticed: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    journal: str = ""
    """Whose offsets these are: a node may have had several."""

    @classmethod
    def of(cls, journal: str, start: int, stop: int, messages: int | None, cause: str) -> JournalGap:
        return cls(node_of(journal), start, stop, messages, cause, journal=journal)

    @property
    def is_late(self) -> bool:
        return self.cause == LATE

    def __str__(self) -> str:
        if self.is_late:
            return f"node {self.node} comes back with messages {self.start} to {self.stop - 1}, {self.cause}"
        if self.stop <= self.start:
            return f"node {self.node} has lost messages, from {self.start} on: {self.cause}"
        return f"node {self.node} has lost {self.messages} of messages {self.start} to {self.stop - 1}: {self.cause}"


def make_room(options: ReadOptions) -> None:
    """No gaps are an empty table."""
    if options.gaps is not None:
        try:
            Path(options.gaps).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"gaps: {options.gaps} cannot be made: {error.strerror}") from None


def lose(gap: JournalGap, options: ReadOptions) -> None:
    """Comes back if the query may go on without these messages."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{gap}; set failOnDataLoss to false to go on without them")
    note(gap, options)


def note(gap: JournalGap, options: ReadOptions) -> None:
    log.warning("%s", gap)
    if options.gaps is not None:
        directory = Path(options.gaps)
        replace_shared_file(_file(directory, gap), msgspec.json.encode(gap))
        for other in _begun_inside(directory, gap):
            if other.stop <= gap.stop:
                _file(directory, other).unlink(missing_ok=True)  # found by an earlier attempt that got further


def _begun_inside(directory: Path, gap: JournalGap) -> Iterator[JournalGap]:
    """Others of this journal and kind that begin within the gap: names tell, and no other file is read."""
    for file in directory.glob("*.json"):
        whose, _, start = file.stem.removesuffix(_LATE).rpartition("-")
        is_same = (whose, file.stem.endswith(_LATE)) == (_whose(gap), gap.is_late)
        if is_same and start.isdecimal() and gap.start < int(start) <= gap.stop:
            with suppress(FileNotFoundError):  # another task was quicker
                yield _read(file)


def _file(directory: Path, gap: JournalGap) -> Path:
    return directory / f"{_whose(gap)}-{gap.start}{_LATE if gap.is_late else ''}.json"


def _whose(gap: JournalGap) -> str:
    return gap.journal or gap.node


def noted(directory: Path) -> list[JournalGap]:
    """The gaps in a directory, the oldest first."""
    return sorted(map(_read, directory.glob("*.json")), key=lambda gap: gap.noticed)


def _read(file: Path) -> JournalGap:
    return msgspec.json.decode(file.read_bytes(), type=JournalGap)
