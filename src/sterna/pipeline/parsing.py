"""Payloads into columns.

JSON and CSV are parsed by Spark itself.  Protobuf is parsed by Python tasks with the messages' descriptors, because the
package of Spark that is installed here brings no parser of its own.  What cannot be parsed becomes null, and the
message stays: `where("value is null")` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

#: The column that holds what a payload says.
VALUE = "value"

Schema = str | StructType


def parse_json(messages: DataFrame, schema: Schema) -> DataFrame:
    """The messages with what their JSON payloads say, as a struct in the column `value`."""
    kind = _struct(schema)
    return messages.withColumn(VALUE, f.from_json(_text(), kind)).withColumn(VALUE, _null_unless_something(kind))


def parse_csv(messages: DataFrame, schema: Schema, separator: str = ",") -> DataFrame:
    """The messages with the one line of CSV that their payloads are, as a struct in the column `value`."""
    kind = _struct(schema)
    parsed = f.from_csv(_text(), kind.toDDL(), {"sep": separator})
    return messages.withColumn(VALUE, parsed).withColumn(VALUE, _null_unless_something(kind))


def parse_protobuf(messages: DataFrame, descriptors: bytes, message: str, schema: Schema) -> DataFrame:
    """The messages with what their Protobuf payloads say, as a struct in the column `value`.

    `descriptors` is what `protoc --include_imports --descriptor_set_out=FILE` writes, `message` the full name of the
    payloads' type, and `schema` names the fields to take, whose kinds are numbers, text, bytes or truth.
    """
    kind = _struct(schema)
    whole = StructType([*messages.schema.fields, StructField(VALUE, kind)])
    return messages.mapInArrow(_protobuf_parser(descriptors, message, kind.fieldNames(), _arrow(whole)), whole)


def _text() -> Any:
    return f.col("payload").cast("string")


def _struct(schema: Schema) -> StructType:
    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(kind, StructType)
    return kind


def _null_unless_something(kind: StructType) -> Any:
    """Spark answers what it cannot parse with a struct of nulls."""
    said = reduce(or_, (f.col(f"{VALUE}.`{name}`").isNotNull() for name in kind.names))
    return f.when(said, f.col(VALUE))


def _arrow(schema: StructType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _protobuf_parser(descriptors: bytes, message: str, names: list[str], schema: Any) -> Any:
    def parse(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        read = _reader(descriptors, message, names)
        for batch in batches:
            values = [read(payload) for payload in batch.column("payload").to_pylist()]
            column = pa.array(values, schema.field(VALUE).type)
            yield pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)

    return parse


def _reader(descriptors: bytes, message: str, names: list[str]) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))

    def read(payload: bytes) -> dict[str, Any] | None:
        try:
            found = kind.FromString(payload)
        except DecodeError:
            return None
        return {name: getattr(found, name) for name in names}

    return read
