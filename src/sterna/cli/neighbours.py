"""`sterna neighbours`: which addresses a running node was given, and giving it others or taking some away.

A change is made wholly or not at all, and holds until the node is started again: what is to last goes into its file.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask, tell_nothing
from sterna.cli.network import foreign_lines

app = typer.Typer(no_args_is_help=True, help="List, add or remove a running node's neighbours.")

Addresses = Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="host:port of other nodes.")]


@app.command("list")
def list_(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Print the addresses and how it stands with each, and what the foreign broker beside the node can do."""
    _show(ask(admin, "/neighbours", token_file), as_json)


@app.command()
def add(
    addresses: Addresses,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the node link to these too: all of them, or none if one cannot be used."""
    _show(ask(admin, "/neighbours", token_file, {"add": addresses, "remove": []}), as_json)


@app.command()
def remove(
    addresses: Addresses,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the node link to these no more.  A link the other node made stays."""
    _show(ask(admin, "/neighbours", token_file, {"add": [], "remove": addresses}), as_json)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    dialled = answer["dialled"]
    for address in answer["neighbours"]:
        print(f"{address}\t{dialled.get(address, 'not dialled')}")
    tell_nothing(answer["neighbours"], "neighbours are listed; `sterna network` also shows links that other nodes made")
    for line in foreign_lines(answer):
        print(line)
