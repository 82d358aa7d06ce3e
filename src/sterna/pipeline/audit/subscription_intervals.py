"""Turns the records of a client's sessions into the intervals in which its subscriptions stood.

An interval says from which message of each node on every message had to come, up to which one, and how the session
went on.  Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

#: Of each node its starts (epochs), oldest first, and the second of the last record made in each; 0: it made none.
Lives = Mapping[str, Mapping[int, float]]

_STAMP = "struct<epoch: bigint, sequence: bigint>"

#: The schema of subscriptions that `audit` expects; see there.
SUBSCRIPTIONS = (
    "node string, client string, session bigint, filter string, qos tinyint, no_local boolean, rules string, "
    f"since timestamp, stands timestamp, until timestamp, after map<string, {_STAMP}>, "
    f"reached map<string, {_STAMP}>, over string"
)

#: The same, and under which number the session came from another node with it, and went to one; null: it did not.
#: `begun`: it took the place of another session, which is in charge of what comes before this vector.
INTERVALS = f"{SUBSCRIPTIONS}, came bigint, went bigint, begun map<string, {_STAMP}>"

_INSTANT = pa.timestamp("us", "UTC")
_VECTOR = pa.map_(pa.string(), pa.struct([("epoch", pa.int64()), ("sequence", pa.int64())]))
_SCHEMA = pa.schema(
    [
        ("node", pa.string()),
        ("client", pa.string()),
        ("session", pa.int64()),
        ("filter", pa.string()),
        ("qos", pa.int8()),
        ("no_local", pa.bool_()),
        ("rules", pa.string()),
        ("since", _INSTANT),
        ("stands", _INSTANT),
        ("until", _INSTANT),
        ("after", _VECTOR),
        ("reached", _VECTOR),
        ("over", pa.string()),
        ("came", pa.int64()),
        ("went", pa.int64()),
        ("begun", _VECTOR),
    ]
)

ENDED = "ended"
DIED = "died"
MOVED = "moved"
"""It goes on at another node, if that has noted so too: see `continued`."""

Row = dict[str, Any]

_OF_IT = ("node", "client", "session", "filter", "qos", "no_local", "rules")

Key = tuple[int, str]
"""Session and filter: a session that another one has replaced may stand beside that."""


def intervals(rows: pa.Table, lives: Lives) -> pa.Table:
    """All records of the sessions of one client at one node -> the intervals of its subscriptions."""
    told: dict[int, list[Row]] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["place"]):
        told.setdefault(row["node_epoch"], []).append(row)
    client = _Client()
    last = 0.0
    for epoch, last_of_it in lives[rows.column("node")[0].as_py()].items():
        in_it = told.get(epoch, [])
        client.survive(set(_carried(in_it)), last)
        for row in in_it:
            client.tell(row)
        last = last_of_it
    return pa.Table.from_pylist(client.finish(), _SCHEMA)


def _key(row: Row) -> Key:
    return row["session"], row["filter"]


def _carried(rows: list[Row]) -> Iterator[Key]:
    """Subscriptions that a node brought along from its life before: it says so before it lets anybody in."""
    for row in rows:
        if row["what"] != "carried":
            return
        yield _key(row)


class _Client:
    """The client's intervals as far as they are known."""

    def __init__(self) -> None:
        #: Subscriptions that stand.
        self._standing: dict[Key, Row] = {}
        #: Those of sessions that have not ended, which have ended before these.
        self._left: list[Row] = []
        self._done: list[Row] = []

    def survive(self, carried: set[Key], last: float) -> None:
        """The node was started again; `last` is when it made the last record of its life before."""
        at = datetime.fromtimestamp(last, UTC)
        died = [self._close(key, at, None) for key in list(self._standing.keys() - carried)]
        living = {session for session, _ in self._standing}
        died += [interval for interval in self._left if interval["session"] not in living]
        self._left = [interval for interval in self._left if interval["session"] in living]
        for interval in died:
            interval["over"] = DIED
        self._done += died

    def tell(self, row: Row) -> None:
        what, standing = row["what"], self._standing.get(_key(row))
        if what in ("subscribed", "carried", "arrived"):
            self._subscribed(row)
        elif what == "stands" and standing is not None:
            standing["stands"] = standing["stands"] or row["at"]
        elif what == "began" and standing is not None:
            self._began(standing, row)
        elif what == "unsubscribed" and standing is not None:
            self._left.append(self._close(_key(row), row["at"], row["vector"]))
        elif what in (ENDED, MOVED):
            self._ended(row)

    def _subscribed(self, row: Row) -> None:
        key = _key(row)
        before = self._standing.get(key)
        if before is not None:
            if all(before[name] == row[name] for name in ("qos", "no_local", "rules")):
                return
            self._left.append(self._close(key, row["at"], row["vector"]))
        interval = {name: row[name] for name in _OF_IT}
        stands = None if row["what"] == "subscribed" else row["at"]
        interval.update(since=row["at"], stands=stands, until=None, after=row["vector"], reached=None, over=None)
        interval.update(came=row["number"], went=None, begun=None)
        self._standing[key] = interval

    def _began(self, interval: Row, row: Row) -> None:
        """Of its own node's messages it is known already from where on they come."""
        after = {**dict(row["vector"]), **dict(interval["after"] or {})}
        interval.update(after=list(after.items()), stands=interval["stands"] or row["at"])
        interval.update(came=row["number"], begun=row["vector"])

    def _close(self, key: Key, at: datetime, vector: Any) -> Row:
        interval = self._standing.pop(key)
        interval.update(until=at, reached=vector)
        return interval

    def _ended(self, row: Row) -> None:
        session = row["session"]
        self._left += [self._close(key, row["at"], row["vector"]) for key in list(self._standing) if key[0] == session]
        over = [interval for interval in self._left if interval["session"] == session]
        for interval in over:
            interval.update(over=row["what"], went=row["number"])
        self._done += over
        self._left = [interval for interval in self._left if interval["session"] != session]

    def finish(self) -> list[Row]:
        return [*self._done, *self._left, *self._standing.values()]
