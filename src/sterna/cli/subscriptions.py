"""`sterna subscriptions`: who in the network is subscribed to what."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    question,
    shown,
    tell_incomplete,
    tell_nothing,
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
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for one in answer["rows"]:
        state = "connected" if one["connected"] else "away"
        print(f"{shown(one['filter'])}\tQoS {one['qos']}\t{shown(one['client'])}\t{one['node']}, {state}")
    tell_nothing(answer["rows"], "subscriptions")
    tell_incomplete(answer)
