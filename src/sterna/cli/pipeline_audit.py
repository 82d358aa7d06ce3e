"""The output of `sterna pipeline audit`: a line per subscription, the sum, and how far it has got meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from sterna.runtime.feed.audit_outcomes import NODES_MAX, WORST_MAX, AuditedSubscription, AuditOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sterna.pipeline.jobs.audit import Audit

talk = Console(stderr=True, highlight=False)

PROGRESS_S = 2.0
WIDE = 300
"""Characters of a line that no terminal has to show."""
COUNTS = ("expected", "delivered", "waiting", "dropped", "lost", "uncertain", "duplicated", "reordered", "resent")
TEXT_MAX = 1000
IDLE_NAMED = 10
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


def report(
    audit: Audit,
    limit: int,
    details: Path | None,
    *,
    as_json: bool,
    tell: Callable[[dict[str, Any], list[dict[str, Any]]], None] | None = None,
    page: Path | None = None,
    window: str = "",
) -> bool:
    """Print what was found, the worst first; True if the contract was kept.  `tell` is given the sum and the rows;
    `page`: a file for the same as HTML."""
    from pyspark.sql import functions as f
    from pyspark.storagelevel import StorageLevel

    from sterna.pipeline.audit.contract import violations
    from sterna.pipeline.jobs.audit import write_details

    for name in audit.silent:
        talk.print(f"node {name} notes no deliveries: its clients are not audited", soft_wrap=True)
    if details is not None or page is not None:
        audit.judged.persist(StorageLevel.DISK_ONLY)  # it is gone through more than once
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
    _tell_idle(audit)
    if details is not None:
        write_details(audit.judged, details)
        talk.print(f"every message that was not simply delivered: {details}", soft_wrap=True)
    if page is not None:
        _write_page(page, audit, window, sums, rows)
    if tell is not None:
        tell(sums, rows)
    return not sums["violations"]


def check_page(page: Path) -> None:
    """Before anything takes time."""
    from sterna.measure.plots import can_draw
    from sterna.vocabulary.errors import SternaError
    from sterna.vocabulary.extras import how_to_add

    if not can_draw():
        raise SternaError(f"--html draws with matplotlib, which is not installed; {how_to_add('experiments')}")
    if not page.absolute().parent.is_dir():
        raise typer.BadParameter(f"{page.absolute().parent} is no directory", param_hint="--html")


def _write_page(page: Path, audit: Audit, window: str, sums: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    from sterna.cli.audit_page import AuditPage
    from sterna.pipeline.audit.distributions import latencies, over_time

    told = AuditPage(window, audit.nodes, audit.silent, sums, rows, latencies(audit.judged), over_time(audit.judged))
    page.write_text(told.html())
    talk.print(f"the same as a page: {page}", soft_wrap=True)


def _tell_idle(audit: Audit) -> None:
    """Name clients that somebody may look for in the table."""
    rows = audit.idle.orderBy("client", "node").limit(IDLE_NAMED + 1).collect()
    if not rows:
        return
    named = ", ".join(f"{row['client']} @ {row['node']}" for row in rows[:IDLE_NAMED])
    more = " and others" if len(rows) > IDLE_NAMED else ""
    talk.print(f"subscribed, and nothing of theirs to be audited: {named}{more}", markup=False, soft_wrap=True)


class TellsNodes:
    """Hands the outcome of an audit to a node, whose dashboard shows it."""

    def __init__(self, source: Mapping[str, str], audit: Audit, window: str) -> None:
        self._source = source
        self._audit = audit
        self._window = window
        self._began = time.monotonic()

    def __call__(self, sums: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """A node of an earlier release takes none; then only the print-out tells."""
        from sterna.pipeline.feed.errors import FeedError
        from sterna.pipeline.options import ReadOptions
        from sterna.pipeline.source.nodes import open_feed

        options = ReadOptions.parse(self._source, streaming=False)
        outcome = self._outcome(sums, rows)
        for address in options.nodes:
            try:
                with open_feed(options.access, address) as feed:
                    feed.tell_audit(outcome)
                return
            except FeedError as error:
                talk.print(f"the dashboard will not show this: {error}", markup=False, soft_wrap=True)

    def _outcome(self, sums: dict[str, Any], rows: list[dict[str, Any]]) -> AuditOutcome:
        names = ("client", "node", "filter", "qos", "expected", "delivered", "lost", "duplicated", "reordered")
        worst = [
            AuditedSubscription(**{name: _short(row[name]) for name in names}, violation=bool(row["violation"]))
            for row in rows[:WORST_MAX]
        ]
        return AuditOutcome(
            at=time.time(),
            took_s=round(time.monotonic() - self._began, 1),
            nodes=self._audit.nodes[:NODES_MAX],
            not_audited=self._audit.silent[:NODES_MAX],
            window=self._window,
            subscriptions=sums["subscriptions"],
            violations=sums["violations"],
            **{name: sums[name] for name in COUNTS},
            max_ms=sums["max_ms"],
            worst=worst,
        )


def window_in_words(begin: datetime | None, end: datetime | None) -> str:
    if begin is None and end is None:
        return "everything that is kept"
    since = "" if begin is None else f"from {begin.isoformat(timespec='seconds')} "
    return f"{since}{'' if end is None else 'to ' + end.isoformat(timespec='seconds')}".strip()


def _short(value: Any) -> Any:
    return value[:TEXT_MAX] if isinstance(value, str) else value


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
