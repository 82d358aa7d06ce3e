"""`sterna experiment ...`: repeat experiments of papers.  Tables or JSON go to stdout, progress to stderr."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Literal, TypeVar

import msgspec
import typer
from rich.console import Console

from sterna import __version__
from sterna.cli.pipeline import spark_session
from sterna.measure import plots
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.convergence import experiment as convergence
from sterna.measure.papers.convergence import report as convergence_report
from sterna.measure.papers.migration import plan as migration_plan
from sterna.measure.papers.traffic import experiment as traffic
from sterna.measure.papers.traffic import report as traffic_report
from sterna.measure.papers.traffic import systems
from sterna.measure.papers.traffic.placement import LOCALITIES
from sterna.measure.wire.capture import may_capture
from sterna.vocabulary.errors import SternaError

TABLE_COLUMNS = 140
"""Width when stdout is not a terminal."""

app = typer.Typer(help="Repeat experiments of papers with real processes.", no_args_is_help=True)
_Report = TypeVar("_Report")
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
_Plot = Annotated[Path | None, typer.Option(help="Also draw the figures into this PNG file.")]


@app.callback()
def experiment() -> None:
    """Repeat experiments of papers with real processes."""


@app.command("traffic")
def traffic_command(
    rounds: Annotated[int, typer.Option(min=1, max=99, help="Rounds; medians count.")] = 3,
    locality: Annotated[list[int] | None, typer.Option(help="Only these: 0, 50, 100.")] = None,
    messages: Annotated[int, typer.Option(min=1, help="Messages of every publisher.")] = 50,
    interval: Annotated[float, typer.Option(min=0.001, help="Seconds between messages of a publisher.")] = 1.0,
    qos: Annotated[int, typer.Option(min=0, max=2, help="Of publishers and subscribers.")] = 2,
    overlay: Annotated[
        Literal["static", "spanning-tree"], typer.Option(help="How our nodes find each other; bridges are static.")
    ] = "static",
    seed: Annotated[int, typer.Option(help="Of the places of clients.")] = 1,
    relay: Annotated[
        bool, typer.Option("--relay", help="Count with relays even if packets could be captured.")
    ] = False,
    json: _Json = False,
    plot: _Plot = None,
) -> None:
    """Bytes between five brokers, ours with each strategy and Mosquitto's bridges, at the same time (ten minutes)."""
    unknown = [one for one in locality or [] if one not in LOCALITIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of 0, 50, 100", param_hint="--locality")
    plan = traffic.Plan(
        localities=tuple(locality or LOCALITIES), rounds=rounds, messages=messages, interval_s=interval, qos=qos,
        overlay=overlay, seed=seed, capture=may_capture() and not relay,
    )  # fmt: skip

    def told(talk: Callable[[str], None]) -> traffic_report.Report:
        versions = systems.versions()
        return traffic_report.build(plan, versions, traffic.run(plan, talk))

    report = _run(told)
    _print(report, json, lambda console: traffic_report.show(report, console))
    if plot is not None:
        plots.draw_traffic(report, plot)
    if report.lost and qos:
        raise typer.Exit(1)


@app.command("convergence")
def convergence_command(
    runs: Annotated[int, typer.Option(min=1, max=999, help="Starts of the whole network.")] = 10,
    nodes: Annotated[int, typer.Option(min=3, max=5, help="Nodes of the network.")] = 5,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(systems.STRATEGIES)}.")] = "subscription-flooding",
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if nodes could be put at a distance, which needs root.")
    ] = False,
    json: _Json = False,
    plot: _Plot = None,
) -> None:
    """Start a spanning tree of nodes, kill its root and an inner node, time how it forms again (five minutes)."""
    if strategy not in systems.STRATEGIES:
        raise typer.BadParameter(f"known: {', '.join(systems.STRATEGIES)}", param_hint="--strategy")
    far = may_be_at_a_distance() and not loopback
    plan = convergence.Plan(runs=runs, nodes=nodes, strategy=strategy, at_a_distance=far)

    def told(talk: Callable[[str], None]) -> convergence_report.Report:
        site = convergence.described(plan)
        return convergence_report.build(plan, f"sterna {__version__}", site, convergence.run(plan, talk))

    report = _run(told)
    _print(report, json, lambda console: convergence_report.show(report, console))
    if plot is not None:
        plots.draw_convergence(report, plot)
    if report.lost:
        raise typer.Exit(1)


