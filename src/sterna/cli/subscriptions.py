"""`sterna subscriptions`: who in the network is subscribed to what."""

from __future__ import annotations

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

app = typer.Typer()


@app.command("subscriptions")
def subscriptions(
    topic_filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only those that a topic of this filter reaches; mind the quotes.")
    ] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions of all nodes, at most 1,000 of each."""
    answer = question(admin, "/subscriptions", token_file, filter=topic_filter)
    tell_rows(answer, as_json, _line, "subscriptions")


def _line(one: dict[str, Any]) -> str:
    state = "connected" if one["connected"] else "away"
    return f"{shown(one['filter'])}\tQoS {one['qos']}\t{shown(one['client'])}\t{one['node']}, {state}"
