"""The audit job: compares the records of a network's nodes with the delivery contract.

Messages published at QoS 0 are not audited: they have no identity, and their delivery was not promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sterna.pipeline.audit.contract import SKEW_S, idle, judge, offending, summary
from sterna.pipeline.audit.node_records import read_records
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.jobs.query import messages, of_time
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.topic_condition import matches

_COLUMNS = ("topic", "qos", "publisher", "origin", "epoch", "sequence", "ingress_time")


@dataclass(frozen=True, slots=True)
class Audit:
    """Not begun before somebody asks for rows."""

    table: DataFrame
    """A row per subscription and QoS: see `sterna.pipeline.audit.contract.summary`."""
    judged: DataFrame
    """A row per subscriber and message."""
    nodes: list[str]
    """Whose clients are audited."""
    silent: list[str]
    """Nodes that note no deliveries: nothing can be said of their clients."""
    idle: DataFrame
    """Clients that are subscribed and had nothing to get."""


def audit_network(
    spark: SparkSession,
    source: Mapping[str, str],
    archive: str | Path | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    skew_s: float = SKEW_S,
) -> Audit:
    """Of the messages that came in from `since` on and before `until`.  `source` are options of the source; with an
    archive, messages are audited that are no longer in the journals, as far as what became of them still is."""
    since_us = None if since is None else round((since.timestamp() - skew_s) * 1e6)  # by the clock of another node
    # First what became of messages, then the messages: one that came in between seems to wait, and none to be unknown.
    records = read_records(spark, source, since_us)
    if len(records.silent) == len(records.nodes):
        raise PipelineError(
            f"no deliveries are noted by {', '.join(records.silent)}; set deliveries = true in [journal]"
        )
    topics = ReadOptions.parse(source, streaming=False).topics
    told = messages(spark, _told(source, archive, since), archive, topics, since, until).select(*_COLUMNS)
    told = of_time(told, since, until).where("qos > 0")
    if topics:
        told = told.where(matches(topics))  # of the archive; nodes send no others
    judged = judge(told, records.subscriptions, records.deliveries, skew_s=skew_s)
    audited = [name for name in records.nodes if name not in records.silent]
    table = summary(judged, records.deliveries)
    return Audit(table, judged, audited, records.silent, idle(table, records.subscriptions))


def _told(source: Mapping[str, str], archive: str | Path | None, since: datetime | None) -> dict[str, str]:
    """Where there is no archive, nodes need not send what is of no interest."""
    if archive is not None:
        return dict(source)
    begin = {} if since is None else {"startingOffsets": since.isoformat()}
    return {**source, **begin, "columns": ",".join(_COLUMNS)}


def write_details(judged: DataFrame, path: Path) -> None:
    """Every message that was not simply delivered: a directory of CSV if its name ends so, else of Parquet."""
    writer = offending(judged).write.mode("errorifexists")
    if path.suffix == ".csv":
        writer.option("header", "true").csv(str(path))
    else:
        writer.parquet(str(path))
