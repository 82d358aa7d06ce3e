"""The `sterna` command.  Data goes to stdout, talk to stderr.

Only the module of the command that was asked for is imported, so that `sterna pub` starts in the time of a publisher
and not in that of a broker.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from sterna import __version__
from sterna.vocabulary.errors import SternaError

COMMANDS = (
    "node",
    "gateway",
    "check-config",
    "reload",
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
_LONG_LIVED = frozenset({"node", "gateway"})
"""Commands that reload on SIGHUP, and must not die of one that comes while they start."""
_USAGE_ERROR = 2
_VERSION = "--version"
_COMPLETION = "_STERNA_COMPLETE"
"""Set by the script of `--install-completion`, which has the line that is being typed in another variable."""


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    command = words[0] if words else ""
    if command in _LONG_LIVED:
        from sterna.runtime.hangups import hold_back_hangups

        hold_back_hangups()
    try:
        app = _completing(os.environ) if _COMPLETION in os.environ else assemble(command)
        app(words, prog_name="sterna")
    except SternaError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        # mosquitto_pub and mosquitto_sub answer bad usage with 1, and scripts written for them may look.
        if end.code == _USAGE_ERROR and command in _MOSQUITTO_LIKE:
            sys.exit(1)
        raise


def assemble(command: str, *, completes: bool = False) -> typer.Typer:
    """The application with the one command, or with all of them if it knows no such one (help, or a slip)."""
    app = _empty(completes=completes or command not in COMMANDS)
    wanted = [command] if command in COMMANDS else [] if command == _VERSION else COMMANDS
    for name in wanted:
        module = importlib.import_module(f"sterna.cli.{name.replace('-', '_')}")
        app.add_typer(module.app, name=name if name in _GROUPS else None)
    return app


def _empty(*, completes: bool) -> typer.Typer:
    # Plain help: tables of a fixed width would cut long flags, and name a type behind those that take no value.
    app = typer.Typer(
        add_completion=completes, pretty_exceptions_enable=False, no_args_is_help=True, rich_markup_mode=None
    )
    app.callback()(_sterna)
    return app


def _completing(environ: Mapping[str, str]) -> typer.Typer:
    """The command whose words are being typed, or the names of all of them, without what they would import."""
    line = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()
    if len(words) > 1 and words[1] in COMMANDS and (len(words) > 2 or line[-1].isspace()):
        return assemble(words[1], completes=True)
    app = _empty(completes=True)
    for name in COMMANDS:
        app.command(name)(_named)
    return app


def _named() -> None:
    pass


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
