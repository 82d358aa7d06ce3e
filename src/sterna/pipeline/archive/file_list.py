"""The list of an archive's files in the format of Spark's own readers, made from the log; and as it was before that.

Spark takes a directory with `_spark_metadata` for the output of a stream, and reads the files listed there and no
others.  Releases before the Delta table had nothing but this list, with the batch that added each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from sterna.pipeline.archive.delta_log import KeptFile
from sterna.pipeline.errors import PipelineError
from sterna.runtime.feed.cursors import replace_shared_file

#: Always the same name: Spark would put lists of several numbers together.
_LIST = "_spark_metadata/0"
_VERSION = b"v1"
_BLOCK_BYTES = 32 * 1024 * 1024
IN_LOG = -1


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    """A file that counts."""

    path: str
    """As a URI."""
    size: int
    modification_time: int
    batch: int
    """The newest batch with messages in this file; `IN_LOG` since the log has it."""
    is_dir: bool = False
    block_replication: int = 1
    block_size: int = _BLOCK_BYTES
    action: str = "add"

    @property
    def file(self) -> Path:
        return Path(unquote(urlsplit(self.path).path))


def listed_of(messages: Path, files: Iterable[KeptFile]) -> Iterator[Listed]:
    root = messages.absolute()
    return (Listed((root / one.path).as_uri(), one.size, one.modified_ms, IN_LOG) for one in files)


def last_batch(files: Iterable[Listed]) -> int:
    """The newest batch that brought files; -1 if none did."""
    return max((one.batch for one in files), default=-1)


class FileList:
    """The list of one directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / _LIST

    def load(self) -> list[Listed]:
        try:
            version, *lines = self.path.read_bytes().splitlines()
            if version != _VERSION:
                raise ValueError(f"it is of version {version.decode(errors='replace')!r}")
            return [msgspec.json.decode(line, type=Listed) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise PipelineError(f"{self.path} is no list of an archive's files: {error}") from None

    def newest(self) -> Listed | None:
        """The last in the list."""
        if not self.path.exists():
            return None
        lines = self.path.read_bytes().rsplit(b"\n", 1)
        return msgspec.json.decode(lines[1], type=Listed) if len(lines) > 1 and lines[1].startswith(b"{") else None

    def replace(self, files: Iterable[Listed]) -> None:
        replace_shared_file(self.path, b"\n".join([_VERSION, *map(msgspec.json.encode, files)]))
