"""`sterna pipeline ...`: jobs on the network's table, with Spark.  Results go to stdout, progress to stderr."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from sterna.pipeline.job_settings import MUCH_AT_ONCE, SMALL_BATCHES, as_words
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.extras import how_to_add

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sterna.pipeline.archive.files import ArchiveFiles

app = typer.Typer(help="Jobs on the network's messages, with Spark.", no_args_is_help=True)
talk = Console(stderr=True, highlight=False)

PROGRESS_S = 1
_STDERR = 2
_MIB = 1024 * 1024
_TRACES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers in which PySpark tells a refused question with all that led to it; the question's one line is told here."""
CELL_CHARACTERS_MAX = 120


def _local(directory: Path | None) -> Path | None:
    """A job that cannot work is refused before Spark is started."""
    if directory is not None:
        from sterna.pipeline.archive.storage import check_local

        check_local(directory)
    return directory


def _place(archive: str | None) -> str | None:
    """Likewise."""
    if archive is not None:
        from sterna.pipeline.archive.storage import check_place

        check_place(archive)
    return archive


_Nodes = Annotated[
    str | None, typer.Option("--nodes", help="Feeds to read, host:port, with commas; one is enough to find the others.")
]
_Topics = Annotated[str | None, typer.Option("--topics", help="Only these MQTT filters, with commas.")]
_Since = Annotated[str | None, typer.Option("--from", help="Only messages that came in at this instant or later.")]
_Until = Annotated[str | None, typer.Option("--to", help="Only messages that came in before this instant.")]
_IgnoreMissing = Annotated[
    bool,
    typer.Option(
        "--ignore-missing-nodes", help="Go on without a node that the others know of and that does not answer."
    ),
]
_TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the feeds' token.")]
_CaFile = Annotated[Path | None, typer.Option("--cafile", help="Authorities (PEM) of the feeds' certificates.")]
_Master = Annotated[str, typer.Option("--master", help="Where Spark runs: local[*], or the address of a cluster.")]
_TargetMiB = Annotated[int, typer.Option("--target-mib", min=1, help="How large merged files are, about.")]
_Archive = Annotated[
    str,
    typer.Argument(
        help="Directory of the archive, or its address in an object store, as s3://bucket/name.", callback=_place
    ),
]
_AlsoAsked = Annotated[
    str | None,
    typer.Option("--archive", help="Archive to ask as well: a directory, or an address.", callback=_place),
]
_State = Annotated[
    Path | None,
    typer.Option("--state", help="Where the job keeps how far it is; by default in the archive.", callback=_local),
]
_Conf = Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark, key=value; may be repeated.")]


@app.callback()
def pipeline() -> None:
    """Jobs on the network's messages, with Spark."""


@app.command()
def archive(
    directory: _Archive,
    nodes: _Nodes = None,
    topics: _Topics = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Take what is there and end, instead of going on.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two batches of files.")] = 10.0,
    at_most: Annotated[int | None, typer.Option(min=1, help="Messages in a batch, at most.")] = None,
    lose: Annotated[
        bool, typer.Option("--lose", help="Go on past messages that a node no longer has; they are noted.")
    ] = False,
    ignore_missing: _IgnoreMissing = False,
    merge_at: Annotated[
        int, typer.Option(min=0, help="Merge the small files of a day and level when there are so many; 0: never.")
    ] = 100,
    target_mib: _TargetMiB = 128,
    state: _State = None,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
    master: _Master = "local[*]",
    conf: _Conf = None,
) -> None:
    """Keep every message as Parquet, by day and first topic level, each exactly once.  Ctrl-C ends it at any time."""
    gaps = _kept_by_job(directory, state) / "gaps"
    source = _source(nodes, topics, token_file, cafile, ignore_missing=ignore_missing)
    if at_most is not None:
        source["maxOffsetsPerTrigger"] = str(at_most)
    source["failOnDataLoss"] = str(not lose).lower()
    with spark_session("sterna archive", master, conf) as spark:
        from sterna.pipeline.jobs.archive import Archive, start_archive
        from sterna.pipeline.retry import with_more_tries

        def run() -> None:
            kept = Archive(directory, state)
            _say_taken(directory, kept.open())
            query = start_archive(
                spark,
                kept,
                _with_tasks(source, spark),
                available_now=available_now,
                every_s=every,
                merge_at=merge_at,
                target_bytes=target_mib * _MIB,
            )
            _show_progress(query, gaps)
            if available_now:
                kept.settle()

        with_more_tries(run, _say)


