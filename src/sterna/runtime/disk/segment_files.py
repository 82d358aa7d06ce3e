"""The journal's segments as files of one directory, which one node at a time may open.

`write` may run in a worker thread while the loop's thread reads and drops other bytes; a group is kept whole or not at
all.  Every opening begins a new segment with its first write, so bytes found at start-up are never appended to.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Self

from sterna.journal.frames import NODE_NAME_BYTES_MAX, SEGMENT_HEADER_BYTES, parse_segment_header, segment_header
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Group, Position, SegmentFile
from sterna.runtime.disk.private_files import make_private_directory
from sterna.vocabulary.errors import ConfigurationError, JournalError

_NAME = re.compile(r"(\d{20})-(\d{10})\.sterna")
"""First offset, then serial: a segment of events alone has the same first offset as the one after it."""

_READERS_MAX = 16
"""Segments kept open for reading."""

_IDENTITY_FILE = "identity"
_IDENTITY = re.compile(r"j[0-9a-f]{16}")

log = logging.getLogger(__name__)

_ADVICE = {
    errno.ENOSPC: "free space on this disk, or lower [journal] retention_bytes",
    errno.EDQUOT: "raise the disk quota, or lower [journal] retention_bytes",
    errno.EFBIG: "raise the file size limit (ulimit -f), or lower [journal] segment_bytes",
    errno.EIO: "check the disk: the kernel could not write to it",
    errno.EROFS: "the file system is read-only; mount it writable",
    errno.EACCES: "let the user that runs the node write here",
}


class FileStore:
    def __init__(self, directory: Path, settings: JournalSettings, node: str) -> None:
        """Open, and lock, `directory`; make it when missing.  Recovery has to come before the first write."""
        if len(node.encode()) > NODE_NAME_BYTES_MAX:
            raise ConfigurationError(f"[node] name is longer than {NODE_NAME_BYTES_MAX} bytes: {node[:40]!r}...")
        self._directory = directory
        self._node = node
        self._segment_bytes = settings.segment_bytes
        self._syncs = settings.durability == "fsync"
        self._lock = threading.Lock()  # over _paths and _readers, which both threads touch
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._active: _ActiveSegment | None = None
        self._broken = ""
        self._directory_fd = _open_directory(directory)
        try:
            self._paths = self._find_segments()
        except BaseException:
            os.close(self._directory_fd)
            raise
        self._next_serial = max(self._paths, default=0) + 1
        #: Names this journal for as long as its directory lives; another directory has another one.  Empty if it cannot
        #: be written down.
        self.identity = _identity_of(directory, self._directory_fd)

    def _find_segments(self) -> dict[int, Path]:
        found = {
            int(name[2]): self._directory / name[0]
            for name in map(_NAME.fullmatch, os.listdir(self._directory))
            if name
        }
        for path in found.values():
            try:
                with path.open("rb") as file:
                    beginning = file.read(SEGMENT_HEADER_BYTES)
            except OSError as error:
                raise _explained(error, path) from error
            parse_segment_header(beginning, str(path))  # refuses formats it does not know
        return dict(sorted(found.items()))

    # Writing: one thread at a time

    def write(self, group: Group) -> Position:
        if self._broken:
            raise JournalError(self._broken)
        active = self._active
        if active is None or active.size + len(group.data) > self._segment_bytes:
            return self._write_first(group)
        try:
            _write_all(active.fd, group.data, active.size)
            if self._syncs:
                os.fdatasync(active.fd)
        except OSError as error:
            self._retire(active)
            raise _explained(error, active.path) from error
        start = active.size
        active.size += len(group.data)
        return Position(active.serial, start, group.base_offset)

    def _write_first(self, group: Group) -> Position:
        """Begin a segment with `group`.  One that cannot take its first group is not begun."""
        serial = self._next_serial
        path = self._directory / f"{group.base_offset:020d}-{serial:010d}.sterna"
        data = segment_header(self._node, serial) + group.data
        fd = -1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _write_all(fd, data, 0)
            if self._syncs:
                os.fdatasync(fd)
                os.fsync(self._directory_fd)
        except OSError as error:
            self._abandon(fd, path)
            raise _explained(error, path) from error
        self._close_active()
        self._active = _ActiveSegment(fd, serial, path, len(data))
        self._next_serial = serial + 1
        with self._lock:
            self._paths[serial] = path
        return Position(serial, SEGMENT_HEADER_BYTES, group.base_offset)

    def _retire(self, active: _ActiveSegment) -> None:
        """Cut a half-written group off, and never write behind it: after a failed sync the pages cannot be trusted."""
        try:
            os.ftruncate(active.fd, active.size)
            os.fdatasync(active.fd)
        except OSError as error:
            self._broken = (
                f"{active.path}: a half-written group could not be cut off ({error.strerror}); restart the node"
            )
        os.close(active.fd)
        self._active = None

    def _abandon(self, fd: int, path: Path) -> None:
        if fd < 0:
            return
        os.close(fd)
        try:
            path.unlink()
        except OSError as error:
            self._broken = f"{path}: a half-written segment could not be removed ({error.strerror}); restart the node"

    def _close_active(self) -> None:
        if self._active is not None:
            os.close(self._active.fd)
            self._active = None

    # Reading, cutting, dropping: the loop's thread

    def segments(self) -> list[SegmentFile]:
        with self._lock:
            paths = list(self._paths.items())
        return [SegmentFile(serial, int(path.name[:20]), _size(path), str(path)) for serial, path in paths]

    def read(self, serial: int, start: int, length: int) -> bytes:
        try:
            return os.pread(self._reader(serial), length, start)
        except OSError as error:
            raise _explained(error, self._paths[serial]) from error

    def _reader(self, serial: int) -> int:
        with self._lock:
            fd = self._readers.pop(serial, -1)
            if fd < 0:
                fd = os.open(self._paths[serial], os.O_RDONLY | os.O_CLOEXEC)
            self._readers[serial] = fd
            if len(self._readers) > _READERS_MAX:
                os.close(self._readers.popitem(last=False)[1])
            return fd

    def open_apart(self, serial: int) -> int:
        """A descriptor of the caller's own, who may read in any thread and closes it.  Raises JournalError; KeyError if
        there is no such segment any more."""
        with self._lock:
            path = self._paths[serial]
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if serial not in self._paths:
                raise KeyError(serial) from None
            raise JournalError(f"{path}: is gone; somebody removed it") from None
        except OSError as error:
            raise _explained(error, path) from error

    def explained(self, error: OSError, serial: int) -> JournalError:
        """The error for a segment that was opened apart."""
        return _explained(error, self._paths.get(serial, self._directory))

    def truncate(self, serial: int, size: int) -> None:
        assert self._active is None, "segments are cut by recovery, before the first write"
        if size == 0:
            return self.drop(serial)
        path = self._paths[serial]
        try:
            with path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())
        except OSError as error:
            raise _explained(error, path) from error
        return None

    def drop(self, serial: int) -> None:
        with self._lock:
            path = self._paths[serial]
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise _explained(error, path) from error
            del self._paths[serial]
            fd = self._readers.pop(serial, -1)
        if fd >= 0:
            os.close(fd)

    def continue_after(self, serial: int) -> None:
        assert self._active is None, "recovery comes before the first write"
        self._next_serial = max(self._next_serial, serial + 1)

    def close(self) -> None:
        """Sync what durability "os" left to the system, and let another node have the directory."""
        if self._active is not None:
            with suppress(OSError):  # nobody was promised more than the system's word
                os.fdatasync(self._active.fd)
        self._close_active()
        while self._readers:
            os.close(self._readers.popitem()[1])
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ActiveSegment:
    """The segment being written; `size` ends at the last group that is kept."""

    __slots__ = ("fd", "path", "serial", "size")

    def __init__(self, fd: int, serial: int, path: Path, size: int) -> None:
        self.fd = fd
        self.serial = serial
        self.path = path
        self.size = size


def _open_directory(directory: Path) -> int:
    try:
        make_private_directory(directory)
        for made in (directory, directory.parent):
            _sync_directory(made.parent)  # a journal in a directory that power loss takes away would be no journal
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"the journal's directory {directory} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigurationError(
            f"{directory} is in use by another running node; stop that one, or give this one its own [node] data"
        ) from error
    return fd


def _identity_of(directory: Path, directory_fd: int) -> str:
    """Made with the directory.  Later ones are greater, as far as clocks go."""
    path = directory / _IDENTITY_FILE
    try:
        found = path.read_text("ascii", "replace").strip()
        if _IDENTITY.fullmatch(found):
            return found
        log.error("the identity of the journal cannot be read; it gets another one", extra={"file": str(path)})
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _explained(error, path) from error
    made = f"j{int(time.time()) & 0xFFFFFFFF:08x}{secrets.token_hex(4)}"
    making = path.with_suffix(".making")
    try:
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, made.encode(), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        making.replace(path)
        os.fsync(directory_fd)
    except OSError as error:  # such as a full disk, which is no reason to stay down
        fields = {"file": str(path), "reason": error.strerror}
        log.warning("the journal gets no identity yet: readers would not notice if it were replaced", extra=fields)
        return ""
    return made


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed from under us: reads will fail one by one and be reported
        return 0


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, start: int) -> None:
    done = os.pwrite(fd, data, start)
    while done < len(data):  # the kernel may take less, for one when the disk is nearly full
        done += os.pwrite(fd, memoryview(data)[done:], start + done)


def _explained(error: OSError, path: Path) -> JournalError:
    advice = _ADVICE.get(error.errno or 0, "see the system's log")
    return JournalError(f"{path}: {error.strerror}; {advice}")
