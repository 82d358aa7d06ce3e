"""The lines of a mosquitto.conf and of the files it includes, each with its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sterna.vocabulary.errors import ConfigurationError

FILE_BYTES_MAX = 64 * 1024 * 1024
INCLUDE_DIR = "include_dir"
#: Options whose value is shown to nobody.
SECRETS = ("password", "remote_password", "local_password", "bridge_psk")


class ConfLine(NamedTuple):
    file: str
    number: int
    key: str
    value: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    @property
    def text(self) -> str:
        return f"{self.key} {'(secret)' if self.key in SECRETS else self.value}".rstrip()


class Untranslated(NamedTuple):
    """A line that has no counterpart, or not the same one."""

    line: ConfLine
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.line.place}: {self.line.text}: {self.reason}; {self.remedy}"


def read_conf(file: Path) -> list[ConfLine]:
    """All lines in the order in which Mosquitto reads them; those of an included directory file by file."""
    found: list[ConfLine] = []
    for line in read_lines(file):
        found.append(line)
        if line.key == INCLUDE_DIR:
            found += _included(line, file)
    return found


def _included(line: ConfLine, file: Path) -> list[ConfLine]:
    directory = resolved(line.value, file)
    if not os.path.isdir(directory):
        raise ConfigurationError(
            f"{line.place}: include_dir {line.value} is no directory; name one, or remove the line"
        )
    files = [one for one in directory.iterdir() if one.name.endswith(".conf") and one.is_file()]
    return [found for one in sorted(files, key=lambda one: one.name.lower()) for found in read_lines(one)]


def read_lines(file: Path) -> list[ConfLine]:
    """Lines of `key value`; empty ones and comments do not count."""
    lines = []
    for number, text in enumerate(read_text(file).splitlines(), start=1):
        stripped = text.strip()
        if stripped and not stripped.startswith("#"):
            key, *rest = stripped.split(None, 1)
            lines.append(ConfLine(str(file), number, key, rest[0].strip() if rest else ""))
    return lines


def read_text(file: Path) -> str:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigurationError(f"{file} is larger than {FILE_BYTES_MAX:,} bytes; it is no file of Mosquitto")
        # No path and no name holds a NUL, and the system takes none.
        return file.read_text("utf-8", errors="replace").replace("\0", "\ufffd")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}; check the path and its rights") from None


def resolved(path: str, beside: Path) -> Path:
    """A relative path counts from the directory Mosquitto is started in: the current one, or else the file's."""
    given = Path(path)
    if given.is_absolute() or os.path.exists(path):  # False, too, for what can be no path
        return given.absolute()
    return (beside.parent / given).absolute()
