"""Where the files of an archive are: a folder that this machine sees, or a bucket of an object store.

Both put a file in place as a whole, and a new one only if there is none of that name: this is all that an archive's
log needs to have several writers.  Paths are relative, with slashes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from sterna.pipeline.errors import PipelineError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_S3A = "s3a://"
_STORES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file", "memory"})
_HADOOP = frozenset({"hdfs", "webhdfs", "swebhdfs", "viewfs", "har", "ofs", "o3fs", "maprfs", "wasb", "wasbs", "dbfs"})


class Stored(NamedTuple):
    path: str
    modified_s: float


class Storage(Protocol):
    address: str

    def put_new(self, path: str, data: bytes) -> bool:
        """Durable when it returns; False if there was such a file, which stays."""

    def put(self, path: str, data: bytes) -> None: ...

    def get(self, path: str) -> bytes | None: ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """All files in a directory and below."""

    def delete(self, paths: Iterable[str]) -> None:
        """Those that are gone already do not matter."""

    def writing(self, path: str) -> Any:
        """A context with a binary file, which is there, durably, after it."""

    def reading(self, path: str) -> Any:
        """A binary file; FileNotFoundError if there is none."""

    def settle(self, path: str) -> None:
        """Make durable what another program has written."""


def is_address(place: str | Path) -> bool:
    return bool(_URI.match(str(place)))


def check_local(directory: Path) -> None:
    """Spark keeps its own files in a file system that it can reach."""
    if is_address(directory):
        raise PipelineError(
            f"{directory} is an address; give a path here, of storage that is mounted where all machines see it if "
            "Spark runs on several"
        )


def check_place(place: str) -> None:
    """An archive is in a folder, or in a store that `obstore` reaches."""
    scheme = place.partition("://")[0]
    if is_address(place) and scheme not in _STORES:
        why = "a Hadoop file system" if scheme in _HADOOP else "no object store that Sterna knows"
        raise PipelineError(
            f"{place} is in {why}: mount it (HDFS through its NFS gateway or FUSE) and name the directory, or name an "
            "address such as s3://bucket/name"
        )


def storage_at(place: str | Path) -> Storage:
    check_place(str(place))
    return Bucket(str(place)) if is_address(place) else Folder(Path(place))


class Folder:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.address = str(self._root)

    def put_new(self, path: str, data: bytes) -> bool:
        target = self._root / path
        making = self._written(target, data)
        try:
            os.link(making, target)
        except FileExistsError:
            return False
        finally:
            making.unlink()
        _sync(target.parent)
        return True

    def put(self, path: str, data: bytes) -> None:
        target = self._root / path
        self._written(target, data).replace(target)
        _sync(target.parent)

    def _written(self, target: Path, data: bytes) -> Path:
        making = target.with_name(f".{target.name}.{uuid4().hex}")
        _make(target.parent)
        with making.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return making

    def get(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[Stored]:
        for directory, _, names in os.walk(self._root / prefix):
            inside = Path(directory).relative_to(self._root)
            for name in names:
                with suppress(FileNotFoundError):
                    modified = (self._root / inside / name).stat().st_mtime
                    yield Stored(str(inside / name), modified)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        target = self._root / path
        _make(target.parent)
        with target.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync(target.parent)

    def reading(self, path: str) -> Any:
        return (self._root / path).open("rb")

    def settle(self, path: str) -> None:
        with (self._root / path).open("rb") as file:
            os.fsync(file.fileno())
        place = (self._root / path).parent
        while True:
            _sync(place)
            if place == self._root:
                break
            place = place.parent


def _make(directory: Path) -> None:
    """A directory and those above it, durably."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _OutgoingFile:
    """A file as Arrow writes it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write = file.write

    def flush(self) -> None:
        """Parts are sent when they are long enough."""

    def close(self) -> None:
        self.closed = True


class _IncomingFile:
    """A file as Arrow reads it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        return bytes(self._file.read(None if size < 0 else size))

    def close(self) -> None:
        self._file.close()
        self.closed = True


class Bucket:
    """Settings come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), as for `deltalake`."""

    def __init__(self, address: str) -> None:
        from obstore.store import from_url

        self.address = f"s3://{address.removeprefix(_S3A)}" if address.startswith(_S3A) else address
        self._store: Any = from_url(self.address)

    def put_new(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, path, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        import obstore

        obstore.put(self._store, path, data)

    def get(self, path: str) -> bytes | None:
        import obstore

        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[Stored]:
        import obstore

        for page in obstore.list(self._store, prefix or None):
            for one in page:
                modified: datetime = one["last_modified"]
                yield Stored(one["path"], modified.timestamp())

    def delete(self, paths: Iterable[str]) -> None:
        import obstore

        for path in paths:
            with suppress(FileNotFoundError):
                obstore.delete(self._store, path)

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        import obstore

        # Without the close at its end nothing is there: parts that were sent count only together.
        file = obstore.open_writer(self._store, path)
        yield _OutgoingFile(file)
        file.close()

    def reading(self, path: str) -> Any:
        import obstore

        return _IncomingFile(obstore.open_reader(self._store, path))

    def settle(self, path: str) -> None:
        """An object store has it, or it is not there."""