@app.command("migration")
def migration_command(
    runs: Annotated[int | None, typer.Option(min=1, max=99, help="Of every experiment.  [default: 10]")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these experiments, such as ahead-A0.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help=f"Only these clients: {', '.join(migration_plan.KINDS)}.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One run of every experiment.")] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="On loopback even if distances could be made, which needs root.")
    ] = False,
    records: Annotated[Path | None, typer.Option(help="Keep what clients wrote down in this new directory.")] = None,
    json: _Json = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's plots into this directory.")] = None,
) -> None:
    """Move clients between two nodes while messages flow, and account for every message (half an hour)."""
    from sterna.measure.papers.migration import experiment as migration
    from sterna.measure.papers.migration import plots as migration_plots
    from sterna.measure.papers.migration import records as migration_records
    from sterna.measure.papers.migration import report as migration_report

    known = migration_plan.BY_NAME
    plan = migration.Plan(
        experiments=tuple(known[_known(name, known, "--only")] for name in only) if only else tuple(known.values()),
        runs=runs or (1 if quick else 10),
        kinds=tuple(one for one in migration_plan.KINDS if not kind or one in kind),
        at_a_distance=may_be_at_a_distance() and not loopback,
    )
    for name in kind or ():
        _known(name, migration_plan.KINDS, "--kind")
    if records is not None and records.exists():
        raise typer.BadParameter(f"{records} is there already", param_hint="--records")
    _check_spark()
    with ExitStack() as stack:
        directory = records or Path(stack.enter_context(TemporaryDirectory(prefix="sterna-migration-")))

        def told(talk: Callable[[str], None]) -> migration_report.Report:
            processing_ms = migration.processing_ms(plan, talk)
            migration.run(plan, directory, talk)
            with spark_session("sterna experiment", "local[*]", None) as spark:
                from sterna.pipeline.audit.move_audit import account

                accounted = account(spark, directory)
            moves = migration_records.read(directory, "moves")
            return migration_report.build(plan, f"sterna {__version__}", accounted, moves, processing_ms)

        report = _run(told)
        _print(report, json, lambda console: migration_report.show(report, console))
        if plot is not None:
            migration_plots.draw(report, directory, plot)
    if report.invalid:
        raise typer.Exit(1)


def _known(name: str, known: Collection[str], option: str) -> str:
    if name not in known:
        raise typer.BadParameter(f"no {name!r}; known: {', '.join(known)}", param_hint=option)
    return name


def _check_spark() -> None:
    """Before half an hour of measuring."""
    if find_spec("pyspark") is None:
        raise SternaError("the records are analysed with Spark, which is not installed; pip install 'sterna[pipeline]'")


def _run(told: Callable[[Callable[[str], None]], _Report]) -> _Report:
    talk = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    try:
        return told(lambda line: talk.print(line, markup=False, soft_wrap=True))
    except (SternaError, ConnectionError) as error:
        talk.print(str(error), markup=False)
        raise typer.Exit(1) from None


def _print(report: msgspec.Struct, json: bool, show: Callable[[Console], None]) -> None:
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    out = Console(highlight=False)
    show(out if out.is_terminal else Console(highlight=False, width=TABLE_COLUMNS))


def _leave(number: int, frame: FrameType | None) -> None:
    """Being told to end is a way out like any other: brokers and their directories go first."""
    raise SystemExit(128 + number)
