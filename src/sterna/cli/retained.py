"""`sterna retained`: the retained messages of the network."""

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


@app.command("retained")
def retained(
    topic_filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only topics that this filter matches; mind the quotes.")
    ] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List retained messages, at most 1,000, with the first 256 bytes of their payloads."""
    answer = question(admin, "/retained", token_file, filter=topic_filter)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for one in answer["rows"]:
        payload = shown(one["payload"]) + ("..." if one["is_cut"] else "")
        print(f"{shown(one['topic'])}\tQoS {one['qos']}\t{one['bytes']:,} bytes\t{one['age_s']:,.0f} s ago\t{payload}")
    tell_nothing(answer["rows"], "retained messages")
    tell_incomplete(answer)
