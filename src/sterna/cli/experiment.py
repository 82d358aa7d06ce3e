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

from sterna.experiments import plots, systems, traffic, traffic_report
from sterna.experiments.placement import LOCALITIES
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
    relay: Annotated[bool, typer.Option("--relay", help="Count with relays even if packets could be captured.")] = False,
    json: _Json = False,
    plot: _Plot = None,
) -> None:
    """Bytes between five brokers, ours with each strategy and Mosquitto's bridges, at the same time (ten minutes)."""
    unknown = [one for one in locality or [] if one not in LOCALITIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of 0, 50, 100", param_hint="--locality")
    plan = traffic.Plan(
        localities=tuple(locality or LOCALITIES), rounds=rounds, messages=messages, interval_s=interval, qos=qos,
        overlay=overlay, seed=seed, capture=traffic.may_capture() and not relay,
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