@app.command()
def compact(
    directory: _Archive,
    target_mib: _TargetMiB = 128,
    keep_hours: Annotated[
        float, typer.Option(min=0, help="How long merged files stay, for those who are still reading them.")
    ] = 24.0,
) -> None:
    """Merge the small files of an archive into large ones; readers notice nothing.  Needs no Spark."""
    from sterna.pipeline.archive.compaction import compact

    files = _files_of(directory)
    done = compact(files, target_mib * _MIB, keep_s=keep_hours * 3600)
    talk.print(f"{done.merged:,} files became {done.made:,}; {done.swept:,} that were merged before are removed")


@app.command()
def erase(
    directory: _Archive,
    topics: Annotated[str | None, typer.Option("--topics", help="Only messages that this MQTT filter matches.")] = None,
    publisher: Annotated[str | None, typer.Option(help="Only messages of the client with this identifier.")] = None,
    before: Annotated[str | None, typer.Option(help="Only messages of days before this one, as in 2026-01-31.")] = None,
) -> None:
    """Erase messages from an archive for good: those of which all that is given is true.  Needs no Spark."""
    from sterna.pipeline.archive.erasure import ErasureScope
    from sterna.pipeline.archive.erasure import erase as erase_from

    try:
        day = None if before is None else date.fromisoformat(before)
    except ValueError:
        raise typer.BadParameter(f'"{before}" is no day; write it as in 2026-01-31', param_hint="--before") from None
    files = _files_of(directory)
    done = erase_from(files, ErasureScope(topics, publisher, day))
    talk.print(f"{done.messages:,} messages erased, from {done.files:,} files")


def _files_of(place: str) -> ArchiveFiles:
    """An archive of an earlier release is taken over first."""
    from sterna.pipeline.archive.conversion import convert
    from sterna.pipeline.archive.files import ArchiveFiles

    files = ArchiveFiles(place)
    _say_taken(place, convert(files))
    files.check_exists()
    return files


def _say_taken(place: str, files: int) -> None:
    if files:
        talk.print(f"{place}: {files:,} files of an earlier release are in the log of a Delta table now")


def _kept_by_job(place: str, state: Path | None) -> Path:
    from sterna.pipeline.archive.storage import is_address

    if state is None and is_address(place):
        raise SternaError(f"{place} is an address: name a directory for what the job keeps (--state)")
    return state or Path(place)


@app.command()
def package(
    archive: Annotated[Path, typer.Argument(help="File to write, called .tar.gz.")] = Path("sterna.tar.gz"),
) -> None:
    """Pack Sterna for machines on which it is not installed: an archive for spark-submit --archives."""
    from sterna.pipeline.shipping import make_archive

    made = make_archive(archive)
    talk.print(f"{archive}: {made.files:,} files, for Python {made.python} on machines like this one", soft_wrap=True)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="A question about the view `messages`.")],
    nodes: _Nodes = None,
    archive: _AlsoAsked = None,
    topics: _Topics = None,
    since: _Since = None,
    until: _Until = None,
    ignore_missing: _IgnoreMissing = False,
    output: Annotated[Literal["table", "json", "csv"], typer.Option("--output", help="How to print.")] = "table",
    limit: Annotated[int, typer.Option(min=1, help="Rows to print, at most.")] = 1000,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
    master: _Master = "local[*]",
    conf: _Conf = None,
) -> None:
    """Ask the live messages and the archive as one table."""
    from sterna.cli import pipeline_audit
    from sterna.pipeline.options import topic_filters

    begin, end = pipeline_audit.instant(since, "--from"), pipeline_audit.instant(until, "--to")
    filters = topic_filters(topics or "", "--topics")
    source = _source(nodes, topics, token_file, cafile, ignore_missing=ignore_missing) if nodes else None
    with spark_session("sterna query", master, [*as_words(MUCH_AT_ONCE), *(conf or [])]) as spark:
        from sterna.pipeline.jobs.query import query as rows_of

        if source is not None:
            source = _with_tasks(source, spark)
        found = rows_of(spark, sql, source, archive, filters, begin, end).limit(limit + 1).toArrow()
    _print_rows(found, limit, output)


