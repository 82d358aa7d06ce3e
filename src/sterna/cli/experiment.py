"""`sterna experiment ...`: repeat experiments of papers.  Tables or JSON go to stdout, progress to stderr."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, TypeVar

import msgspec
import typer
from rich.console import Console

from sterna import __version__
from sterna.experiments import convergence, convergence_report, plots, systems, traffic, traffic_report
from sterna.experiments.capture import may_capture
from sterna.experiments.placement import LOCALITIES
from sterna.experiments.sites import may_be_at_a_distance
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
