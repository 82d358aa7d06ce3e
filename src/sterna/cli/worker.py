"""`sterna worker`: one on each host; it runs a node there when a coordinator orders it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command("worker")
def worker(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; without it: the environment.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Read and check the file, print it in full, and end.")] = False,
) -> None:
    """Run a worker until it gets SIGTERM or Ctrl-C.  Its node goes on: the next worker adopts it."""
    from sterna.runtime.adaptation.worker_settings import WorkerConfiguration, load_worker
    from sterna.runtime.config.reader import as_toml

    def read() -> WorkerConfiguration:
        return load_worker(config, os.environ)

    configuration = read()
    if check:
        print(as_toml(configuration), end="")
        return
    from sterna.runtime.adaptation.worker_server import run_worker

    raise typer.Exit(run_worker(configuration, read))
