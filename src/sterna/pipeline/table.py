"""The table of the network for Spark: one row per message, at the node where it entered.

The columns are the feed's (`sterna.journal.table`); here they are spelled as Spark spells them, and cut to those a
query asked for.  Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sterna.journal.table import TABLE_SCHEMA as SCHEMA
from sterna.journal.table import schema_of

__all__ = ["COLUMNS", "SCHEMA", "only", "schema_of", "spark_schema"]

COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

_SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int8(): "tinyint",
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


def spark_schema(columns: Sequence[str] = COLUMNS) -> str:
    """These columns as Spark's data definition language has them."""
    return ", ".join(f"`{column}` {_SPARK_TYPES[SCHEMA.field(column).type]}" for column in columns)


def only(batch: Any, columns: Sequence[str]) -> Any:
    """The batch with just these columns, in this order."""
    schema = schema_of(columns)
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(column) for column in columns], schema=schema)
