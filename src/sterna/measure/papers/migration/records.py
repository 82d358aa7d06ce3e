"""Records of an experiment's clients, as files: messages sent, wanted and received, and the moves.

Parquet, a directory per table and a file per run, in the form the audit takes (see `sterna.pipeline.audit`); a client
stands for one run of one experiment with one kind of client, an origin for one publisher on one topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_INSTANT = pa.timestamp("us", "UTC")

MESSAGES = pa.schema(
    [
        ("topic", pa.string()), ("qos", pa.int8()), ("publisher", pa.string()), ("origin", pa.string()),
        ("epoch", pa.int64()), ("sequence", pa.int64()), ("ingress_time", _INSTANT),
    ]
)  # fmt: skip
SUBSCRIPTIONS = pa.schema(
    [
        ("client", pa.string()), ("filter", pa.string()), ("qos", pa.int8()), ("since", _INSTANT), ("stands", _INSTANT),
    ]
)  # fmt: skip
DELIVERIES = pa.schema(
    [
        ("client", pa.string()), ("topic", pa.string()), ("origin", pa.string()), ("epoch", pa.int64()),
        ("sequence", pa.int64()), ("qos", pa.int8()), ("at", _INSTANT), ("place", pa.int64()), ("resent", pa.bool_()),
        ("via", pa.string()),
    ]
)  # fmt: skip
MOVES = pa.schema(
    [
        ("client", pa.string()), ("experiment", pa.string()), ("run", pa.int64()), ("kind", pa.string()),
        ("ordered", _INSTANT), ("finished", _INSTANT), ("arrived", _INSTANT), ("present", pa.bool_()),
        ("interrupted", pa.int64()), ("third", pa.string()), ("problem", pa.string()),
    ]
)  # fmt: skip
STATES = pa.schema([("client", pa.string()), ("node", pa.string()), ("state", pa.string()), ("at", _INSTANT)])
"""The state of a move at a node, and since when; empty: the node no longer lists the move."""
TABLES = {
    "messages": MESSAGES,
    "subscriptions": SUBSCRIPTIONS,
    "deliveries": DELIVERIES,
    "moves": MOVES,
    "states": STATES,
}


@dataclass(slots=True)
class MoveRecords:
    """Of one run; instants are seconds since 1970, of the one clock of this machine."""

    messages: list[tuple[Any, ...]] = field(default_factory=list)
    subscriptions: list[tuple[Any, ...]] = field(default_factory=list)
    deliveries: list[tuple[Any, ...]] = field(default_factory=list)
    moves: list[tuple[Any, ...]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)

    def write(self, directory: Path, name: str) -> None:
        for table, schema in TABLES.items():
            (directory / table).mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(getattr(self, table), schema), directory / table / f"{name}.parquet")


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([_kept(row[place], kind.type) for row in rows], kind.type) for place, kind in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _kept(value: Any, kind: pa.DataType) -> Any:
    return round(value * 1e6) if kind == _INSTANT and value is not None else value


def read(directory: Path, table: str) -> list[dict[str, Any]]:
    """All rows of all runs; instants as seconds again."""
    instants = [kind.name for kind in TABLES[table] if kind.type == _INSTANT]
    rows: list[dict[str, Any]] = pq.read_table(directory / table).to_pylist()
    for row in rows:
        row.update({name: row[name].timestamp() for name in instants if row[name] is not None})
    return rows
