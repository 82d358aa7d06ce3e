"""`sterna move`: have a client's session, and the client if it is connected, go to another node."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask, named, shown

app = typer.Typer()


@app.command("move")
def move(
    client: Annotated[str, typer.Argument(help="Client identifier.")],
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="Name of the node it is to go to.")],
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a client to another node with everything it is owed.  Any node of the network takes the order."""
    order = {"client": named(client, "the client identifier"), "to": named(to, "the name of the node")}
    answer = ask(admin, "/move", token_file, order)
    if as_json:
        print(json.dumps(answer))
    else:
        begun_at = answer["begun_at"]
        print(f"node {begun_at} moves {shown(client)} to {to}; follow it with `sterna migrations` at node {begun_at}")