@app.command()
def evaluate(
    expression: Annotated[str, typer.Argument(help="Such as '$MAX$HOURLYAVG/room/+/temp'; mind the quotes.")],
    nodes: _Nodes = None,
    archive: _AlsoAsked = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Messages that came in at this instant or later; windows begin here.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", help="Messages that came in before, windows that ended by then.  [default: now]"),
    ] = None,
    anchor: Annotated[
        Literal["subscription", "wall"] | None,
        typer.Option(help="Where windows begin: at --from, or by the clock.  [default: as in --config]"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of a node, for its [operators].")] = None,
    ignore_missing: _IgnoreMissing = False,
    output: Annotated[
        Literal["table", "json", "csv", "parquet"], typer.Option("--output", help="How to print; parquet needs --path.")
    ] = "table",
    path: Annotated[Path | None, typer.Option(help="Directory for Parquet files, which must not exist.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Results to print, at most.")] = 1000,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
    master: _Master = "local[*]",
    conf: _Conf = None,
) -> None:
    """Replay what a subscription to this expression would have got, from archive and journals: time, topic, payload."""
    from sterna.cli import pipeline_audit, pipeline_operators

    begin, end = pipeline_audit.instant(since, "--from"), pipeline_audit.instant(until, "--to")
    if (output == "parquet") != (path is not None):
        raise typer.BadParameter("--output parquet and --path DIRECTORY go together", param_hint="--path")
    question = pipeline_operators.question(expression, begin, end, anchor, config)
    talk.print(f"plan: {pipeline_operators.plan(question)}", soft_wrap=True)
    source = _source(nodes, None, token_file, cafile, ignore_missing=ignore_missing) if nodes else None
    with spark_session("sterna evaluate", master, [*as_words(MUCH_AT_ONCE), *(conf or [])]) as spark:
        from sterna.pipeline.jobs.evaluate import evaluate as results_of

        if source is not None:
            source = _with_tasks(source, spark)
        with pipeline_audit.progress(spark):
            results = results_of(spark, question, source, archive)
            if path is not None:
                results.write.mode("errorifexists").parquet(str(path))
                return
            found = results.limit(limit + 1).toArrow()
    _print_rows(found, limit, output)


@app.command()
def operators(
    directory: Annotated[
        Path, typer.Argument(help="Directory of the job's state; made when missing.", callback=_local)
    ],
    nodes: _Nodes = None,
    away: Annotated[
        float, typer.Option(min=0, help="Seconds windows wait for a node that is away; then they end without it.")
    ] = 60.0,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of a node, for its [functions]; without it: the bundled one.")
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Tasks that expressions are dealt out to, for good; by default as many as there are cores.",
        ),
    ] = None,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
    master: _Master = "local[*]",
    conf: _Conf = None,
) -> None:
    """Compute every expression that nodes leave to Spark, and hand in the results.  Ctrl-C ends it at any time."""
    from sterna.cli import pipeline_operators

    functions = pipeline_operators.functions(config)
    source = _source(nodes, None, token_file, cafile)
    with spark_session("sterna operators", master, [*as_words(SMALL_BATCHES), *(conf or [])]) as spark:
        from sterna.pipeline.jobs.operators import OperatorsJob
        from sterna.pipeline.retry import with_more_tries

        def run() -> None:
            spark.streams.resetTerminated()  # what ended an earlier try is no reason to end this one
            job = OperatorsJob(directory, _with_tasks(source, spark), _say, functions, lanes)
            try:
                job.start(spark, away)
                talk.print("computing; Ctrl-C ends it")
                spark.streams.awaitAnyTermination()
            except KeyboardInterrupt:
                talk.print("ending; what is not finished is done at the next start")
            finally:
                job.stop()

        with_more_tries(run, _say)


