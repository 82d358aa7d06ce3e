"""Files and directories with the data of clients: only the user that runs the node may read them, under any umask."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_FILE, _DIRECTORY = 0o600, 0o700


def make_private_directory(directory: Path) -> None:
    """With those above it that are missing.  One that is there stays as it is: it was somebody's decision."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir(_DIRECTORY)
            one.chmod(_DIRECTORY)


def create_private(path: Path) -> None:
    """An empty file; one that is there is emptied and made private."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE)
    try:
        os.fchmod(fd, _FILE)
    finally:
        os.close(fd)


def write_private(path: Path, data: bytes) -> None:
    """All of it or, after a crash, what was there before."""
    new = path.with_name(f"{path.name}.new")
    create_private(new)
    with new.open("r+b") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
