"""Parses payloads into columns: JSON, CSV, Protobuf, Avro.

Spark itself parses JSON and CSV.  Python tasks parse Protobuf and Avro, because the installed Spark package brings no
parsers for them.  A payload that cannot be parsed becomes null, and the message stays: `where("value is null")` finds
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial, reduce
from io import BytesIO
from operator import or_
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from sterna.vocabulary.errors import ConfigurationError

#: The column that holds what a payload says.
VALUE = "value"

Schema = str | StructType
_Reader = Callable[[bytes], dict[str, Any] | None]

#: How Avro's single-object encoding begins; the fingerprint of the schema follows.
_AVRO_MARKER = b"\xc3\x01"


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
    return _parsed(messages, schema, partial(_protobuf_reader, descriptors, message))


def parse_avro(messages: DataFrame, avro: str, schema: Schema) -> DataFrame:
    """The messages with what their Avro payloads say, as a struct in the column `value`.

    `avro` is the schema (JSON) that the payloads were written with, a record, and `schema` names the fields to take.  A
    payload is one datum, bare or with Avro's single-object header; a header that speaks of another schema is none.
    """
    _avro_reader(avro, [])  # a schema that is none is refused here, and not by every task
    return _parsed(messages, schema, partial(_avro_reader, avro))


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


def _parsed(messages: DataFrame, schema: Schema, make_reader: Callable[[list[str]], _Reader]) -> DataFrame:
    """The messages with what a reader makes of their payloads, in Python tasks."""
    kind = _struct(schema)
    whole = StructType([*messages.schema.fields, StructField(VALUE, kind)])
    return messages.mapInArrow(_parser(make_reader, kind.fieldNames(), _arrow(whole)), whole)


def _parser(make_reader: Callable[[list[str]], _Reader], names: list[str], schema: Any) -> Any:
    def parse(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        read = make_reader(names)
        for batch in batches:
            payloads = batch.column("payload").to_pylist()
            values = [None if payload is None else read(payload) for payload in payloads]
            column = _column(values, schema.field(VALUE).type)
            yield pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)

    return parse


def _column(values: list[Any], kind: Any) -> Any:
    """Those that are not of this kind are null."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if len(values) == 1:
            return pa.nulls(1, kind)
        middle = len(values) // 2
        return pa.concat_arrays([_column(values[:middle], kind), _column(values[middle:], kind)])


def _protobuf_reader(descriptors: bytes, message: str, names: list[str]) -> _Reader:
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


def _avro_reader(avro: str, names: list[str]) -> _Reader:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

    try:
        kind = parse_schema(json.loads(avro))
        mark = fingerprint(to_parsing_canonical_form(kind), "CRC-64-AVRO")
    except (ValueError, KeyError, TypeError, SchemaParseException) as error:
        raise ConfigurationError(f"this is no Avro schema: {error}") from None
    if not isinstance(kind, dict) or kind.get("type") != "record":
        raise ConfigurationError("the Avro schema must be that of a record")
    header = _AVRO_MARKER + bytes.fromhex(mark)

    def read(payload: bytes) -> dict[str, Any] | None:
        datum = BytesIO(payload.removeprefix(header))
        try:
            found: Any = schemaless_reader(datum, kind, None)
        except Exception:  # it may raise anything on bytes that are something else
            return None
        # Other bytes may begin like a datum: one that leaves a rest was none.
        return {name: found.get(name) for name in names} if not datum.read(1) else None

    return read