@app.command()
def audit(
    nodes: _Nodes = None,
    archive: _AlsoAsked = None,
    since: _Since = None,
    until: _Until = None,
    topics: _Topics = None,
    ignore_missing: _IgnoreMissing = False,
    skew: Annotated[float, typer.Option(min=0, help="Seconds by which the nodes' clocks may differ.")] = 1.0,
    details: Annotated[
        Path | None,
        typer.Option(help="Write what was not simply delivered there, as Parquet, or as CSV if named .csv."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write a page with sums, subscriptions and plots there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Subscriptions to print, at most, the worst first.")] = 100,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
    master: _Master = "local[*]",
    conf: _Conf = None,
) -> None:
    """Account for every message: what was expected, delivered, dropped, lost, duplicated, reordered, per subscription.

    Exit status 1 if anything was lost at QoS 1 or 2, came twice at QoS 0 or 2, or out of order.
    """
    from sterna.cli import pipeline_audit

    begin, end = pipeline_audit.instant(since, "--from"), pipeline_audit.instant(until, "--to")
    if page is not None:
        pipeline_audit.check_page(page)
    source = _source(nodes, topics, token_file, cafile, ignore_missing=ignore_missing)
    with spark_session("sterna audit", master, [*as_words(MUCH_AT_ONCE), *(conf or [])]) as spark:
        from sterna.pipeline.jobs.audit import audit_network

        with pipeline_audit.progress(spark):
            found = audit_network(spark, _with_tasks(source, spark), archive, begin, end, skew)
            window = pipeline_audit.window_in_words(begin, end)
            tell = pipeline_audit.TellsNodes(source, found, window)
            kept = pipeline_audit.report(found, limit, details, as_json=as_json, tell=tell, page=page, window=window)
    raise typer.Exit(0 if kept else 1)


def _say(line: str) -> None:
    talk.print(line, soft_wrap=True, markup=False)


def _source(
    nodes: str | None,
    topics: str | None,
    token_file: Path | None,
    cafile: Path | None,
    *,
    ignore_missing: bool = False,
) -> dict[str, str]:
    if not nodes:
        raise typer.BadParameter("say which feed to read, as in --nodes 127.0.0.1:7885", param_hint="--nodes")
    given = {"nodes": nodes, "topics": topics, "tokenFile": token_file, "caFile": cafile}
    source = {name: str(value) for name, value in given.items() if value is not None}
    if ignore_missing:
        source["ignoreMissingNodes"] = "true"
    _check(source)
    return source


def _check(source: dict[str, str]) -> None:
    """A job that cannot work is refused before Spark is started."""
    from sterna.pipeline.options import ReadOptions
    from sterna.pipeline.source.nodes import look_around

    options = ReadOptions.parse(source, streaming=False)
    for name in look_around(options.access, options.nodes, all_of_them=False).missing:
        _say(f"node {name} does not answer")


def _with_tasks(source: dict[str, str], spark: SparkSession) -> dict[str, str]:
    """As many tasks as Spark has cores, wherever they are."""
    from sterna.pipeline.cluster_size import core_count

    return {"tasks": str(core_count(spark, _say)), **source}


@contextmanager
def spark_session(name: str, master: str, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session while it is needed; a failure of Spark is told in one line."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger

        from sterna.pipeline.spark_session import one_line, open_session
    except ImportError as error:
        raise SternaError(f"Spark is not installed ({error}); {how_to_add('pipeline')}") from None
    settings = dict(_setting(one) for one in conf or [])
    signal.signal(signal.SIGTERM, _leave)
    for trace in _TRACES:
        PySparkLogger.getLogger(trace).disabled = True
    # A call that Ctrl-C breaks off is told with all that led to it, some of it by nobody's logger.
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    session = None
    try:
        with _noise_kept_apart():
            session = open_session(name, master, settings)
        yield session
    except PySparkException as error:
        raise SternaError(one_line(error)) from None
    finally:
        if session is not None:
            session.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


@contextmanager
def _noise_kept_apart() -> Iterator[None]:
    """Processes that start meanwhile write stderr to a file: Spark and its workers tell every error many times."""
    handle, path = tempfile.mkstemp(prefix="sterna-spark-", suffix=".log")
    talk.print(f"starting Spark (its log: {path})", soft_wrap=True)
    ours = os.dup(_STDERR)
    os.dup2(handle, _STDERR)
    try:
        yield
    finally:
        os.dup2(ours, _STDERR)
        os.close(ours)
        os.close(handle)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f'"{text}" is no setting; write key=value', param_hint="--conf")
    return key, value


def _show_progress(query: StreamingQuery, gaps: Path) -> None:
    """A line per batch that held something and per gap, until the query ends or somebody wants it to."""
    from sterna.pipeline.source.gaps import noted

    shown, told = -1, {(gap.node, gap.start, gap.stop) for gap in noted(gaps)}
    is_over = False
    try:
        while not is_over:
            is_over = bool(query.awaitTermination(PROGRESS_S))
            shown = _show_batches(query, shown)
            for gap in noted(gaps):
                if (gap.node, gap.start, gap.stop) not in told:
                    talk.print(str(gap), style="bold", soft_wrap=True)
                    told.add((gap.node, gap.start, gap.stop))
    except KeyboardInterrupt:
        talk.print("ending; what is not finished is done again at the next start")
        query.stop()


def _show_batches(query: StreamingQuery, shown: int) -> int:
    for batch in query.recentProgress:
        if batch.batchId > shown and batch.numInputRows:
            shown = batch.batchId
            rate = batch.processedRowsPerSecond
            talk.print(f"batch {batch.batchId}: {batch.numInputRows:,} messages ({rate:,.0f}/s)")
    return shown


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Being told to end is like Ctrl-C."""
    raise KeyboardInterrupt


def _print_rows(found: pa.Table, limit: int, output: str) -> None:
    rows = found.slice(0, limit).to_pylist()
    {"table": _print_table, "json": _print_json, "csv": _print_csv}[output](found.column_names, rows)
    if found.num_rows > limit:
        talk.print(f"there are more than {limit} rows; ask for more with --limit")


def _print_table(columns: list[str], rows: list[dict[str, Any]]) -> None:
    out = Console(highlight=False)
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_text(value)[:CELL_CHARACTERS_MAX] for value in row.values()))
    out.print(table)


def _print_json(_columns: list[str], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row, default=_text, ensure_ascii=False))


def _print_csv(columns: list[str], rows: list[dict[str, Any]]) -> None:
    import csv

    out = csv.writer(sys.stdout)
    out.writerow(columns)
    out.writerows([_text(value) for value in row.values()] for row in rows)


def _text(value: Any) -> str:
    """As people write it; payloads are text where they are text, else hexadecimal."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, tuple):  # one of a map, as Arrow hands it over
        return "=".join(map(_text, value))
    if isinstance(value, dict) and value.keys() == {"key", "value"}:
        return f"{_text(value['key'])}={_text(value['value'])}"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)
