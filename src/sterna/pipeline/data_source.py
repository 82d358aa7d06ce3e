"""`format("sterna")`, as Spark finds it: `read`, `readStream`, `write` and `writeStream` of a network's messages.

It parses the options and hands over: reads to `source`, writes to `sink`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from sterna.pipeline.options import ReadOptions, WriteOptions, is_of_a_table
from sterna.pipeline.sink.writers import BatchWriter, StreamWriter
from sterna.pipeline.source.catalog_tables import options_in, with_options
from sterna.pipeline.source.pushed_filters import are_asked_for
from sterna.pipeline.source.readers import BatchReader, FilteringReader, StreamReader
from sterna.pipeline.table import spark_schema, spark_types
from sterna.vocabulary.errors import ConfigurationError


class SternaSource(DataSource):
    """The table of a network, and the way back into it."""

    @classmethod
    def name(cls) -> str:
        return "sterna"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._words = dict(options)

    def schema(self) -> str | StructType:
        columns = ReadOptions.parse(self._words, streaming=True).columns
        return with_options(columns, self._words) if is_of_a_table(self._words) else spark_schema(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _with_columns(ReadOptions.parse(self._of(schema), streaming=False), schema)
        return FilteringReader(options) if are_asked_for() else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(_with_columns(ReadOptions.parse(self._of(schema), streaming=True), schema))

    def _of(self, schema: StructType) -> Mapping[str, str]:
        return {**options_in(schema), **self._words}

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigurationError('mode: what is published cannot be overwritten; write .mode("append")')
        return BatchWriter(WriteOptions.parse(self._words), schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(WriteOptions.parse(self._words), schema.fieldNames())


def _with_columns(options: ReadOptions, schema: StructType) -> ReadOptions:
    """A schema that a user gives chooses columns, as option `columns` does."""
    for field in schema.fields:
        kind = spark_types().get(field.name)
        if kind != field.dataType.simpleString():
            said = f"is {kind}, not {field.dataType.simpleString()}" if kind else "is none of the table's"
            raise ConfigurationError(f"schema: column {field.name} {said}; the table is {spark_schema()}")
    return replace(options, columns=tuple(schema.fieldNames()))
