"""The query job: SQL over the archive as far as it reaches, and behind it over the messages that the nodes hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive, with_places
from sterna.pipeline.offsets import Offsets, named_as_in
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import patiently, whole_network

VIEW = "messages"


def messages(spark: SparkSession, source: Mapping[str, str] | None, archive: Path | None) -> DataFrame:
    """One table of what was and what is, each message once; at least one of the two must be named."""
    parts: list[DataFrame] = []
    reached: Offsets = {}
    if archive is not None:
        archived, reached = Archive(archive).table(spark)
        parts += [archived] if archived is not None else []
    if source is not None:
        behind = _of_those_here(reached, source)
        options = {"startingOffsets": json.dumps(behind) if behind else "earliest", **source}
        parts.append(with_places(spark.read.format("sterna").options(**options).load()))
    if not parts:
        raise PipelineError(
            f"there is nothing to ask: {archive or 'no archive'} holds no messages, and no node is named"
        )
    table = parts[0]
    for part in parts[1:]:
        table = table.unionByName(part)
    return table


def _of_those_here(reached: Offsets, source: Mapping[str, str]) -> Offsets:
    """Nodes may have left since they were archived."""
    asked = ReadOptions.parse(source, streaming=False)
    here = [seen.journal for seen in patiently(asked, lambda: whole_network(asked)).values()] if reached else []
    return {journal: offset for journal, offset in named_as_in(reached, here).items() if journal in here}


def query(spark: SparkSession, sql: str, source: Mapping[str, str] | None, archive: Path | None) -> DataFrame:
    """The answer to a question about the view `messages`."""
    messages(spark, source, archive).createOrReplaceTempView(VIEW)
    return spark.sql(sql)
