"""`sterna check-config`: say everything that is wrong with a configuration, or what it amounts to."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sterna.runtime.config.loading import load
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.config.schema import as_plain
from sterna.runtime.gateway.settings import load_gateway

app = typer.Typer()

_FOREIGN = {
    "[upstream]": "a gateway; check it with: sterna check-config --gateway",
    "[worker]": "a worker; check it with: sterna worker --check --config",
    "[coordinator]": "a coordinator; check it with: sterna coordinator --check --config",
}
"""Tables that other processes have -> whose file it is then."""


@app.command("check-config")
def check_config(
    file: Annotated[Path | None, typer.Argument(help="TOML file; without it: defaults and environment.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, problems included.")] = False,
    gateway: Annotated[bool, typer.Option("--gateway", help="It is the file of a gateway.")] = False,
) -> None:
    """Check a configuration file together with the environment.

    Prints the effective configuration, or every problem with its file, line and fix; the exit status is then 1.
    """
    try:
        configuration = load_gateway(file, os.environ) if gateway else load(file, os.environ)
    except InvalidConfiguration as error:
        if as_json:
            print(json.dumps({"valid": False, "problems": [asdict(problem) for problem in error.problems]}, indent=2))
        else:
            print(error, file=sys.stderr)
            for place in {problem.place for problem in error.problems} & _FOREIGN.keys():
                print(f"this looks like the file of {_FOREIGN[place]} {file}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps({"valid": True, "configuration": as_plain(configuration)}, indent=2))
    else:
        print(as_toml(configuration), end="")
