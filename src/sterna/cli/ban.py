"""`sterna ban`: keep a client, a user or an address out of all nodes, for a time or until the ban is lifted."""

from __future__ import annotations

from typing import Annotated, Any

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
    tell_rows,
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
        tell_rows(question(admin, "/bans", token_file), as_json, _line, "bans")
        return
    order = {**given, "lift": lift, "reason": reason}
    if span is not None:
        order["for_s"] = seconds(span, "--for")
    answer = ask(admin, "/bans", token_file, order)
    tell_changed(answer, as_json)


def _line(one: dict[str, Any]) -> str:
    left = "until lifted" if one["ends_in_s"] is None else f"{one['ends_in_s']:,.0f} s left"
    return f"{shown(one['name'])}\t{left}\t{shown(one['reason'])}".rstrip("\t")
