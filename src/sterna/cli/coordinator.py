"""`sterna coordinator`: decides which node serves whom and which nodes run, in one region."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

app = typer.Typer()


@app.command("coordinator")
def coordinator(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; without it: the environment.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and tell, and give no orders.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read and check the file, print it in full, and end.")] = False,
) -> None:
    """Run a coordinator until it gets SIGTERM or Ctrl-C.  Of several in one region one leads, the others stand by."""
    from sterna.runtime.adaptation.coordinator_settings import CoordinatorConfiguration, load_coordinator
    from sterna.runtime.config.reader import as_toml

    def read() -> CoordinatorConfiguration:
        found = load_coordinator(config, os.environ)
        if not dry_run:
            return found
        return msgspec.structs.replace(found, coordinator=replace(found.coordinator, act=False))

    configuration = read()
    if check:
        print(as_toml(configuration), end="")
        return
    from sterna.runtime.adaptation.coordinator_server import run_coordinator

    raise typer.Exit(run_coordinator(configuration, read))
