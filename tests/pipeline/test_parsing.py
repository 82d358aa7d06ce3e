"""Payloads into columns: what is said is a struct, what cannot be read is null and its message stays."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from sterna.pipeline.parsing import parse_csv, parse_json, parse_protobuf

pytestmark = pytest.mark.timeout(300)  # Spark starts slowly on a busy machine

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
