"""Tables of a Spark catalog: `CREATE TABLE ... USING sterna OPTIONS (...)`.

Spark shows a table's options to a Python source when the table is made, but not when it is read.  It keeps only the
schema for the source, so the options are stored there, in the metadata of the first column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from sterna.pipeline.options import options_of
from sterna.pipeline.table import schema_of
from sterna.vocabulary.errors import ConfigurationError

_KEY = "sterna.options"


def with_options(columns: Sequence[str], words: Mapping[str, str]) -> StructType:
    """The schema of a table that is read with these options.  A secret does not belong into a catalog."""
    options = options_of(words)
    if "token" in options:
        raise ConfigurationError("token: everybody who reads the catalog could read it; name a file with tokenFile")
    first, *others = from_arrow_schema(schema_of(columns)).fields
    noted = {**first.metadata, _KEY: msgspec.json.encode(options).decode()}
    return StructType([StructField(first.name, first.dataType, first.nullable, noted), *others])


def options_in(schema: StructType) -> dict[str, str]:
    """Those that `with_options` wrote there."""
    found = next((field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})), None)
    return {} if found is None else msgspec.json.decode(found, type=dict[str, str])
