"""A measurement as a command: the parameters of its function are the options, its docstring is the help.

The function is given the `Means` and its options and returns the report.  The command adds `--json` and, where there is
a picture, the option for it.  The report goes to stdout, progress to stderr.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console

from sterna.measure.harness.comparison import Say
from sterna.measure.plots import can_draw
from sterna.measure.report import MeasurementReport
from sterna.vocabulary.errors import SternaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "AbstractContextManager[SparkSession]"]
Rounds = Annotated[int | None, typer.Option(min=1, max=99, help="Rounds; the median counts.  [default: 3]")]


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a measurement."""

    say: Say
    """How far it is."""
    cleanup: ExitStack
    """Closed when the report has been printed and drawn."""
    spark: Spark
    """A session, for as long as it is needed."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One row of a registry."""

    measure: str
    """"module:function"."""
    picture: str = ""
    """Help of the option for the picture; empty: there is none."""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that belong together."""

    help: str
    entries: Mapping[str, CommandEntry]
    picture_option: str
    width: int
    """Of tables, when stdout is not a terminal."""

    def app(self, spark: Spark) -> typer.Typer:
        app = typer.Typer(help=self.help, no_args_is_help=True)
        app.callback()(lambda: None)
        for name, entry in self.entries.items():
            app.command(name)(self._command(entry, spark))
        return app

    def _command(self, entry: CommandEntry, spark: Spark) -> Callable[..., None]:
        module, _, function = entry.measure.partition(":")
        measure = getattr(import_module(module), function)
        command = partial(self._run, measure, spark)
        parameters = list(self._parameters(measure, entry))
        # By these typer knows the options.
        told = {
            "__signature__": Signature(parameters),
            "__annotations__": {one.name: one.annotation for one in parameters},
        }
        vars(command).update(told)
        command.__doc__ = measure.__doc__
        return command

    def _parameters(self, measure: Callable[..., MeasurementReport], entry: CommandEntry) -> Iterator[Parameter]:
        hints = get_type_hints(measure, include_extras=True)
        for one in list(signature(measure).parameters.values())[1:]:
            yield one.replace(annotation=hints[one.name])
        json = typer.Option("--json", help="Print one JSON document instead of tables.")
        yield Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, json])
        if entry.picture:
            option = typer.Option(f"--{self.picture_option}", help=entry.picture)
            yield Parameter("picture", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option])

    def _run(
        self,
        measure: Callable[..., MeasurementReport],
        spark: Spark,
        *,
        json: bool,
        picture: Path | None = None,
        **options: Any,
    ) -> None:
        """A report of something that failed is a failure."""
        option = f"--{self.picture_option}"
        if picture is not None and not can_draw():
            raise typer.BadParameter(
                f"matplotlib is not installed; leave {option} out or install it", param_hint=option
            )
        talk = Console(stderr=True, highlight=False)
        signal.signal(signal.SIGTERM, _leave)
        with ExitStack() as cleanup:
            try:
                report = measure(Means(partial(talk.print, markup=False, soft_wrap=True), cleanup, spark), **options)
            except (SternaError, ConnectionError) as error:
                talk.print(str(error), markup=False)
                raise typer.Exit(1) from None
            self._print(report, json=json)
            if picture is not None:
                report.as_plot(picture)
        if report.failed:
            raise typer.Exit(1)

    def _print(self, report: MeasurementReport, *, json: bool) -> None:
        if json:
            typer.echo(report.as_json())
            return
        out = Console(highlight=False)
        report.as_table(out if out.is_terminal else Console(highlight=False, width=self.width))


def known(name: str, names: Mapping[str, Any], what: str, option: str) -> Any:
    """The entry of this name; a slip is answered with all names."""
    if name not in names:
        raise typer.BadParameter(f"no {what} {name!r}; known: {', '.join(names)}", param_hint=option)
    return names[name]


def _leave(number: int, frame: FrameType | None) -> None:
    """Being told to end is a way out like any other: brokers and their directories go first."""
    raise SystemExit(128 + number)
