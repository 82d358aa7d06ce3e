"""`sterna ban`: keep a client, a user or an address out of all nodes, for a time or until the ban is lifted."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    ask,
    named,
    question,
    shown,
    tell_changed,
    tell_incomplete,
    tell_nothing,
)
from sterna.cli.durations import seconds
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()


@app.command("ban")
def ban(
    client: Annotated[str | None, typer.Option("--client", metavar="ID", help="A client identifier.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user name.")] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="IP", help="An address, or a network such as 192.0.2.0/24.")
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, such as 90s, 10m, 2h or 7d; else for good.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="For the list of bans and the log.")] = "",
    lift: Annotated[bool, typer.Option("--lift", help="Lift the ban.")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ban a client, a user or an address at all nodes; without one of these, list the bans.

    Clients that are connected are cut off at once.  Their sessions stay.  Nodes that are away get the ban when they
    return.
    """
    subjects = {"client": client, "user": user, "address": address}
    given = {name: named(what, f"--{name}") for name, what in subjects.items() if what is not None}
    if not given:
        if span is not None or reason or lift:
            raise ConfigurationError("name whom: --client, --user or --address")
        _list(admin, token_file, as_json)
        return
    order = {**given, "lift": lift, "reason": reason}
    if span is not None:
        order["for_s"] = seconds(span, "--for")
    answer = ask(admin, "/bans", token_file, order)
    tell_changed(answer, as_json)


def _list(admin: str, token_file: TokenOption, as_json: bool) -> None:
    answer = question(admin, "/bans", token_file)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for one in answer["rows"]:
        left = "until lifted" if one["ends_in_s"] is None else f"{one['ends_in_s']:,.0f} s left"
        print(f"{shown(one['name'])}\t{left}\t{shown(one['reason'])}".rstrip("\t"))
    tell_nothing(answer["rows"], "bans")
    tell_incomplete(answer)
