"""Disk space that is held back for the node itself.

A full disk must not lock the node out: it has to write a little to start, and to checkpoint so that retention may drop
old segments.  The reserve is an empty file of that size.  The node gives it up when the disk is full and takes it back
when there is space again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 16 * 1024 * 1024


class Reserve:
    """Its methods may be called from any thread, from one at a time."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    def give_up(self) -> bool:
        """Make the room; False if it has been used before."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def take_back(self) -> None:
        """Hold the room back again, unless that would take the last there is."""
        with suppress(OSError):  # some other time
            if self._is_whole() or self._free_bytes() < 2 * self._size:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError:
                self._path.unlink()
            finally:
                os.close(descriptor)

    def _is_whole(self) -> bool:
        """A node that was killed while it took the room leaves a file that holds little or nothing."""
        return self._path.exists() and self._path.stat().st_size >= self._size

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize
