"""`sterna operators`: what an expression means, before anybody subscribes to it; and which there are."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    question,
    shown,
    tell_rows,
)
from sterna.operators.errors import ExpressionError
from sterna.operators.explain import explain as explained
from sterna.operators.explain import steps_of
from sterna.operators.expression import Expression, Family
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.grammar import parse
from sterna.runtime.config.loading import load
from sterna.runtime.functions.pool import functions_of

app = typer.Typer(no_args_is_help=True, help="Subscriptions that compute.")


@app.callback()
def _operators() -> None:
    """Subscriptions that compute."""


@app.command()
def explain(
    expression: Annotated[str, typer.Argument(help="Such as '$AVG/room/+/temp'; mind the quotes.")],
    config: Annotated[Path | None, typer.Option(help="TOML file of the node; without it: the defaults.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an expression and say, step by step, what it computes, what is kept for it and where it runs.

    The exit status is 1 if no node would take it; the reason then points at the operator at fault.
    """
    configuration = load(config, os.environ)
    functions = functions_of(configuration.functions)
    try:
        read = parse(expression.encode(), functions)
    except ExpressionError as error:
        if not as_json:
            raise _at_fault(expression, error) from None
        problem = {"operator": error.operator, "byte": error.position, "error": error.text}
        print(json.dumps({"expression": expression, "accepted": False} | problem))
        raise typer.Exit(1) from None
    innermost = read.operators[-1]
    refusal = functions.refusal(innermost.name) if innermost.family is Family.FUNCTION else None
    if as_json:
        steps = [
            {"step": step, "gives": gives, "remark": remark}
            for step, gives, remark in steps_of(read, configuration.operators, functions)
        ]
        print(json.dumps({"expression": expression, "accepted": refusal is None, "steps": steps}))
    else:
        print("\n".join(explained(read, configuration.operators, functions)))
    if refusal is not None:
        print(f"{innermost.text}: {refusal}", file=sys.stderr)
        raise typer.Exit(1)


@app.command("list")
def list_expressions(
    text: Annotated[
        str,
        typer.Argument(metavar="[TEXT]", help="Only those that contain this, such as '$AVG'; mind the quotes."),
    ] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the expressions of all nodes, at most 1,000 of each, with who wants them and what they cost.

    Those that take most messages come first. The size is that of what is remembered, as it is saved.
    """
    answer = question(admin, "/expressions", token_file, text=text)
    answer["rows"].sort(key=lambda row: (-row["messages"], row["expression"], row["node"]))
    tell_rows(answer, as_json, _line, "expressions")


def _line(row: dict[str, Any]) -> str:
    size = "" if row["bytes"] is None else f", {row['bytes']:,} bytes"
    cost = f"{row['messages']:,} messages, {row['results']:,} results{size}"
    if row["waiting"]:
        cost += f", {row['waiting']:,} wait for its function"
    if row["stopped"]:
        cost += f", stopped: {row['stopped']}"
    who = f"{row['subscribers']:,} subscribed, first {shown(row['holder'])}"
    return f"{shown(row['expression'])}\t{row['node']}, {row['engine']}\t{cost}\t{who}"


def parsed(text: str, functions: Functions = NO_FUNCTIONS) -> Expression:
    """Ends the command, with a finger on the operator at fault, if it is no expression."""
    try:
        return parse(text.encode(), functions)
    except ExpressionError as error:
        raise _at_fault(text, error) from None


def _at_fault(text: str, error: ExpressionError) -> typer.Exit:
    place = len(text.encode()[: error.position].decode(errors="replace"))
    print(f"{text}\n{' ' * place}^\n{error.operator}: {error.text}", file=sys.stderr)
    return typer.Exit(1)
