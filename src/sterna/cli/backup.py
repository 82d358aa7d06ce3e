"""`sterna backup`: a copy of a running node's data, from which it can be started."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, TokenOption, Unanswered, ask

LOOK_S = 0.2

app = typer.Typer()


@app.command("backup")
def backup(
    name: Annotated[str, typer.Argument(help="Of the backup; the date and time without it.", show_default=False)] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
) -> None:
    """Back up a running node into its [node] backups directory, and print where it is.

    The node serves on.  Every message that was acknowledged before the command was given is in the backup.
    """
    chosen = name or datetime.now().strftime("%Y-%m-%dT%H%M%S")
    state = ask(admin, "/backup", token_file, {"name": chosen})
    while state["state"] == "running":
        time.sleep(LOOK_S)
        state = ask(admin, "/backup", token_file)
    if state["state"] != "done" or state["name"] != chosen:
        raise Unanswered(state.get("reason", f"backup {chosen} was not made: the node was started again meanwhile"))
    print(state["path"])
    what = "1 segment" if state["segments"] == 1 else f"{state['segments']:,} segments"
    print(f"{what} of the journal, {state['bytes']:,} bytes in all", file=sys.stderr)
