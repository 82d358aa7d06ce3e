"""Payloads into columns: what is said is a struct, what cannot be read is null and its message stays."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import BytesIO

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from sterna.pipeline.parsing import parse_avro, parse_csv, parse_json, parse_protobuf
from sterna.vocabulary.errors import ConfigurationError

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

LABEL = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def messages(spark: SparkSession, *payloads: bytes) -> DataFrame:
    return spark.createDataFrame(
        [(f"t/{n}", payload) for n, payload in enumerate(payloads)], "topic string, payload binary"
    )


def values(table: DataFrame) -> list[object]:
    return [row.value and tuple(row.value) for row in table.orderBy("topic").collect()]


def test_json_becomes_columns(spark: SparkSession) -> None:
    table = messages(spark, b'{"celsius": 21.5, "room": "hall"}', b'{"room": "attic"}', b"not json")
    assert values(parse_json(table, "celsius double, room string")) == [(21.5, "hall"), (None, "attic"), None]


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_line_of_csv_becomes_columns(spark: SparkSession, separator: str) -> None:
    table = messages(spark, separator.join(("21.5", "hall")).encode(), b"")
    assert values(parse_csv(table, "celsius double, room string", separator)) == [(21.5, "hall"), None]


def test_protobuf_becomes_columns(spark: SparkSession) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", package="plant", syntax="proto3")
    kind = file.message_type.add(name="Reading")
    kind.field.add(name="celsius", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE, label=LABEL)
    kind.field.add(name="room", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=LABEL)
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    reading = b"\x09\x00\x00\x00\x00\x00\x80\x35\x40\x12\x04hall"  # field 1: 21.5, field 2: "hall"
    table = parse_protobuf(
        messages(spark, reading, b"\xff"), descriptors, "plant.Reading", "celsius double, room string"
    )
    assert values(table) == [(21.5, "hall"), None]


AVRO = """{"type": "record", "name": "Reading", "fields": [
  {"name": "celsius", "type": "double"}, {"name": "room", "type": ["null", "string"]},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "tags", "type": {"type": "array", "items": "string"}}]}"""


def avro(**fields: object) -> bytes:
    datum = BytesIO()
    reading = {"celsius": 21.5, "room": "hall", "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "tags": ["a", "b"]}
    schemaless_writer(datum, parse_schema(json.loads(AVRO)), {**reading, **fields})
    return datum.getvalue()


def test_avro_becomes_columns_and_what_is_none_is_null(spark: SparkSession) -> None:
    mark = fingerprint(to_parsing_canonical_form(parse_schema(json.loads(AVRO))), "CRC-64-AVRO")
    headed = b"\xc3\x01" + bytes.fromhex(mark) + avro(room="attic")
    another = b"\xc3\x01" + bytes(8) + avro()
    table = messages(spark, avro(), avro(room=None), headed, another, avro()[:-1], avro() + b"x", b"", b"not avro")
    found = parse_avro(table, AVRO, "room string, celsius double, at timestamp, tags array<string>")
    noon = datetime(2026, 1, 31, 12)
    assert values(found) == [
        ("hall", 21.5, noon, ["a", "b"]), (None, 21.5, noon, ["a", "b"]), ("attic", 21.5, noon, ["a", "b"]),
        None, None, None, None, None,
    ]  # fmt: skip


def test_avro_of_another_kind_than_asked_for_is_null(spark: SparkSession) -> None:
    table = messages(spark, avro(room=None), avro(), avro(room="7"))
    assert values(parse_avro(table, AVRO, "room int, celsius double")) == [(None, 21.5), None, None]


@pytest.mark.parametrize("schema", ["{", '{"type": "colour"}', '"string"'])
def test_a_schema_that_is_none_is_refused_at_once(spark: SparkSession, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="Avro schema"):
        parse_avro(messages(spark, b""), schema, "room string")
