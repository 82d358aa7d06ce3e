"""`sterna access`: access rules of all nodes, set, removed, listed and tried while the nodes run."""

from __future__ import annotations

import json
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
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer(help="Access rules of all nodes, changed while they run.", no_args_is_help=True)

RuleArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the rule; rules are read in this order.")]


@app.command("list")
def list_rules(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the rules in force at the node that is asked, in the order in which they are read."""
    tell_rows(question(admin, "/access", token_file), as_json, _line, "access rules")


def _line(one: dict[str, Any]) -> str:
    if one["set_by"] == "default":
        return f"{one['number']}\totherwise {one['effect']}"
    who = ", ".join(map(shown, one["user"])) + (f" as {', '.join(map(shown, one['client']))}" if one["client"] else "")
    topics = ", ".join(map(shown, one["filters"]))
    source = shown(one["name"]) if one["name"] else "configuration"
    return f"{one['number']}\t{one['effect']} {who}\t{one['access']}\t{topics}\t{source}"


@app.command("set")
def set_rule(
    name: RuleArgument,
    effect: Annotated[str, typer.Argument(metavar="EFFECT", help="allow or deny.")],
    filters: Annotated[
        list[str], typer.Argument(metavar="FILTER...", help="Topic filters; %u is the user, %c the client.")
    ],
    user: Annotated[
        list[str] | None, typer.Option("--user", metavar="NAME", help="Of whom; everybody without it; may be repeated.")
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="ID", help="Only with this client identifier; may be repeated."),
    ] = None,
    access: Annotated[str, typer.Option("--access", help="publish, subscribe or both.")] = "both",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a rule at all nodes.  It is read before the rules of the configuration; the first one that fits decides."""
    _check_choice(effect, "effect", ("allow", "deny"))
    _check_choice(access, "--access", ("publish", "subscribe", "both"))
    order = {"name": named(name, "the name"), "effect": effect, "filters": filters, "access": access}
    order |= {"user": user or ["*"], "client": client or []}
    tell_changed(ask(admin, "/access", token_file, order), as_json)


@app.command("remove")
def remove_rule(
    name: RuleArgument, admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Remove a rule that was set by command."""
    tell_changed(ask(admin, "/access", token_file, {"name": named(name, "the name"), "remove": True}), as_json)


@app.command("check")
def check(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, or with --subscribe a filter.")],
    user: Annotated[str | None, typer.Option("--user", help="Who asks; without it, an anonymous client.")] = None,
    client: Annotated[str, typer.Option("--client", help="Its client identifier.")] = "",
    subscribe: Annotated[bool, typer.Option("--subscribe", help="May it subscribe?  Else: may it publish?")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a client may publish or subscribe, and which rule decides."""
    asked = {"topic": topic, "user": user, "client": client, "access": "subscribe" if subscribe else "publish"}
    answer = question(admin, "/access/check", token_file, request=json.dumps(asked))
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    (found,) = answer["rows"]
    besides = "but" if found["allowed"] else "and"
    unknown = f"; {besides} no such user is let in" if found["unknown_user"] else ""
    print(f"{'allowed' if found['allowed'] else 'denied'}: {shown(found['reason'])}{unknown}")


def _check_choice(given: str, what: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ConfigurationError(f"{given!r} is no {what}: write {', '.join(choices[:-1])} or {choices[-1]}")
