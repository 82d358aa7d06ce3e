"""Puts rows into partitions and an order that depend on the rows alone.

A write numbers its rows by partition and place, and a node drops numbers that it has had.  Behind a shuffle, partitions
depend on the size of the cluster and the order in them on chance.  After `in_stable_order` they do not: the same rows
written again under the same name add nothing, wherever the driver runs and however many tasks there are.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, MapType, StructType

PARTITIONS = 4


def in_stable_order(rows: DataFrame, partitions: int = PARTITIONS) -> DataFrame:
    """The same rows; `partitions` has to be the same each time, too."""
    keys = [_comparable(rows, name) for name in sorted(rows.columns)]
    return rows.repartition(partitions, *keys).sortWithinPartitions(*keys)


def _comparable(rows: DataFrame, name: str) -> Column:
    """Spark neither hashes nor compares maps."""
    kind, column = rows.schema[name].dataType, f.col(name)
    if isinstance(kind, MapType):
        return f.to_json(f.sort_array(f.map_entries(column)))
    return f.to_json(column) if isinstance(kind, ArrayType | StructType) else column
