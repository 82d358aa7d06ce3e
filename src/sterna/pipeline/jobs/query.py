"""The query job: SQL over the archive as far as it reaches, and behind it over the messages that the nodes hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.archive import Archive, with_places
from sterna.pipeline.offsets import Offsets, named_as_in
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import patiently, whole_network
from sterna.pipeline.topic_condition import matches

VIEW = "messages"


def messages(
    spark: SparkSession,
    source: Mapping[str, str] | None,
    archive: str | Path | None,
    topics: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """One table of what was and what is, each message once; at least one of the two must be named.  Messages of other
    topic filters and times than these may be missing from it."""
    parts: list[DataFrame] = []
    reached: Offsets = {}
    if archive is not None:
        archived, reached = Archive(archive).table(spark, topics, since, until)
        parts += [_of_days(archived, since, until)] if archived is not None else []
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


def _of_days(archived: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Days are in UTC, as an archive has them."""
    if since is not None:
        archived = archived.where(f.col("date") >= f.lit(since.astimezone(UTC).date()))
    if until is not None:
        archived = archived.where(f.col("date") <= f.lit(until.astimezone(UTC).date()))
    return archived


def of_time(table: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Messages that came in at `since` or later and before `until`."""
    if since is not None:
        table = table.where(f.col("ingress_time") >= f.lit(since))
    if until is not None:
        table = table.where(f.col("ingress_time") < f.lit(until))
    return table


def _of_those_here(reached: Offsets, source: Mapping[str, str]) -> Offsets:
    """Nodes may have left since they were archived."""
    asked = ReadOptions.parse(source, streaming=False)
    here = [seen.journal for seen in patiently(asked, lambda: whole_network(asked)).values()] if reached else []
    return {journal: offset for journal, offset in named_as_in(reached, here).items() if journal in here}


def query(
    spark: SparkSession,
    sql: str,
    source: Mapping[str, str] | None,
    archive: str | Path | None,
    topics: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The answer to a question about the view `messages`, of these topic filters and of this time and no others."""
    asked = source if source is None or not topics else {**source, "topics": json.dumps(list(topics))}
    table = of_time(messages(spark, asked, archive, topics, since, until), since, until)
    (table.where(matches(topics)) if topics else table).createOrReplaceTempView(VIEW)
    return spark.sql(sql)
