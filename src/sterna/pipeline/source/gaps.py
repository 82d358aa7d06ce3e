"""Gaps: messages that a node had lost before they were read.

With `failOnDataLoss` a gap ends the query.  Without it the query continues, and the gap becomes one JSON file in the
directory that option `gaps` names; `spark.read.json` makes a table of these files.  A range that is read again writes
the same gap under the same name and replaces the gaps inside it.  Needs no Spark.
"""

from __future__ import annotations

import logging
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

    def __str__(self) -> str:
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
    log.warning("%s", gap)
    if options.gaps is not None:
        directory = Path(options.gaps)
        replace_shared_file(_file(directory, gap), msgspec.json.encode(gap))
        for other in noted(directory):
            if _whose(gap) == _whose(other) and gap.start < other.start and other.stop <= gap.stop:
                _file(directory, other).unlink(missing_ok=True)  # found by an earlier attempt that got further


def _file(directory: Path, gap: JournalGap) -> Path:
    return directory / f"{_whose(gap)}-{gap.start}.json"


def _whose(gap: JournalGap) -> str:
    return gap.journal or gap.node


def noted(directory: Path) -> list[JournalGap]:
    """The gaps in a directory, the oldest first."""
    found = [msgspec.json.decode(file.read_bytes(), type=JournalGap) for file in directory.glob("*.json")]
    return sorted(found, key=lambda gap: gap.noticed)
