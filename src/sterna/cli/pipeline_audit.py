"""The output of `sterna pipeline audit`: a line per subscription, the sum, and how far it has got meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sterna.pipeline.jobs.audit import Audit

talk = Console(stderr=True, highlight=False)

PROGRESS_S = 2.0
WIDE = 300
"""Characters of a line that no terminal has to show."""
COUNTS = ("expected", "delivered", "waiting", "dropped", "lost", "uncertain", "duplicated", "reordered", "resent")
LATENCIES = ("p50_ms", "p99_ms", "max_ms")


def instant(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is no instant; write one such as 2026-01-31T12:00:00Z', param_hint=option
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@contextmanager
def progress(spark: SparkSession) -> Iterator[None]:
    """A line whenever something has been done, until it is over."""
    over = threading.Event()

    def watch() -> None:
        tracker, shown = spark.sparkContext.statusTracker(), ""
        while not over.wait(PROGRESS_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            text = ", ".join(
                f"{one.name.split(' at ')[0]}: {one.numCompletedTasks} of {one.numTasks} tasks" for one in stages if one
            )
            if text and text != shown:
                shown = text
                talk.print(text, soft_wrap=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def report(audit: Audit, limit: int, details: Path | None, *, as_json: bool) -> bool:
    """Print what was found, the worst first; True if the contract was kept."""
    from pyspark.sql import functions as f
    from pyspark.storagelevel import StorageLevel

    from sterna.pipeline.audit.contract import violations
    from sterna.pipeline.jobs.audit import write_details

    for name in audit.silent:
        talk.print(f"node {name} notes no deliveries: its clients are not audited", soft_wrap=True)
    if details is not None:
        audit.judged.persist(StorageLevel.DISK_ONLY)  # it is gone through twice
    table = audit.table.withColumn("violation", violations()).persist(StorageLevel.DISK_ONLY)
    sums = _sums(table)
    worst = (
        f.col("violation").desc(),
        f.col("lost").desc(),
        f.col("dropped").desc(),
        "node",
        "client",
        "filter",
        "qos",
    )
    rows = [row.asDict() for row in table.orderBy(*worst).limit(limit).collect()]
    if as_json:
        told = {"nodes": audit.nodes, "not_audited": audit.silent, "sum": sums, "subscriptions": rows}
        print(json.dumps(told, default=_plain, ensure_ascii=False, indent=2))
    else:
        _print(rows, sums)
    if sums["subscriptions"] > len(rows):
        talk.print(f"{sums['subscriptions'] - len(rows):,} more subscriptions are in the sum; see them with --limit")
    if details is not None:
        write_details(audit.judged, details)
        talk.print(f"every message that was not simply delivered: {details}", soft_wrap=True)
    return not sums["violations"]


def _sums(table: DataFrame) -> dict[str, Any]:
    from pyspark.sql import functions as f

    (row,) = table.agg(
        f.count("*").alias("subscriptions"),
        f.count_if("violation").alias("violations"),
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in COUNTS),
        f.max("max_ms").alias("max_ms"),
    ).collect()
    return dict(row.asDict())


def _print(rows: list[dict[str, Any]], sums: dict[str, Any]) -> None:
    table = Table("client", "filter", "qos", *COUNTS, *LATENCIES, "dropped because", box=None, pad_edge=False)
    for column in table.columns[2:-1]:
        column.justify = "right"
    for row in rows:
        who = f"{row['client']} @ {row['node']}" if row["client"] else "(shared)"
        because = ", ".join(f"{reason} {count:,}" for reason, count in row["reasons"].items())
        style = "bold red" if row["violation"] else None
        table.add_row(who, row["filter"], str(row["qos"]), *_cells(row), because, style=style)
    table.add_row(f"sum of {sums['subscriptions']:,}", "", "", *_cells(sums), "", style="bold")
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = WIDE
    out.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    latencies = (row.get(name) for name in LATENCIES)
    return [f"{row[name]:,}" for name in COUNTS] + ["" if one is None else f"{one:,.1f}" for one in latencies]


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
