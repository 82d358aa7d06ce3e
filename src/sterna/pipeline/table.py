"""The table of a network for Spark: one row per message, at the node where it entered.

The columns are the feed's (`sterna.journal.table`); this module gives their Spark types and selects those that a query
asked for.  Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sterna.journal.table import TABLE_SCHEMA as SCHEMA
from sterna.journal.table import schema_of

__all__ = ["COLUMNS", "SCHEMA", "only", "schema_of", "spark_schema", "spark_types", "with_columns"]

COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

_SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int8(): "tinyint",
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
    SCHEMA.field("user_properties").type: "array<struct<key:string,value:string>>",
}


def spark_types() -> dict[str, str]:
    """Spark's name for the type of each column."""
    return {field.name: _SPARK_TYPES[field.type] for field in SCHEMA}


def spark_schema(columns: Sequence[str] = COLUMNS) -> str:
    """These columns as Spark's data definition language has them."""
    types = spark_types()
    return ", ".join(f"`{column}` {types[column]}" for column in columns)


def only(batch: Any, columns: Sequence[str]) -> Any:
    """The batch with just these columns, in this order."""
    schema = schema_of(columns)
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(column) for column in columns], schema=schema)


def with_columns(batch: Any, columns: Sequence[str]) -> Any:
    """The batch with all of these, null where it has none: files of earlier releases have fewer columns."""
    for column in columns:
        if column not in batch.schema.names:
            kind = schema_of([column]).field(0)
            batch = batch.append_column(kind, pa.nulls(batch.num_rows, kind.type))
    return batch
