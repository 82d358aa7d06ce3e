"""The log of an archive's files: a Delta table, as DuckDB, Polars, pandas and Trino read it too.

A commit is one more file of the log, which only one writer can make: whoever comes second reads what the first did and
takes the next number, unless the two do not go together.  So a commit costs what it changes, however many files there
are.  Reading the state of the table and shortening the log is left to `deltalake`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec
import pyarrow as pa

from sterna.pipeline.archive.storage import Storage
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.table import SCHEMA

PLACES = ("date", "first_level")
#: The messages of a table, and the columns by which its files lie in directories.
TABLE = pa.schema([*SCHEMA, pa.field("date", pa.date32()), pa.field("first_level", pa.string())])
WRITER = "sterna archive"
"""Whose batches are counted in the log."""

_LOG = "_delta_log"
_SETTINGS = {
    "delta.logRetentionDuration": "interval 3 days",
    "delta.deletedFileRetentionDuration": "interval 3 days",
    # We do so ourselves, when what replaces the old parts is durable.
    "delta.enableExpiredLogCleanup": "false",
}
_READS, _WRITES = 1, 2
"""Versions of Delta's protocol that we know: no deletion vectors, no renamed columns."""
AT_ONCE = 65_536
"""A file as an object takes some kilobytes, and a million of them several gigabytes."""
Choose = Callable[[Any], Any]
_STALE_S = 600.0
"""A process that has not looked at the log for so long reads all of it: old entries are removed after days."""


class FileFacts(NamedTuple):
    """The log's words about a file, for readers that may pass over it."""

    rows: int
    first_topic: str
    last_topic: str
    """No topic in the file comes before the first or after the last."""
    first_time: datetime | None
    last_time: datetime | None


class NewFile(NamedTuple):
    path: str
    size: int
    day: date
    level: str
    facts: FileFacts | None


class KeptFile(NamedTuple):
    """A file that counts."""

    path: str
    size: int
    day: date
    level: str
    modified_ms: int
    facts: FileFacts | None


class ArchiveState(NamedTuple):
    version: int
    files: list[KeptFile]
    batch: int
    """The newest batch that was kept; -1 if there is none."""


class FilesGone(Exception):
    """Somebody else has replaced or erased one of the files meanwhile."""


class BatchKnown(Exception):
    """The batch is in the archive."""


