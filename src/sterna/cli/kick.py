"""`sterna kick`: disconnect a client, wherever in the network it is."""

from __future__ import annotations

from typing import Annotated

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, TokenOption, ask, named, shown

app = typer.Typer()


@app.command("kick")
def kick(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its client identifier.")],
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
) -> None:
    """Disconnect a client.  Its session stays, its will is published, and it may connect again at once."""
    answer = ask(admin, "/kick", token_file, {"client": named(client, "the client identifier")})
    for one in answer["rows"]:
        print(f"{shown(one['client'])} at {one['address']} disconnected from node {one['node']}")
