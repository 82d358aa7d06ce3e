"""The `sterna` command.  Data goes to stdout, talk to stderr.

Only the module of the command that was asked for is imported, so that `sterna pub` starts in the time of a publisher
and not in that of a broker.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from sterna import __version__
from sterna.vocabulary.errors import SternaError

COMMANDS = (
    "node",
    "gateway",
    "check-config",
    "network",
    "neighbours",
    "clients",
    "migrations",
    "move",
    "evacuate",
    "passwd",
    "pub",
    "sub",
    "bench",
    "experiment",
    "simulate",
    "operators",
    "pipeline",
    "demo",
)
_GROUPS = frozenset({"bench", "experiment", "simulate", "pipeline", "neighbours", "operators"})
"""Commands that have commands of their own."""
_MOSQUITTO_LIKE = frozenset({"pub", "sub"})
_USAGE_ERROR = 2
_VERSION = "--version"


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    command = words[0] if words else ""
    try:
        assemble(command)(words, prog_name="sterna")
    except SternaError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        # mosquitto_pub and mosquitto_sub answer bad usage with 1, and scripts written for them may look.
        if end.code == _USAGE_ERROR and command in _MOSQUITTO_LIKE:
            sys.exit(1)
        raise


def assemble(command: str) -> typer.Typer:
    """The application with the one command, or with all of them if it knows no such one (help, or a slip)."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(_sterna)
    wanted = [command] if command in COMMANDS else [] if command == _VERSION else COMMANDS
    for name in wanted:
        module = importlib.import_module(f"sterna.cli.{name.replace('-', '_')}")
        app.add_typer(module.app, name=name if name in _GROUPS else None)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        print(f"sterna {__version__}")
        raise typer.Exit


def _sterna(
    version: Annotated[
        bool, typer.Option(_VERSION, callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """An MQTT broker that loses nothing, and the tools around it."""
