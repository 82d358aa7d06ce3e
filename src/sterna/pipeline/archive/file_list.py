"""The list of the files that count in an archive, replaced as a whole, in the format of Spark's own readers.

Spark takes a directory with `_spark_metadata` for the output of a stream, and reads the files listed there and no
others.  So every reader, `spark.read.parquet` included, sees the archive as it was before a change or after it.  Each
line also names the batch that added the file; Spark ignores that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from sterna.pipeline.errors import PipelineError
from sterna.runtime.feed.cursors import replace_shared_file

#: Always the same name: Spark would put lists of several numbers together.
_LIST = "_spark_metadata/0"
_VERSION = b"v1"
_BLOCK_BYTES = 32 * 1024 * 1024


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    """A file that counts."""

    path: str
    """As a URI."""
    size: int
    modification_time: int
    batch: int
    """The newest batch with messages in this file."""
    is_dir: bool = False
    block_replication: int = 1
    block_size: int = _BLOCK_BYTES
    action: str = "add"

    @property
    def file(self) -> Path:
        return Path(unquote(urlsplit(self.path).path))


def listed(file: Path, batch: int) -> Listed:
    about = file.stat()
    return Listed(file.absolute().as_uri(), about.st_size, about.st_mtime_ns // 1_000_000, batch)


def last_batch(files: Iterable[Listed]) -> int:
    """The newest batch that brought files; -1 if none did."""
    return max((one.batch for one in files), default=-1)


class FileList:
    """The list of one directory.  Only who holds the archive's lock may replace it."""

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

    def replace(self, files: Sequence[Listed]) -> None:
        replace_shared_file(self.path, b"\n".join([_VERSION, *map(msgspec.json.encode, files)]))
