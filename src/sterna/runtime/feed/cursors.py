"""The committed offsets of all registered readers, in one small file that is replaced as a whole.

After a crash the file is the one before or the one after.  A file that cannot be read is put aside and logged; the node
starts without it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sterna.journal.reader_cursors import ReaderRecord
from sterna.runtime.disk.private_files import create_private, make_private_directory
from sterna.vocabulary.errors import JournalError

log = logging.getLogger(__name__)


class CursorFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        #: The journal whose offsets these are.
        self._journal = ""

    def load(self, journal: str = "") -> list[ReaderRecord]:
        """Those of another journal are forgotten: their offsets would mean other messages."""
        self._journal = journal
        try:
            found = json.loads(self._path.read_bytes())
            if journal and (found.get("journal") or journal) != journal:
                log.error("the journal was replaced: its readers register again", extra={"file": str(self._path)})
                return []
            return [ReaderRecord(str(name), int(started), int(at)) for name, started, at in found["readers"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            aside = self._path.with_suffix(".unreadable")
            with suppress(OSError):
                self._path.replace(aside)
            fields = {"file": str(self._path), "put_aside": str(aside), "reason": str(error)}
            log.error("the registered readers of the feed are forgotten; they will register again", extra=fields)
            return []

    def write(self, records: Iterable[ReaderRecord]) -> None:
        """Durable when it returns.  From one thread at a time."""
        data = json.dumps(
            {"version": 1, "journal": self._journal, "readers": [list(record) for record in records]}
        ).encode()
        try:
            replace_file(self._path, data)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}; readers of the feed cannot be kept") from error


def replace_file(path: Path, data: bytes) -> None:
    """The new contents or, after whatever happens on the way, the old ones.  For our own eyes, as is the directory if
    it has to be made."""
    make_private_directory(path.parent)
    making = path.with_name(f".{path.name}.making")
    create_private(making)
    _replace(making, path, data)


def replace_shared_file(path: Path, data: bytes) -> None:
    """The same for others to read, as far as the umask goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path.with_name(f".{path.name}.making"), path, data)


def _replace(making: Path, path: Path, data: bytes) -> None:
    with making.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(making, path)


def put_in_place(making: Path, path: Path) -> None:
    """Give a finished and synced file its name, durably."""
    making.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
