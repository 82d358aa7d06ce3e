"""`sterna users`: users of all nodes, set, barred and listed while the nodes run."""

from __future__ import annotations

import secrets
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
from sterna.cli.passwords import ask_password
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer(help="Users of all nodes, changed while they run.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="User name.")]


@app.command("list")
def list_users(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only those with this in their name.")] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List users: those of the password file of the node that is asked, and those set by command at all nodes."""
    tell_rows(question(admin, "/users", token_file, text=text), as_json, _line, "users")


def _line(one: dict[str, Any]) -> str:
    state = "barred" if one["barred"] else "may come in"
    return f"{shown(one['user'])}\t{state}\tset by {one['set_by']}"


@app.command("set")
def set_user(
    user: UserArgument,
    scram: Annotated[bool, typer.Option("--scram", help="Also for enhanced authentication (SCRAM).")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a user or change a password, asked for at the terminal or read as one line from stdin.

    Only a hash of the password leaves this command.  Clients that came in with another password are cut off.
    """
    from sterna.broker.access.passwords import hash_password
    from sterna.broker.access.scram import METHODS

    try:
        line = hash_password(
            named(user, "the user name"),
            ask_password(),
            random_bytes=secrets.token_bytes,
            scram_methods=METHODS if scram else (),
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    credential = line.partition(":")[2]
    tell_changed(ask(admin, "/users", token_file, {"user": user, "credential": credential}), as_json)


@app.command("bar")
def bar_user(
    user: UserArgument,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a user at all nodes, whatever their files say, by password, token or certificate; cut off its clients."""
    tell_changed(ask(admin, "/users", token_file, {"user": named(user, "the user name"), "bar": True}), as_json)


@app.command("reset")
def reset_user(
    user: UserArgument,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget what was set by command: the files of each node decide about the user again."""
    tell_changed(ask(admin, "/users", token_file, {"user": named(user, "the user name"), "reset": True}), as_json)