class DeltaLog:
    """Of one archive, seen by one process."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._head, self._seen_at = -1, -_STALE_S

    def exists(self) -> bool:
        return self.latest() >= 0

    def latest(self) -> int:
        """The newest version; -1 if there is no table."""
        names = (one.path.rpartition("/")[2] for one in self._storage.list(_LOG))
        return max((int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit()), default=-1)

    def create(self, files: Sequence[NewFile] = (), batch: int | None = None) -> None:
        """With files that are in place already; all of them count, or none.  Nothing happens if there is a table."""
        if self.exists():
            return
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, create_table_with_add_actions

        now = _now_ms()
        made = [AddAction(one.path, one.size, _partition(one), now, True, _stats(one.facts)) for one in files]
        known = CommitProperties(app_transactions=[] if batch is None else [Transaction(WRITER, batch, now)])
        try:
            if made:
                create_table_with_add_actions(
                    self._storage.address, Schema.from_arrow(TABLE), made, "error", list(PLACES),
                    configuration=_SETTINGS, commit_properties=known,
                )  # fmt: skip
            else:
                DeltaTable.create(
                    self._storage.address, TABLE, "error", list(PLACES), configuration=_SETTINGS,
                    commit_properties=known,
                )  # fmt: skip
        except (DeltaError, OSError):
            if not self.exists():
                raise
        self._storage.settle(_file(0))

    def state(self, choose: Choose = lambda listed: listed) -> ArchiveState:
        """With those files that are chosen among the entries of the log."""
        table = self._table()
        found = choose(_entries(table))
        batch = table.transaction_version(WRITER)
        return ArchiveState(table.version(), _kept(found), -1 if batch is None else batch)

    def files(self) -> Iterator[KeptFile]:
        """All of them, never many at a time."""
        for part in _entries(self._table()).to_batches(AT_ONCE):
            yield from _kept(pa.table(part))

    def batch(self) -> int:
        """The newest batch that was kept; -1 if there is none."""
        table = self._table()
        known = table.transaction_version(WRITER)
        self._note(table.version())
        return -1 if known is None else known

    def add_columns(self) -> None:
        """Those that this release has and the table has not."""
        from deltalake import Schema

        table = self._table()
        known = {field.name for field in table.schema().fields}
        missing = [field for field in Schema.from_arrow(TABLE).fields if field.name not in known]
        if missing:
            table.alter.add_columns(missing)
            self._storage.settle(_file(self.latest()))

    def commit(
        self,
        added: Sequence[NewFile],
        removed: Sequence[KeptFile] = (),
        *,
        batch: int | None = None,
        since: int | None = None,
        reorders: bool = False,
    ) -> int:
        """One change, of all of these files or of none; its version.  `since` is the version at which it was planned.
        BatchKnown and FilesGone say that it does not go together with what was done since."""
        name = uuid4().hex
        if batch is not None:
            head = self._head_before(batch)
        else:
            assert since is not None
            head = since
        data = _lines(name, added, removed, batch, is_new=not reorders)
        gone = {_in_log(one.path) for one in removed}
        while True:
            for version, entry in self._newer(head):
                head = version
                if _is_of(entry, name):
                    return version  # an answer was lost on the way, and the request repeated
                _check(entry, gone, batch)
            if self._storage.put_new(_file(head + 1), data):
                if batch is not None:
                    self._note(head + 1)
                return head + 1

    def shorten(self) -> None:
        """Make the log quick to read; old parts of it go."""
        table = self._table()
        table.create_checkpoint()
        for one in self._storage.list(_LOG):
            if "checkpoint" in one.path:
                self._storage.settle(one.path)
        table.cleanup_metadata()

    def removed(self, since_s: float) -> dict[str, float]:
        """Files that were replaced or erased, and when, as far as the log of that time says."""
        gone: dict[str, float] = {}
        for one in self._storage.list(_LOG):
            if one.path.endswith(".json") and one.modified_s >= since_s:
                for line in (self._storage.get(one.path) or b"").splitlines():
                    if b'"remove"' in line:
                        remove = msgspec.json.decode(line).get("remove")
                        if remove:
                            gone[unquote(remove["path"])] = one.modified_s
        return gone

    def _table(self) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self._storage.address)
        except TableNotFoundError:
            raise PipelineError(f"{self._storage.address} is no archive") from None
        except (DeltaError, OSError) as error:
            raise PipelineError(f"the log of {self._storage.address} cannot be read: {error}") from None
        protocol = table.protocol()
        if protocol.min_reader_version > _READS or protocol.min_writer_version > _WRITES:
            raise PipelineError(
                f"{self._storage.address} was changed by another program in a way that this release does not know "
                f"(Delta protocol {protocol.min_reader_version}, {protocol.min_writer_version})"
            )
        return table

    def _head_before(self, batch: int) -> int:
        """A version that does not have the batch: all later ones are looked at before it is added."""
        if time.monotonic() - self._seen_at > _STALE_S and self.batch() >= batch:
            raise BatchKnown
        return self._head

    def _note(self, version: int) -> None:
        self._head, self._seen_at = version, time.monotonic()

    def _newer(self, version: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        while (data := self._storage.get(_file(version + 1))) is not None:
            version += 1
            yield version, [msgspec.json.decode(line) for line in data.splitlines() if line]


def _file(version: int) -> str:
    return f"{_LOG}/{version:020}.json"


def _is_of(entry: Iterable[Mapping[str, Any]], name: str) -> bool:
    return any(action.get("commitInfo", {}).get("commit") == name for action in entry)


def _check(entry: Iterable[Mapping[str, Any]], gone: set[str], batch: int | None) -> None:
    for action in entry:
        if action.get("remove", {}).get("path") in gone:
            raise FilesGone
        transaction = action.get("txn", {})
        if batch is not None and transaction.get("appId") == WRITER and transaction["version"] >= batch:
            raise BatchKnown
        if "protocol" in action:
            raise PipelineError("another program has changed the archive's table; start again")


def _lines(
    name: str, added: Iterable[NewFile], removed: Iterable[KeptFile], batch: int | None, *, is_new: bool
) -> bytes:
    now = _now_ms()
    operation = "WRITE" if batch is not None else "DELETE" if is_new else "OPTIMIZE"
    lines: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": operation, "engineInfo": "sterna", "commit": name}}
    ]
    if batch is not None:
        lines.append({"txn": {"appId": WRITER, "version": batch, "lastUpdated": now}})
    for old in removed:
        path, place = _in_log(old.path), _partition(old)
        lines.append(
            {
                "remove": {
                    "path": path, "deletionTimestamp": now, "dataChange": is_new, "extendedFileMetadata": True,
                    "partitionValues": place, "size": old.size,
                }
            }
        )  # fmt: skip
    for new in added:
        lines.append(
            {
                "add": {
                    "path": _in_log(new.path), "partitionValues": _partition(new), "size": new.size,
                    "modificationTime": now, "dataChange": is_new, "stats": _stats(new.facts),
                }
            }
        )  # fmt: skip
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


def _in_log(path: str) -> str:
    """Delta has paths as URIs do."""
    return quote(path, safe="/=~-_.!*'()")


def _partition(file: NewFile | KeptFile) -> dict[str, str | None]:
    """Delta takes an empty text for none."""
    return {"date": file.day.isoformat(), "first_level": file.level or None}


def _stats(facts: FileFacts | None) -> str:
    if facts is None:
        return "{}"
    least: dict[str, Any] = {"topic": facts.first_topic}
    greatest: dict[str, Any] = {"topic": facts.last_topic}
    if facts.first_time is not None and facts.last_time is not None:
        least["ingress_time"], greatest["ingress_time"] = _instant(facts.first_time), _instant(facts.last_time)
    found = {"numRecords": facts.rows, "minValues": least, "maxValues": greatest, "nullCount": {"topic": 0}}
    return msgspec.json.encode(found).decode()


def _instant(time_: datetime) -> str:
    return time_.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _entries(table: Any) -> Any:
    return pa.table(table.get_add_actions(flatten=True))


def _kept(found: Any) -> list[KeptFile]:
    def column(name: str) -> list[Any]:
        return found.column(name).to_pylist() if name in found.column_names else [None] * found.num_rows

    rows = zip(
        *(column(f"{end}.{name}") for name in ("topic", "ingress_time") for end in ("min", "max")),
        column("num_records"),
        strict=True,
    )
    facts = [
        FileFacts(number, first, last, since, until) if number is not None and first is not None else None
        for first, last, since, until, number in rows
    ]
    levels = (level or "" for level in column("partition.first_level"))
    paths = map(unquote, column("path"))
    return [
        KeptFile(path, size, day, level, modified, fact)
        for path, size, day, level, modified, fact in zip(
            paths, column("size_bytes"), column("partition.date"), levels, column("modification_time"), facts,
            strict=True,
        )
    ]  # fmt: skip
