"""How far the registered readers of the feed have got, in one small file that is replaced as a whole.

After a crash the file is the one before or the one after.  One that cannot be read is put aside and said so: a node
does not stay down for it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sterna.journal.readers import ReaderRecord
from sterna.vocabulary.errors import JournalError

log = logging.getLogger(__name__)


class CursorFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[ReaderRecord]:
        try:
            found = json.loads(self._path.read_bytes())
            return [ReaderRecord(str(name), int(started), int(at)) for name, started, at in found["readers"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            aside = self._path.with_suffix(".unreadable")
            with suppress(OSError):
                self._path.replace(aside)
            fields = {"file": str(self._path), "put_aside": str(aside), "reason": str(error)}
            log.error("the registered readers of the feed are forgotten; they will register anew", extra=fields)
            return []

    def write(self, records: Iterable[ReaderRecord]) -> None:
        """Durable when it returns.  From one thread at a time."""
        data = json.dumps({"version": 1, "readers": [list(record) for record in records]}).encode()
        try:
            replace_file(self._path, data)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}; readers of the feed cannot be kept") from error


def replace_file(path: Path, data: bytes) -> None:
    """The new contents or, after whatever happens on the way, the old ones."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.making")
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
