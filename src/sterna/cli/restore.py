"""`sterna restore`: a data directory from a backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sterna.runtime.disk.backups import restore as restored
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()


@app.command("restore")
def restore(
    backup: Annotated[Path, typer.Argument(help="A directory that `sterna backup` made.")],
    data: Annotated[Path, typer.Argument(help="The node's [node] data; must be empty or missing.")],
) -> None:
    """Make a data directory from a backup.  Start the node on it afterwards, with the name that it had."""
    try:
        made = restored(backup, data)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or data}: {error.strerror}") from None
    processes = f" and --processes {made.processes}" if made.processes > 1 else ""
    print(
        f"{made.bytes:,} bytes restored to {data}; start the node with this directory as [node] data{processes}",
        file=sys.stderr,
    )
